"""The sections of ``gpu.py``: each notes its figures as it goes, until its deadline."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from pasta_lm.engines.gpu.attention import (
    Attend,
    LayerMemory,
    Tuning,
    attend_gathered,
    attend_split,
    place_entries,
)
from pasta_lm.engines.gpu.batch import PagedBatch, RequestRows
from pasta_lm.engines.gpu.buckets import bucket_of, power_of_two
from pasta_lm.engines.gpu.flex import PassMask, attend_flex
from pasta_lm.engines.local import timing
from pasta_lm.engines.local.attention import LayerCall
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel, load
from pasta_lm.engines.local.random_model import random_model, read_architecture, train_tokenizer
from pasta_lm.interpreter.entries import Entries
from pasta_lm.machine import describe_machine
from pasta_lm.measure.bench import BenchSettings, bench
from pasta_lm.models.annotated import Record, read_annotated
from pasta_lm.strategies.replay import Pair, replay

ROWS, CONTEXTS = (1, 2, 4, 8, 16, 32, 64), (128, 2048)
NUM_GENERATED = 128


@dataclass
class Conditions:
    """Where a section runs, until when, and what it has found."""

    device: str
    is_tiny: bool
    shape: Path
    answers_file: Path
    weights: Path | None
    deadline: float
    figures: dict[str, Any] = field(default_factory=dict)
    was_cut: bool = False
    on_figures: Callable[[], None] = lambda: None

    def note(self, **figures: object) -> None:
        """Keep figures, and write them to the file."""
        self.figures.update(figures)
        self.on_figures()

    def has_time(self, needed: float = 0.0) -> bool:
        """Return whether some seconds are left; if not, the section counts as cut."""
        if time.monotonic() + needed < self.deadline:
            return True
        self.was_cut = True
        return False

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the large model."""
        return torch.float32 if self.is_tiny else torch.bfloat16

    def records(self) -> list[Record]:
        """Return the annotated answers of two blocks or more, in a seeded order."""
        found = read_annotated(self.answers_file).records
        chosen = [one for one in found if len(one.document.blocks) >= 2]
        random.Random(0).shuffle(chosen)
        return chosen

    def model(self) -> LoadedModel:
        """Return the large model with random weights; built once for all sections."""
        return _model(self.shape, str(self.device), self.dtype, self.answers_file)


@cache
def _model(shape: Path, device: str, dtype: torch.dtype, answers_file: Path) -> LoadedModel:
    texts = [one.document.plain_text for one in read_annotated(answers_file).records[:200]]
    tokenizer = train_tokenizer(texts)
    return random_model(
        read_architecture(shape), tokenizer, name=shape.stem, dtype=dtype, device=device
    )


def seconds(function: Callable[[], object], device: str, *, least: float = 0.3) -> float:
    """Return the median seconds of a call: by events of the GPU, by the clock on a CPU."""
    for _ in range(2):
        function()
    spent: list[float] = []
    while sum(spent) < least or len(spent) < 5:
        if device.startswith("cuda"):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            stop.record()
            stop.synchronize()
            spent.append(start.elapsed_time(stop) / 1e3)
        else:
            began = time.perf_counter()
            function()
            spent.append(time.perf_counter() - began)
    return median(spent)


def machine(at: Conditions) -> None:
    """Hardware, versions, and the bandwidth of copying and of reading memory once."""
    at.note(machine=describe_machine())
    asked = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit"
    try:
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        at.note(nvidia_smi=subprocess.run(command, capture_output=True, text=True).stdout.strip())
    except OSError:
        at.note(nvidia_smi="")
    num_bytes = 1 << (22 if at.is_tiny else 33)
    copying = _copying_s(num_bytes, at.device)
    reading = timing.reading_s(num_bytes, torch.device(at.device))
    at.note(
        copy_bytes_per_s=2 * num_bytes / copying,  # each byte is read and written
        read_bytes_per_s=num_bytes / reading,
    )


def _copying_s(num_bytes: int, device: str) -> float:
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    return seconds(lambda: target.copy_(source), device)


def exactness(at: Conditions) -> None:
    """Decoded logits against one masked pass, per architecture: float32, and bfloat16's noise."""
    from tests.architectures import ARCHITECTURES
    from tests.witness import TOLERANCE

    names = ["llama", "gemma2", "gpt_oss"] if at.is_tiny else list(ARCHITECTURES)
    found: dict[str, Any] = {"tolerance_float32": TOLERANCE}
    for name in names[:1] if at.is_tiny else names:
        if not at.has_time(3):
            return
        try:
            found[name] = _exactness_of(name, at.device)
        except Exception as exc:  # the other architectures are worth knowing all the same
            found[name] = f"{type(exc).__name__}: {exc}"[:300]
        at.note(architectures=found)


def _exactness_of(name: str, device: str) -> dict[str, float]:
    from pasta_lm.engines.local.naive import naive_logits
    from tests.architectures import build, load, loaded
    from tests.engines.gpu.test_paged_decoder import requests_of
    from tests.witness import Witness

    whole = loaded(name, device)
    seen = Witness(whole, paged=True).run(requests_of(name, device, 4, f"gpu {name}"))
    worst = max(one.worst_difference(whole) for (one,) in seen)
    half = load(name, build(name).to(device).bfloat16())  # type: ignore[arg-type]
    ((one,),) = Witness(half, paged=True).run(requests_of(name, device, 1, f"gpu {name}"))
    expected, exact = (
        naive_logits(model.model, one.entries, None)[one.slots] for model in (half, whole)
    )
    noise = (expected - exact).square().mean().sqrt()
    ours = (torch.stack(one.logits) - expected).square().mean().sqrt()
    return {"float32_worst": worst, "bfloat16_over_noise": float(ours / noise)}


def step_times(at: Conditions) -> None:
    """Sequential speed, its share of the bandwidth, ``generate``, and a step's time by rows."""
    loaded = at.model()
    rows = (1, 2, 4) if at.is_tiny else ROWS
    contexts = (16,) if at.is_tiny else CONTEXTS
    pool = timing.num_entries(max(rows), max(contexts))
    at.note(**timing.describe_run(loaded), weight_bytes=timing.read_bytes(loaded))
    engine = TorchEngine(loaded, pool_tokens=pool)
    began = time.monotonic()
    engine.warm_up(1)  # the rest is captured where ``step_s`` first needs it
    at.note(capture_s=time.monotonic() - began, is_paged=engine.paged is not None)
    num_tokens = 8 if at.is_tiny else NUM_GENERATED
    timing.sequential_s(engine, contexts[0], num_tokens)
    ours = min(timing.sequential_s(engine, contexts[0], num_tokens) for _ in range(3))
    reading = timing.reading_s(timing.read_bytes(loaded), loaded.device)
    at.note(
        sequential_tokens_per_s=num_tokens / ours,
        reading_s=reading,
        bandwidth_share=reading * num_tokens / ours,
    )
    if at.has_time(20):
        timing.generate_s(loaded, contexts[0], 4)
        theirs = timing.generate_s(loaded, contexts[0], num_tokens)
        at.note(generate_tokens_per_s=num_tokens / theirs)
    _steps(at, "step_ms", engine, rows, contexts)
    if at.has_time(20):
        plain = TorchEngine(loaded, pool_tokens=pool, paged=False)
        _steps(at, "step_ms_views", plain, rows[:5], contexts[:1])


def _steps(
    at: Conditions, key: str, engine: TorchEngine, rows: tuple[int, ...], contexts: tuple[int, ...]
) -> None:
    table: dict[str, dict[str, float]] = {}
    for context in contexts:
        for count in rows:
            if not at.has_time(4):
                return
            timing.step_s(engine, count, context)  # a bucket that is new is captured here
            found = 1e3 * timing.step_s(engine, count, context)
            table.setdefault(str(context), {})[str(count)] = round(found, 4)
            at.note(**{key: table})


def answers(at: Conditions) -> None:
    """Annotated answers, sequentially and in parallel: theoretical, realised, efficiency."""
    _replay(at, at.model())


def _replay(at: Conditions, loaded: LoadedModel) -> None:
    records = at.records()[: 2 if at.is_tiny else None]

    def look_at_the_clock(num_done: int, num_all: int) -> None:
        if num_done < num_all and not at.has_time(6):
            raise KeyboardInterrupt  # as from the keyboard: the pairs so far are returned

    report = replay(records, loaded, positions=loaded.positions, progress=look_at_the_clock)
    pairs = [_pair(pair) for pair in report.pairs]
    at.note(**report.to_dict(), num_asked=len(records), answers=pairs)


def _pair(pair: Pair) -> dict[str, Any]:
    one, many = pair.wall_s
    theoretical = pair.parallel.theoretical_speedup(pair.sequential)
    return {
        "id": pair.id, "blocks": pair.num_blocks, "threads": pair.num_threads,
        "tokens": pair.parallel.num_content_tokens, "sequential_s": round(one, 5),
        "parallel_s": round(many, 5), "theoretical": round(theoretical, 4),
    }  # fmt: skip


def host_share(at: Conditions) -> None:
    """A step's time beside its device time: what overlapping both could gain."""
    loaded, found = at.model(), []
    context = 16 if at.is_tiny else 512
    for rows in (1, 2) if at.is_tiny else (1, 4, 16):
        engine = TorchEngine(loaded, pool_tokens=timing.num_entries(rows, context), paged=True)
        timing.step_s(engine, rows, context)
        wall = timing.step_s(engine, rows, context)
        decoder = engine.paged
        assert decoder is not None
        same = [one for one in decoder.buckets if one.num_rows == power_of_two(rows)]
        bucket = max(same, key=lambda one: one.num_pages)
        with torch.inference_mode():
            device = seconds(decoder.passes(bucket), at.device, least=0.1)
        found.append(
            {"rows": rows, "step_ms": 1e3 * wall, "device_ms": 1e3 * device, "bucket": list(bucket)}
        )
        at.note(steps=found)


def load_sweep(at: Conditions) -> None:
    """Many requests at once: median latency, by their number."""
    settings = BenchSettings(rows=(1,), requests=(1, 2) if at.is_tiny else (1, 4, 16, 64, 128))
    if at.has_time(60):
        at.note(load=bench(at.model(), settings).to_dict()["load"])


def attention(at: Conditions) -> None:
    """The kernel alone: its error against plain torch, and its time by launch settings."""
    found = list[Any]()
    for case in _cases(at):
        if not at.has_time(5):
            return
        call, q, k, v, memory, batch = case
        expected = attend_gathered(call, q, k, v, memory, batch)
        entry: dict[str, Any] = {"bucket": list(batch.bucket), "heads": len(q), "key_heads": len(k)}
        entry["bytes"] = 2 * int(batch.blocks[3].sum()) * k.shape[-1] * len(k) * k.element_size()
        if not at.device.startswith("cuda"):
            entry["gathered_us"] = 1e6 * seconds(
                lambda c=case: attend_gathered(*c), at.device, least=0.01
            )
            found.append(entry)
            at.note(cases=found)
            continue
        scale = float(expected.float().abs().max())
        difference = (attend_split(*case) - expected).float().abs().max()
        entry["relative_error"] = float(difference) / scale
        for tuning in _tunings():
            name = f"keys {tuning.block_keys} warps {tuning.num_warps} stages {tuning.num_stages}"
            try:
                entry[name] = 1e6 * seconds(
                    lambda c=case, t=tuning: attend_split(*c, t), at.device, least=0.02
                )
            except Exception as exc:  # too much shared memory, say
                entry[name] = f"{type(exc).__name__}"
        found.append(entry)
        at.note(cases=found)


def alternatives(at: Conditions) -> None:
    """FlexAttention and gathered keys beside the kernel: errors, and times without tuning."""
    found = list[Any]()
    for case in _cases(at):
        *_, memory, batch = case
        expected = attend_gathered(*case)
        flex = partial(attend_flex, mask=PassMask.of(batch, memory.entries))
        ways: dict[str, Attend] = {"gathered": attend_gathered, "flex": flex}
        if at.device.startswith("cuda"):
            ways["triton"] = attend_split
        entry: dict[str, Any] = {"bucket": list(batch.bucket), "heads": len(expected)}
        for name, attend in ways.items():
            if not at.has_time(10):  # FlexAttention is compiled for each case
                return
            try:
                difference = (attend(*case) - expected).float().abs().max()
                spent = seconds(partial(attend, *case), at.device, least=0.02)
                error = float(difference / expected.float().abs().max())
                entry[name] = {"us": 1e6 * spent, "relative_error": error}
            except Exception as exc:  # the others are worth knowing all the same
                entry[name] = f"{type(exc).__name__}: {exc}"[:300]
        found.append(entry)
        at.note(cases=found)


def _tunings() -> list[Tuning]:
    return [Tuning()] + [
        Tuning(keys, warps, stages)
        for keys in (32, 64, 128)
        for warps in (4, 8)
        for stages in (1, 2, 3)
    ]


def _cases(
    at: Conditions,
) -> Iterator[tuple[LayerCall, Tensor, Tensor, Tensor, LayerMemory, PagedBatch]]:
    """Yield a layer's attention of Gemma 7B and of a Llama: one thread, eight, 64 requests."""
    size, lengths = 16, ((1, 1, 40),) if at.is_tiny else ((1, 1, 2048), (1, 8, 2048), (64, 1, 1024))
    for heads, key_heads, head_size in ((16, 16, 256), (32, 8, 128))[: 1 if at.is_tiny else 2]:
        for num_requests, rows, keys in lengths:
            pages = -(-keys // size)
            entries = Entries.of_prompt(list(range(keys))).items
            requests = [
                RequestRows(entries[-rows:], keys - rows, range(i * pages, (i + 1) * pages), 1)
                for i in range(num_requests)
            ]
            bucket = bucket_of([one.size for one in requests], heads // key_heads)
            batch = PagedBatch.of(requests, bucket, size).to(torch.device(at.device))

            def drawn(count: int, length: int, size: int = head_size) -> Tensor:
                return torch.randn(count, length, size, device=at.device, dtype=at.dtype)

            slots = num_requests * pages * size
            places = torch.zeros(2, slots, dtype=torch.int32, device=at.device)
            memory = LayerMemory(drawn(key_heads, slots), drawn(key_heads, slots), places)
            place_entries(batch, places)
            q, k, v = (drawn(count, bucket.num_rows) for count in (heads, key_heads, key_heads))
            yield LayerCall(0, None, None, None, None), q, k, v, memory, batch


def small_model(at: Conditions) -> None:
    """SmolLM2-135M, bound by launches more than by memory: sequential speed, annotated answers."""
    dtype = torch.float32 if at.is_tiny else torch.bfloat16
    if at.weights is None:
        shape = at.shape if at.is_tiny else at.shape.with_name("smollm2-135m.json")
        loaded = _model(shape, at.device, dtype, at.answers_file)
    else:
        loaded = load(at.weights, device=at.device, dtype=str(dtype).removeprefix("torch."))
    at.note(**timing.describe_run(loaded))
    engine = TorchEngine(loaded, pool_tokens=1024)
    engine.warm_up(1)
    count = 8 if at.is_tiny else NUM_GENERATED
    timing.sequential_s(engine, 16, count)
    ours, theirs = timing.sequential_s(engine, 16, count), timing.generate_s(loaded, 16, count)
    at.note(sequential_tokens_per_s=count / ours, generate_tokens_per_s=count / theirs)
    _replay(at, loaded)
