"""What one GPU shows in five minutes: a JSON file, and the same in lines.

    python lab/benchmarks/gpu.py OUT.json [--seconds 300] [--only SECTION,SECTION] [--tiny]

Weights are random. Sections run in order of value, each within its own seconds; each figure is
printed and written at once. A section that fails prints its traceback, and the next begins, in a
new process if the GPU is lost. A second call with the same file continues with the unfinished
sections. ``--tiny`` runs all of it on a CPU, with a model of two layers.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pasta_lm.engines.devices import free_bytes
from pasta_lm.engines.gpu.batch import power_of_two
from pasta_lm.engines.gpu.decoder import Function
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.learn.data.annotated import Record, read_annotated
from pasta_lm.learn.random_model import random_model, read_architecture, train_tokenizer
from pasta_lm.machine import describe_machine
from pasta_lm.measure.bench import (
    NUM_DECODED,
    BenchSettings,
    bench,
    prompt_of,
    read_bytes,
    reading_s,
    step_s,
)
from pasta_lm.measure.replay import replay

Figures = dict[str, Any]
ROOT = Path(__file__).parents[2]
SHAPES = Path(__file__).parent / "shapes"
ANSWERS = ROOT / "corpora" / "starter" / "starter.jsonl"
DONE, CUT, FAILED = "done", "cut", "failed"
ROWS = (1, 2, 4, 8, 16, 64)
MAX_LINE = 2_000  # characters of a printed figure


@dataclass
class Section:
    """A running section: its settings, its deadline and its figures so far."""

    device: str
    is_tiny: bool
    deadline: float
    write: Callable[[Figures], None]
    figures: Figures = field(default_factory=dict)
    was_cut: bool = False

    def note(self, **figures: object) -> None:
        """Add figures and write them to the file."""
        self.figures.update(figures)
        self.write(self.figures)
        print(f"  {json.dumps(figures, default=str)[:MAX_LINE]}", flush=True)

    def has_time(self, seconds: float) -> bool:
        """Return whether so many seconds are left; if not, the section counts as cut."""
        self.was_cut |= time.monotonic() + seconds > self.deadline
        return not self.was_cut

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the models."""
        return torch.float32 if self.is_tiny else torch.bfloat16

    def records(self) -> list[Record]:
        """Return the annotated answers of two blocks or more, in a seeded order."""
        records = read_annotated(ANSWERS)[0]
        chosen = [record for record in records if len(record.document.blocks) >= 2]
        random.Random(0).shuffle(chosen)
        return chosen

    def model(self, shape: str = "qwen3-8b") -> LoadedModel:
        """Return a model of a shape with random weights: grouped heads, 152k rows of the head.

        The last one is kept for the next section: two do not fit beside each other.
        """
        return _random_model("tiny" if self.is_tiny else shape, self.device, self.dtype)


@lru_cache(maxsize=1)
def _random_model(shape: str, device: str, dtype: torch.dtype) -> LoadedModel:
    texts = [record.document.plain_text for record in read_annotated(ANSWERS)[0][:200]]
    architecture = read_architecture(SHAPES / f"{shape}.json")
    tokenizer = train_tokenizer(texts)
    return random_model(architecture, tokenizer, name=shape, dtype=dtype, device=device)


def seconds(function: Callable[[], object], device: str, *, total: float = 0.3) -> float:
    """Return the median seconds of a call: by events of the GPU, by the clock on a CPU."""
    for _ in range(2):
        function()
    spent: list[float] = []
    while sum(spent) < total or len(spent) < 5:
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


# --- sections


def machine(at: Section) -> None:
    """Hardware, versions, and the bandwidth of copying and of reading memory once."""
    query = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        about = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        about = ""
    gpu = torch.cuda.get_device_name() if at.device.startswith("cuda") else "none"
    num_bytes = 1 << 22 if at.is_tiny else min(1 << 33, free_bytes(torch.device(at.device)) // 8)
    source, target = torch.ones(2, num_bytes // 4, device=at.device)
    copying = seconds(lambda: target.copy_(source), at.device)
    at.note(
        machine=describe_machine(gpu),
        nvidia_smi=about,
        copy_bytes_per_s=2 * num_bytes / copying,  # each byte is read and written
        read_bytes_per_s=num_bytes / reading_s(num_bytes, torch.device(at.device)),
    )


def steps(at: Section, shape: str = "qwen3-8b", rows: Sequence[int] = ROWS) -> None:
    """Sequential speed, its share of the bandwidth, the step time by rows, and ``generate``."""
    from pasta_lab.peers import generate_s

    loaded = at.model(shape)
    at.note(model=loaded.name, weight_bytes=read_bytes(loaded))
    report = bench(loaded, BenchSettings(rows=tuple(n for n in rows if n <= 4 or not at.is_tiny)))
    at.note(**{key: value for key, value in report.items() if key != "machine"})
    generate_s(loaded)
    at.note(generate_tokens_per_s=NUM_DECODED / generate_s(loaded))
    if at.device.startswith("cuda"):
        at.note(peak_bytes=torch.cuda.max_memory_allocated())


def prompts(at: Section) -> None:
    """Prompt tokens a second, by the length of the prompt; the second of two runs counts."""
    engine, rows = _engine(at.model(), 12_000), list[Figures]()
    words, params = prompt_of(engine.loaded.vocabulary), SamplingParams(max_tokens=1)
    for length in (64, 512) if at.is_tiny else (512, 2048, 8192):
        request = Request(prompt=(words * length)[:length], params=params, forks=False)
        spent = seconds(lambda: engine.generate([request]), "cpu", total=0)  # noqa: B023
        rows.append({"length": length, "tokens_per_s": length / spent})
        at.note(prompts=rows)


def kernels(at: Section) -> None:
    """The ten kernels that take most of a pass of 1 and of 8 rows: what to fuse next."""
    kind = ProfilerActivity.CUDA if at.device.startswith("cuda") else ProfilerActivity.CPU
    for num_rows in (1, 8):
        run = _pass_of(_engine(at.model(), 2048), num_rows)
        with torch.inference_mode(), profile(activities=[kind]) as profiler:
            run()
            if at.device.startswith("cuda"):
                torch.cuda.synchronize()
        column = "self_device_time_total" if at.device.startswith("cuda") else "self_cpu_time_total"
        rows = sorted(profiler.key_averages(), key=lambda row: -getattr(row, column))[:10]
        figures = [{"name": r.key, "calls": r.count, "us": getattr(r, column)} for r in rows]
        at.note(**{f"rows_{num_rows}": figures})


def _pass_of(engine: TorchEngine, num_rows: int) -> Function:
    """Return the pass of so many rows that a benchmark of steps ends with."""
    step_s(engine, num_rows)
    passes = engine.paged
    assert passes is not None
    same = [bucket for bucket in passes.shapes if bucket.num_rows == power_of_two(num_rows)]
    return passes.shapes[max(same, key=lambda bucket: bucket.num_pages)].run


def _engine(loaded: LoadedModel, pool_tokens: int) -> TorchEngine:
    return TorchEngine(loaded, pool_tokens=pool_tokens, paged=True)


def graphs(at: Section) -> None:
    """Captured passes against the same functions uncaptured, bit for bit, after mixed requests."""
    began, engine = time.monotonic(), _engine(at.model("smollm2-135m"), 8192)
    words, rng = prompt_of(engine.loaded.vocabulary), random.Random(0)
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=100, temperature=temperature, seed=0)
        lengths = [rng.choice([5, 40, 300, 700]) for _ in range(2 if at.is_tiny else 12)]
        engine.generate([Request(prompt=(words * n)[:n], params=params) for n in lengths])
    passes, differing = engine.paged, 0
    assert passes is not None
    with torch.inference_mode():
        for replay in passes.functions:
            captured = replay().clone()
            differing += not torch.equal(captured, getattr(replay, "function", replay)())
    at.note(shapes=passes.num_shapes, differing=differing, capture=passes.capture)
    at.note(seconds_with_capture=time.monotonic() - began)


DRAWS: dict[str, Figures] = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 0},
    "penalty": {"temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05, "seed": 0},
}


def draws(at: Section, shape: str = "qwen3-8b") -> None:
    """Milliseconds of a step by how tokens are chosen, and by rows."""
    engine = _engine(at.model(shape), 16_384)
    for name, fields in DRAWS.items():
        for count in (1, 2) if at.is_tiny else (1, 8, 64):
            if not at.has_time(3):
                return
            params = SamplingParams(ignore_eos=True, **fields)
            step_ms = 1e3 * _decoding_s(engine, params, count)
            at.note(**{f"{name}, {count} rows": round(step_ms, 3)})


def _decoding_s(engine: TorchEngine, params: SamplingParams, count: int) -> float:
    """Return the seconds of a step in which so many requests decode."""

    def decode(num_tokens: int) -> float:
        words = prompt_of(engine.loaded.vocabulary)
        request = Request(prompt=words, params=replace(params, max_tokens=num_tokens), forks=False)
        began = time.perf_counter()
        engine.generate([request] * count)
        return time.perf_counter() - began

    decode(40)
    return (decode(40) - decode(8)) / 32


def training(at: Section) -> None:
    """Three steps of an adapter on the shape of Qwen3 0.6B: tokens a second, and memory."""
    from pasta_lm.learn.train import config
    from pasta_lm.learn.train.sft import seconds_of_a_pass

    max_tokens = 256 if at.is_tiny else 2048
    with TemporaryDirectory() as folder:
        _save(at.model("qwen3-0.6b"), folder)
        settings = {"learning_rate": 2e-4, "mixed_precision": True, "save": "adapter", "steps": 1}
        recipe = config.SftConfig(
            model=config.ModelConfig(base=folder),
            data=config.DataConfig(file="none", max_tokens=max_tokens),
            train=config.TrainConfig(out=f"{folder}/out", **settings),  # type: ignore[arg-type]
            lora=config.LoraConfig(),
        )
        at.note(tokens_per_s=max_tokens / seconds_of_a_pass(recipe))
    if at.device.startswith("cuda"):
        at.note(peak_bytes=torch.cuda.max_memory_allocated())


def _save(loaded: LoadedModel, folder: str) -> None:
    from pasta_lm.interpreter.limits import Limits
    from pasta_lm.models.folder import PastaConfig, save_model_folder

    config = PastaConfig(
        piece_ids=loaded.vocabulary.piece_ids, positions=loaded.positions, limits=Limits()
    )
    save_model_folder(loaded.model, loaded.vocabulary.tokenizer, Path(folder), config)


def answers(at: Section) -> None:
    """Annotated answers, sequentially and in parallel: theoretical, realised, efficiency."""
    loaded, records = at.model(), at.records()[: 2 if at.is_tiny else None]

    def stop_in_time(num_done: int, num_all: int) -> None:
        if num_done < num_all and not at.has_time(6):
            raise KeyboardInterrupt  # as from the keyboard: the pairs so far are returned

    result = replay(records, loaded, positions=loaded.positions, progress=stop_in_time)
    pairs = [
        {
            "id": pair.answer.id,
            "threads": pair.parallel.num_threads,
            "tokens": pair.parallel.num_content_tokens,
            "theoretical": pair.parallel.theoretical_speedup(pair.sequential),
            "realised": pair.parallel.realised_speedup(pair.sequential),
        }
        for pair in result.pairs
    ]
    at.note(**result.report().to_dict(has_bounds=False), num_asked=len(records), pairs=pairs)


def requests(at: Section) -> None:
    """Many requests at once: median latency, by their number."""
    rows: list[Figures] = []
    for count in (1, 2) if at.is_tiny else (1, 4, 16, 64, 128):
        if not at.has_time(10):
            return
        # The first of two equal loads captures the shapes that the second is timed with.
        report = bench(at.model(), BenchSettings(rows=(1,), requests=(count, count)))
        gc.collect()  # before the next engine reserves its cache
        rows.append({"requests": count, **report["load"][str(count)]})
        at.note(loads=rows)


# In order of value, with the seconds of each: together five minutes. Sections of one model stand
# together where they can, because it takes seconds to build. Small models are bound by launches.
SMALL = "smollm2-135m"
SECTIONS: dict[str, tuple[Callable[[Section], None], float]] = {
    "machine": (machine, 10),
    "graphs": (graphs, 30),
    "small": (partial(steps, shape=SMALL, rows=(1, 8, 64)), 25),
    "draws_small": (partial(draws, shape=SMALL), 15),
    "steps": (steps, 60),
    "draws": (draws, 25),
    "prompts": (prompts, 20),
    "kernels": (kernels, 15),
    "answers": (answers, 35),
    "requests": (requests, 35),
    "training": (training, 30),
}


# --- the file and its tables


class DeviceLost(Exception):
    """Every later call to the GPU fails in this process."""


def run(
    path: Path, settings: Figures, names: Sequence[str], *, seconds: float = 300.0,
    finished: Sequence[str] = (DONE,),
) -> None:  # fmt: skip
    """Run the sections that a file of results lacks, as long as there is time."""
    results = read(path)
    end = time.monotonic() + seconds
    for name in names:
        began, (function, budget) = time.monotonic(), SECTIONS[name]
        if results.get(name, {}).get("status") in finished or began > end:
            continue

        def write(figures: Figures, status: str = CUT, name: str = name) -> None:
            results[name] = {"status": status, **figures}
            part = path.with_suffix(".part")
            part.write_text(json.dumps({"sections": results}, indent=1) + "\n", encoding="utf-8")
            part.replace(path)  # a killed run leaves the whole older file

        print(f"{name} ...", flush=True)
        section = Section(**settings, deadline=min(end, began + budget), write=write)
        try:
            function(section)
            write(section.figures, CUT if section.was_cut else DONE)
        except Exception as exc:  # the later sections are measured all the same
            traceback.print_exc(file=sys.stdout)
            error = "".join(traceback.format_exception(exc)[-6:])
            write({**section.figures, "error": error}, FAILED)
        spent = time.monotonic() - began
        print(f"{name}: {results[name]['status']} in {spent:.0f} s", flush=True)
        _clean_up()


def _clean_up() -> None:
    gc.collect()
    if torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError as exc:
            raise DeviceLost from exc


def read(path: Path) -> dict[str, Figures]:
    """Return the sections of a file of results; none if it does not exist."""
    return json.loads(path.read_text("utf-8"))["sections"] if path.exists() else {}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", help="sections, comma-separated")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, for a CPU")
    parser.add_argument("--go-on", action="store_true", help="leave failed sections as they are")
    args, end = parser.parse_args(), time.monotonic()
    end += args.seconds
    settings = {"device": args.device, "is_tiny": args.tiny}
    finished = (DONE, FAILED, CUT) if args.go_on else (DONE,)
    names = (args.only or ",".join(SECTIONS)).split(",")
    try:
        run(args.out, settings, names, seconds=args.seconds, finished=finished)
    except DeviceLost:
        left = f"{end - time.monotonic():.0f}"
        print(f"the GPU is lost: a new process has {left} s", flush=True)
        os.execv(sys.executable, [sys.executable, *sys.argv, "--go-on", "--seconds", left])


if __name__ == "__main__":
    main()
