"""Captured passes, without a GPU: what they read stays, and nothing in them waits."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from pasta_lm.engines import devices
from pasta_lm.engines.devices import default_dtype, on_device, unused_gpu, usable_device
from pasta_lm.engines.gpu import attention, decoder
from pasta_lm.engines.gpu.decoder import CudaGraphs, Function, PagedDecoder
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.passes.pool import Pool
from pasta_lm.engines.passes.runner import plain_logits
from pasta_lm.engines.passes.sampling import TokenMasks, draw, draw_likely
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.tags import PROMISE_OPEN, SYNC, closing_piece
from pasta_lm.models.encoded import EncodedDocument
from tests.architectures import ARCHITECTURES, build, each_of, load, loaded
from tests.engines.gpu.test_paged_decoder import requests_of
from tests.fakes.captures import Waits, capture, capture_passes
from tests.fakes.recording_engine import TOLERANCE, Recording
from tests.programs import words_of
from tests.triton_kernels import DEVICE, needs_kernels

CAPTURED = sorted({*ARCHITECTURES} - {"gpt_oss"})  # its experts wait


def prompt_of(name: str, length: int) -> list[int]:
    return random.Random(1).choices(words_of(loaded(name).vocabulary).text, k=length)


class OnDevice(TorchDispatchMode):
    """Refuses what a capture cannot hold: a tensor on the host, and on ``meta`` any wait."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_flatten((args, kwargs, out))[0] if isinstance(x, Tensor)]
        assert all(x.is_meta for x in tensors if x.dim()), f"{func} copies from the host"
        return out


@each_of(CAPTURED)
def test_what_is_captured_stays_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(function: Function) -> Function:
        with OnDevice():
            function()
        shapes.append(1)
        return function

    shapes, place, model = list[int](), torch.device("meta"), loaded(name)
    for replaced, value in {
        "graphs_of": lambda device: captured,
        "place_entries": lambda batch, entries: None,
        "attend_gathered": lambda call, q, k, v, *_: q.new_empty(*q.shape[:2], v.shape[-1]),
    }.items():
        monkeypatch.setattr(decoder, replaced, value)
    there = replace(model, model=copy.deepcopy(model.model).to(place))
    pool = Pool(there.layer_shapes, 256, dtype=torch.float32, device=place)
    masks = TokenMasks(there.vocabulary, there.eos_ids, there.vocab_size, place)
    logits = partial(plain_logits, there.model)
    passes = PagedDecoder(logits, pool, masks, num_query_heads=4)
    passes.prepare(2, 40)
    assert len(shapes) >= 2


def test_a_capture_that_would_wait_is_known_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Waits):
        capture(lambda: torch.ones(1) * float(torch.ones(1).sum()))
    began = fake_cuda(monkeypatch)
    graphs, num_calls = CudaGraphs(), []

    def waits() -> Tensor:
        num_calls.append(1)
        if torch.cuda.get_sync_debug_mode() == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return torch.ones(1)

    assert graphs(waits) is graphs(waits) is waits
    assert len(num_calls) == 2, "tried again"
    assert graphs.failure is not None
    assert not began


def test_a_captured_function_stays_as_long_as_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    began = fake_cuda(monkeypatch)
    graphs = CudaGraphs()
    for _ in range(3):
        replay = graphs(lambda: torch.ones(1))
        assert replay().tolist() == [1.0]
    assert began == ["empty", "capture"] * 3, "in a capture torch cannot give memory back"
    assert began.num_streams == 1  # type: ignore[attr-defined]


def test_a_capture_without_memory_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch)
    graphs, calls = CudaGraphs(), list[int]()

    def large() -> Tensor:
        calls.append(1)
        if len(calls) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.ones(1)

    assert graphs(large) is large
    assert graphs.failure is None
    assert graphs(lambda: torch.ones(1)).__class__.__name__ == "_Replay"


def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    class Captures(list[str]):
        num_streams = 0

    began, mode = Captures(), ["default"]

    class Graph:
        def capture_begin(self, **_: object) -> None:
            began.append("capture")

        def capture_end(self) -> None: ...

        def replay(self) -> None: ...

    class Stream:
        def __init__(self) -> None:
            began.num_streams += 1

        def wait_stream(self, stream: object) -> None: ...

    current = Stream()
    began.num_streams = 0
    for name, value in {
        "CUDAGraph": Graph, "Stream": Stream, "stream": nullcontext, "synchronize": lambda: None,
        "empty_cache": lambda: began.append("empty"), "current_stream": lambda: current, 
        "graph_pool_handle": lambda: None,
        "set_sync_debug_mode": mode.append,
        "get_sync_debug_mode": lambda: mode[-1],
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    return began


def with_blocks(name: str, length: int, num_blocks: int, positions: PositionStrategy) -> Request:
    """Return a request with a prompt of a length, whose given answer has blocks and a sync."""
    vocabulary, rng = loaded(name).vocabulary, random.Random(length)
    words = words_of(vocabulary)
    main, blocks = list[int](), list[tuple[int, ...]]()
    for _ in range(num_blocks):
        topic, closing = rng.choice(words.topic), vocabulary.piece_id(closing_piece(1))
        main += [rng.choice(words.text), vocabulary.piece_id(PROMISE_OPEN), topic, closing]
        blocks.append(tuple(rng.choices(words.text, k=rng.randint(1, 5))))
    main += [vocabulary.piece_id(SYNC), rng.choice(words.text)]
    answer = EncodedDocument(tuple(main), tuple(blocks))
    params = SamplingParams(max_tokens=answer.num_tokens + 1)
    prompt = prompt_of(name, length)
    return Request(prompt=prompt, forced=answer, positions=positions, params=params)


@pytest.mark.parametrize(
    ("length", "num_blocks", "positions"),
    [
        *((10, 17, positions) for positions in PositionStrategy),
        (300, 2, PositionStrategy.ORACLE),
        (1100, 2, PositionStrategy.CONTINUE),
    ],
)
def test_long_prompts_and_many_threads_meet_the_oracle(
    length: int, num_blocks: int, positions: PositionStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_passes(monkeypatch)
    name = "gemma2" if length == 300 else "llama"
    model = load(name, build(name, max_position_embeddings=8192))
    request = with_blocks(name, length, num_blocks, positions)
    recording = Recording(
        model, paged=True, captures=False, max_batch_tokens=280, shares_prefixes=True,
        pool_tokens=6000,
    )  # fmt: skip
    ((seen,), (again,)) = recording.run([request] * 2, preempt_every=30)
    assert max(one.worst_difference(model) for one in (seen, again)) <= TOLERANCE
    buckets = recording.engine.paged.shapes  # type: ignore[union-attr]
    assert max(bucket.num_owners for bucket in buckets) > (16 if num_blocks > 16 else 2)


@needs_kernels
@pytest.mark.parametrize("name", ["llama", pytest.param("gemma2", marks=pytest.mark.slow)])
def test_passes_through_the_kernels_meet_the_oracle(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "attend_gathered", attention.attend_split)
    model = loaded(name, DEVICE)
    seen = Recording(model, paged=True).run(requests_of(name, DEVICE, 1, f"kernels {name}"))
    assert max(one.worst_difference(model) for (one,) in seen) <= TOLERANCE


def test_passes_run_on_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_device(torch.device("cuda:1")).idx == 1  # type: ignore[attr-defined]
    depth, inner = [0], decoder.attend_gathered

    @contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        depth[0] += 1
        yield
        depth[0] -= 1

    def attend(*args: object) -> Tensor:
        assert depth[0], "a kernel is launched on another device"
        return inner(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(decoder, "on_device", entered)
    monkeypatch.setattr(decoder, "attend_gathered", attend)
    engine = TorchEngine(loaded("llama"), pool_tokens=2048, paged=True)
    engine.warm_up(2)
    engine.generate([Request(prompt=prompt_of("llama", 300), params=SamplingParams(max_tokens=3))])


def test_kernels_that_cannot_be_launched_give_a_warning_and_views(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail = MagicMock(side_effect=RuntimeError("Failed to find C compiler"))
    monkeypatch.setattr(decoder, "place_entries", fail)
    engine = TorchEngine(loaded("llama"), pool_tokens=1024, paged=True)
    assert engine.paged is None
    assert "Failed to find C compiler" in caplog.text
    engine.generate([Request(prompt=prompt_of("llama", 9), params=SamplingParams(max_tokens=3))])


def test_shapes_are_bounded_and_the_last_used_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_SHAPES", 4)
    engine = TorchEngine(loaded("llama"), pool_tokens=4096, paged=True)
    engine.generate(requests_of("llama", "cpu", 4, "bounded"))
    assert (paged := engine.paged) is not None
    assert paged.num_shapes > 4
    assert len(paged.shapes) == 4
    assert all(bucket.num_rows <= decoder.MAX_ROWS for bucket in paged.shapes)


def sorted_draw(scores: Tensor, settings: Tensor) -> int:
    """Return the token by the definition: all tokens sorted, their mass cut and summed."""
    temperature, top_p, uniform, top_k, min_p = settings.tolist()
    order = scores.sort(descending=True, stable=True)
    kept = order.values.double()[: int(top_k) or None]
    kept = kept[((kept - kept[0]) / temperature).exp() >= min_p]
    cumulated = torch.softmax((kept - kept[0]) / temperature, 0).cumsum(0)
    before = torch.cat((cumulated.new_zeros(1), cumulated[:-1]))
    last = max(1, int((before < top_p).sum())) - 1
    index = torch.searchsorted(cumulated, uniform * cumulated[last], right=True)
    return int(order.indices[min(int(index), last)])


@pytest.mark.parametrize("spread", [0.5, 3.0, 30.0])
def test_tokens_drawn_from_the_likeliest_are_those_of_a_whole_sort(spread: float) -> None:
    rng, num_sure = random.Random(f"draw {spread}"), 0
    generator = torch.Generator().manual_seed(5)
    for _ in range(60):
        scores = (torch.randn(1, 3000, generator=generator) * spread).bfloat16().float()  # ties
        scores[0, rng.sample(range(3000), rng.choice([0, 1500, 2990]))] = float("-inf")
        numbers = rng.choice([0.3, 1.0, 2.0]), rng.choice([1.0, 0.9, 0.2]), rng.random()
        cuts = rng.choice([0, 1, 50, 2000]), rng.choice([0.0, 0.0, 0.01, 0.3])
        settings = torch.tensor([*numbers, *cuts], dtype=torch.float64)
        expected = sorted_draw(scores[0], settings)
        likely = int(draw_likely(scores, settings[:, None]))
        assert int(draw(scores, settings[:, None])) == expected
        assert likely in (expected, -1)
        num_sure += likely >= 0
    assert num_sure > 20


def test_a_gpu_that_torch_cannot_use_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu, driver = tmp_path / "nvidia0", tmp_path / "version"
    assert unused_gpu(gpu, driver) is None
    gpu.touch()
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    fault = unused_gpu(gpu, driver)
    assert fault is not None
    assert "driver is 550.54.15" in fault
    assert "\n" not in fault
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert unused_gpu(gpu, driver) is None


@pytest.mark.parametrize(("has_it", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_weights_on_a_gpu_are_bfloat16_where_it_has_that(
    has_it: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = list[torch.device]()

    @contextmanager
    def inside(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(devices, "on_device", inside)
    place = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_it and current == [place])
    assert default_dtype(place) is dtype
    assert default_dtype(torch.device("cpu")) is torch.float32


def test_a_gpu_for_which_torch_has_no_kernels_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    zeros = torch.zeros

    def on_card(*size: int, device: str) -> Tensor:
        if device == "cuda":
            raise RuntimeError("CUDA error: no kernel image is available\nfor more see")
        return zeros(*size, device=device)

    monkeypatch.setattr(torch, "zeros", on_card)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert usable_device(None) == torch.device("cpu")
    assert caplog.messages == ["the GPU is not used: CUDA error: no kernel image is available"]
    with pytest.raises(UsageError, match="'cuda' cannot be used: CUDA error"):
        usable_device("cuda")


def test_cards_older_than_tritons_run_over_views_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    keys = MagicMock(device=torch.device("cuda:0"), __len__=lambda keys: 2)
    for _ in range(2):
        assert decoder.paged_decoder(MagicMock(), MagicMock(keys=[keys]), MagicMock(), 4) is None
    (message,) = caplog.messages
    assert "compute capability 7.5" in message
