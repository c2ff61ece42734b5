"""Paged passes in buckets meet the logits of the oracle, and choose the tokens of the sampler.

On a CPU with plain calls and plain torch; on a GPU with Triton kernels and CUDA graphs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_lm.engines.gpu import decoder
from pasta_lm.engines.gpu.batch import (
    NUM_LINES,
    MaskTable,
    RequestSize,
    bucket_of,
    choose_rows,
    num_splits,
    settings_of,
)
from pasta_lm.engines.gpu.decoder import CudaGraphs
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.passes.sampling import Choice, TokenMasks, choose
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.interpreter.interpreter import EVERYTHING, PLAIN_TEXT
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Document
from tests.architectures import CONTEXT, every_architecture, loaded
from tests.engines.local.test_oracle import devices, needs_gpu, programs, replay
from tests.fakes.captures import capture_passes
from tests.fakes.recording_engine import TOLERANCE, Recording
from tests.programs import words_of

STRATEGIES = list(PositionStrategy)


def requests_of(name: str, device: str, count: int, seed: str) -> list[Request]:
    """Return random programs as requests of every position strategy, some of few threads."""
    return [
        replay(program, STRATEGIES[index % len(STRATEGIES)], max_threads=(None, 2)[index % 2])
        for index, program in enumerate(programs(loaded(name, device), count, seed))
    ]


def documents(answers: list[list[Answer]]) -> list[list[Document]]:
    return [[answer.document for answer in samples] for samples in answers]


@devices
@every_architecture
def test_programs_in_buckets_meet_the_logits_of_one_masked_pass(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_faked = device == "cpu" and name != "gpt_oss"  # its experts wait
    if is_faked:
        capture_passes(monkeypatch)
    model = loaded(name, device)
    requests = requests_of(name, device, 5, f"paged {name}")
    recording = Recording(model, paged=True, captures=not is_faked, max_batch_tokens=24)
    seen = recording.run(requests, preempt_every=9)
    assert max(one.worst_difference(model) for (one,) in seen) <= TOLERANCE
    buckets = recording.engine.paged.shapes  # type: ignore[union-attr]
    assert any(bucket.num_rows > 1 for bucket in buckets)


@devices
def test_preempted_samples_meet_the_same_logits(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "MAX_REQUEST_ROWS", 4)  # some passes between run over views
    model = loaded("llama", device)
    params = SamplingParams(max_tokens=60, temperature=1.0, n=3, seed=3)
    prompts = [one.prompt for one in requests_of("llama", device, 3, "moved")]
    requests = [Request(prompt=prompt, params=params) for prompt in prompts]
    seen = Recording(model, paged=True).run(requests, preempt_every=7)
    everything = [one for samples in seen for one in samples]
    assert all(one.num_preemptions > 3 for one in everything)
    assert max(one.worst_difference(model) for one in everything) <= TOLERANCE


@devices
def test_prompts_and_requests_of_many_rows_run_over_views(device: str) -> None:
    model = loaded("gemma2", device)
    words = words_of(model.vocabulary).text
    params = SamplingParams(max_tokens=5, temperature=1.0, seed=0, ignore_eos=True)
    requests = [
        Request(
            prompt=random.Random(1).choices(words, k=size), params=replace(params, n=n), forks=False
        )
        for size, n in ((decoder.MAX_ROWS + 45, 2), (9, decoder.MAX_REQUEST_ROWS + 1))
    ]
    recording = Recording(model, paged=True, chunk_tokens=20)
    seen = [one for samples in recording.run(requests) for one in samples]
    assert max(one.worst_difference(model) for one in seen) <= TOLERANCE
    assert {bucket.num_rows for bucket in recording.engine.paged.shapes} == {1, 2}  # type: ignore[union-attr]


def test_passes_of_many_requests_are_captured_too() -> None:
    model = loaded("llama")
    requests = [
        Request(prompt=one.prompt[:4], params=SamplingParams(max_tokens=3), forks=False)
        for one in requests_of("llama", "cpu", 70, "many")
    ]
    engine = TorchEngine(model, pool_tokens=8192, paged=True)
    answers = engine.generate(requests)
    assert max(bucket.num_rows for bucket in engine.paged.shapes) == 128  # type: ignore[union-attr]
    plain = TorchEngine(model, pool_tokens=8192, paged=False).generate(requests)
    assert documents(answers) == documents(plain)


@devices
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=30),
        SamplingParams(max_tokens=30, temperature=0.8, top_k=7, top_p=0.9, seed=1, n=2),
        SamplingParams(max_tokens=30, temperature=0.7, repetition_penalty=1.3, seed=3),
        SamplingParams(max_tokens=20, logprobs=2, temperature=1.0, seed=4),
    ],
    ids=["greedy", "drawn", "penalty", "logprobs"],
)
def test_tokens_are_those_of_a_pass_over_views(
    params: SamplingParams, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu":
        capture_passes(monkeypatch)
    model, is_fast = loaded("qwen2", device), device != "cpu"
    prompts = [one.prompt for one in requests_of("qwen2", device, 3, "tokens")]
    requests = [Request(prompt=prompt, params=params) for prompt in [*prompts, prompts[0] * 9]]
    found, expected = (
        TorchEngine(model, pool_tokens=8192, paged=paged, captures=is_fast).generate(requests)
        for paged in (True, False)
    )
    assert documents(found) == documents(expected)
    if params.logprobs is not None:
        assert found[0][0].logprobs


@devices
@pytest.mark.parametrize("forks", [False, True])
def test_guesses_leave_the_tokens_of_every_thread_as_they_are(
    forks: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "MAX_REQUEST_ROWS", 3)  # some passes between run over views
    model = loaded("llama", device)
    prompts = [one.prompt for one in requests_of("llama", device, 3, "guess")]
    params = SamplingParams(max_tokens=60, temperature=1.0 if forks else 0.0, seed=11)
    requests = [Request(prompt=prompt, params=params, forks=forks) for prompt in prompts]
    plain = TorchEngine(model, pool_tokens=2048, paged=True).generate(requests)
    if forks:
        assert any(one.document.blocks for (one,) in plain)
    rng = random.Random(2)
    text = [model.vocabulary.encode_text(one.document.plain_text) for (one,) in plain]

    def guess(written: Sequence[int]) -> Sequence[int]:
        ids = rng.choice(text)  # now and then right
        first = next((i for i, token in enumerate(ids) if token == written[-1]), 0)
        return ids[first + 1 : first + 4]

    guessed = TorchEngine(model, pool_tokens=2048, paged=True).generate(
        [replace(request, guesser=guess) for request in requests]
    )
    assert documents(guessed) == documents(plain)


@given(
    seed=st.integers(0, 10**6),
    temperatures=st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.0]), min_size=1, max_size=5),
    top_k=st.sampled_from([None, 1, 3, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
)
@settings(max_examples=60)
def test_rows_are_chosen_as_the_sampler_chooses(
    seed: int, temperatures: list[float], top_k: int | None, top_p: float
) -> None:
    model, rng = loaded("llama"), random.Random(seed)
    masks = TokenMasks(model.vocabulary, model.eos_ids, model.vocab_size, model.device)
    table = MaskTable(masks, model.device)
    generator = torch.Generator().manual_seed(seed)
    # Few different numbers: ties are common.
    logits = torch.randint(-6, 7, (8, model.vocab_size), generator=generator).float() / 2
    rows = sorted(rng.sample(range(8), len(temperatures)))
    choices = [
        Choice(
            SamplingParams(
                temperature=one, top_k=top_k, top_p=top_p, min_p=rng.choice([0.0, 0.3]), seed=0
            ),
            rng.choice([PLAIN_TEXT, EVERYTHING]),
            rng.random(),
            fork_bias=rng.choice([0.0, 2.0]),
        )
        for one in temperatures
    ]
    lines = torch.zeros(NUM_LINES, len(rows), dtype=torch.float64)
    lines.numpy().T[:] = settings_of(choices, table)
    found = choose_rows(logits[rows], lines, table, draws=any(temperatures))
    assert found.tolist() == choose(logits[rows], choices, masks)


@given(
    sizes=st.lists(
        st.builds(RequestSize, st.integers(1, 40), st.integers(1, 300), st.integers(1, 90)),
        min_size=1,
        max_size=9,
    ),
    group=st.sampled_from([1, 3, 4, 8, 71]),
)
def test_a_bucket_holds_its_requests(sizes: list[RequestSize], group: int) -> None:
    bucket = bucket_of(sizes, group)
    assert bucket.num_rows >= sum(one.num_rows for one in sizes) > bucket.num_rows // 2
    assert bucket.num_requests >= len(sizes)
    assert bucket.num_pages >= max(one.num_pages for one in sizes)
    assert bucket.num_owners >= max(one.num_owners for one in sizes)
    assert bucket.num_blocks >= sum(-(-one.num_rows // bucket.block_rows) for one in sizes)
    assert bucket.block_rows == 1 or bucket.block_rows * group <= 32
    splits = num_splits(bucket, 8, 16)
    assert splits & (splits - 1) == 0


def test_one_growing_response_needs_few_buckets() -> None:
    sizes = [
        RequestSize(rows, pages, owners)
        for rows in range(1, 17)
        for pages in range(1, 129)
        for owners in range(2, 17)
    ]
    assert len({bucket_of([size], 4) for size in sizes}) <= 10


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.6, "top_p": 0.9}])
def test_all_shapes_of_a_response_with_the_models_settings_can_be_made_before_it_begins(
    sampling: dict[str, float],
) -> None:
    model = replace(loaded("llama"))
    model.sampling = sampling  # type: ignore[misc]
    engine = TorchEngine(model, pool_tokens=CONTEXT, paged=True)
    engine.warm_up(16)
    before, num_shapes = set(engine.paged.shapes), engine.num_shapes  # type: ignore[union-attr]
    (program,) = requests_of("llama", "cpu", 1, "warm")
    params = SamplingParams(max_tokens=20, seed=0, **sampling)  # type: ignore[arg-type]
    engine.generate([Request(prompt=program.prompt, params=params, forks=False)])
    assert engine.num_shapes == num_shapes
    engine.generate([program])
    after = set(engine.paged.shapes)  # type: ignore[union-attr]
    assert {bucket for bucket in after if bucket.num_rows <= 16} == before


@pytest.mark.gpu
@needs_gpu
def test_a_graph_gives_what_the_function_gives_and_an_uncapturable_one_still_runs() -> None:
    x = torch.zeros(4, device="cuda")
    graphs = CudaGraphs()
    with torch.inference_mode():  # as in an engine, whose captures may have come first
        captured = graphs(lambda: (x + 1).long())
        x.copy_(torch.arange(4.0))
        assert captured().tolist() == [1, 2, 3, 4]
        assert graphs.failure is None
        waits = graphs(lambda: x * float(x.sum()))
        assert graphs.failure is not None
        assert waits().tolist() == [0.0, 6.0, 12.0, 18.0]
