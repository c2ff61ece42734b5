"""Many requests: no prompt stalls the others, waiting costs nothing, memory stays where it was."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.passes.runner import Batch
from pasta_lm.engines.request import Request, SamplingParams, TextDelta
from pasta_lm.language.tags import PROMISE_OPEN, SYNC, closing_piece
from pasta_lm.models.encoded import EncodedDocument
from tests.architectures import loaded
from tests.programs import words_of

MODEL = loaded("qwen2")
WORDS = words_of(MODEL.vocabulary)
TEXT = tuple(WORDS.text[:8])


def passes_of(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """Return a list that gets, for each pass, how many tokens and entries each request has."""
    run, passes = engine.run_batch, list[list[tuple[int, int]]]()

    def watched(batch: Batch) -> torch.Tensor:
        passes.append([(part.stop - part.start, part.num_entries) for part in batch.slices])
        return run(batch)

    monkeypatch.setattr(engine, "run_batch", watched)
    return passes


def replay(main: tuple[int, ...], *blocks: tuple[int, ...]) -> Request:
    forced = EncodedDocument(main, blocks)
    params = SamplingParams(max_tokens=forced.num_tokens + 1)
    return Request(prompt=TEXT, forced=forced, params=params)


def promise(units: int = 1) -> tuple[int, ...]:
    vocabulary = MODEL.vocabulary
    closing = vocabulary.piece_id(closing_piece(units))
    return (vocabulary.piece_id(PROMISE_OPEN), WORDS.topic[0], closing)


def test_a_long_prompt_is_computed_in_parts_beside_threads_that_decode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = TorchEngine(MODEL, pool_tokens=2048, chunk_tokens=16)
    passes = passes_of(engine, monkeypatch)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    short = engine.submit(Request(prompt=TEXT, params=params, forks=False))
    engine.step()
    long = engine.submit(Request(prompt=TEXT * 50, params=params, forks=False))
    wrote, first = 0, None
    while first is None:
        events = engine.step()
        wrote += any(n == short and isinstance(event, TextDelta) for n, event in events)
        first = next((n for n, event in events if n == long and isinstance(event, TextDelta)), None)
    sizes = [sum(size for size, _ in one) for one in passes[1:]]
    assert max(sizes) == 16 + 1, "no pass has more than the part and the thread that decodes"
    assert sizes.count(17) == 400 // 16
    assert all(one[0][0] == 1 for one in passes[1:]), "the other thread decodes in every pass"
    assert wrote >= 5


def test_a_pass_is_shared_by_prompts_and_one_that_yields_tokens_carries_a_chunk_of_long_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = TorchEngine(MODEL, pool_tokens=2048, max_batch_tokens=64, chunk_tokens=32)
    passes = passes_of(engine, monkeypatch)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    engine.submit(Request(prompt=TEXT * 50, params=params, forks=False))
    engine.step()
    for count in (40, 1):
        engine.submit(Request(prompt=TEXT * count, params=params, forks=False))
    engine.step()
    engine.step()
    sizes = [[size for size, _ in one] for one in passes]
    assert sizes == [[64], [21, 11, len(TEXT)], [16, 16, 1]]


@pytest.mark.parametrize("num_waiting", [0, 1, 12])
def test_a_thread_that_waits_at_a_sync_adds_no_row(
    num_waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TorchEngine(MODEL, pool_tokens=8192)
    passes = passes_of(engine, monkeypatch)
    sync = MODEL.vocabulary.piece_id(SYNC)
    engine.submit(replay(TEXT * 6))
    for _ in range(num_waiting):  # main waits, and one block decodes
        engine.submit(replay((*promise(), sync), TEXT * 4))
    for _ in range(16):
        engine.step()
    states = [
        thread.state.value
        for active in engine.active.values()
        for response in active.responses
        for thread in response.interpreter.threads
    ]
    assert states.count("waiting") == num_waiting
    assert sum(size for size, _ in passes[-1]) == 1 + num_waiting == states.count("running")


def test_work_of_a_step_is_linear_in_context(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(MODEL, pool_tokens=2048)
    passes = passes_of(engine, monkeypatch)
    engine.generate([replay(TEXT * 20)])
    decoding = passes[1:]
    assert [size for one in decoding for size, _ in one] == [1] * len(decoding)
    entries = [num for one in decoding for _, num in one]
    assert entries == list(range(len(TEXT) + 1, len(TEXT) + 1 + len(decoding)))


def held_after(engine: TorchEngine, num_responses: int) -> int:
    """Return the bytes that Python holds after so many more responses, by twenty at a time."""
    for _ in range(num_responses // 20):
        for seed in range(20):
            params = SamplingParams(max_tokens=5, temperature=1.0, seed=seed)
            engine.submit(Request(prompt=(*TEXT, *TEXT, 20 + seed, *TEXT), params=params))
        while engine.has_work:
            engine.step()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("num_responses", [200, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shares_prefixes", [False, True])
def test_finished_responses_leave_memory_where_it_was(
    num_responses: int, shares_prefixes: bool
) -> None:
    engine = TorchEngine(MODEL, pool_tokens=1024, shares_prefixes=shares_prefixes)
    tracemalloc.start()
    try:
        before = held_after(engine, 100)  # masks and hashes of all prompts are there
        after = held_after(engine, num_responses)
    finally:
        tracemalloc.stop()
    assert engine.pool.num_free_pages == engine.pool.num_pages
    assert not engine.unread
    # Python's own tables take some tens of kilobytes more, depending on the tests before.
    assert after - before < 1000 * num_responses, "a response has thousands of bytes"
