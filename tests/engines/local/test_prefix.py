"""Prompts that begin alike share pages: nothing but the work changes, and no page is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.scheduler import Prefixes
from pasta_lm.engines.request import Answer, Finished, Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from tests.architectures import loaded
from tests.engines.local.test_load import passes_of
from tests.engines.local.test_oracle import programs, replay
from tests.engines.local.test_pool import check_integrity
from tests.engines.local.test_scheduler import PAGE, pool_of
from tests.fakes.recording_engine import Recording, is_tied

MODEL = loaded("qwen2")


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(20, 200) for _ in range(length)]


def test_hashes_are_of_whole_pages_and_leave_the_last_token_to_compute() -> None:
    prefixes = Prefixes(pool_of(4))
    lengths = [len(prefixes.page_hashes(prompt(length))) for length in (1, 4, 5, 8, 9)]
    assert lengths == [0, 0, 1, 1, 2]
    one, other = prompt(9), prompt(9)
    other[0] += 1
    assert not set(prefixes.page_hashes(one)) & set(prefixes.page_hashes(other)), (
        "a page is known with all that stands before it"
    )


def test_the_longest_common_beginning_is_found() -> None:
    pool = pool_of(8)
    prefixes, long, short = Prefixes(pool), pool.allocate(3 * PAGE), pool.allocate(PAGE)
    hashes = prefixes.page_hashes(prompt(13))
    prefixes.computed(long, hashes)
    prefixes.computed(short, hashes[:1])
    assert prefixes.find(hashes) == (long, 3)
    assert prefixes.find([*hashes[:2], b"other"]) == (long, 2)
    assert prefixes.find([b"other"]) is None


def test_the_run_used_longest_ago_is_given_up_first() -> None:
    pool = pool_of(4)
    prefixes = Prefixes(pool)
    hashes = [prefixes.page_hashes(prompt(PAGE + 1, seed)) for seed in range(3)]
    for one in hashes:
        run = pool.allocate(PAGE)
        prefixes.computed(run, one)
        prefixes.release(run)
    assert pool.num_free_pages == 4, "what is kept is free"
    assert prefixes.find(hashes[0]) is not None, "now it is the newest"
    for _ in range(2):
        pool.allocate(PAGE)
    assert [prefixes.find(one) is not None for one in hashes] == [True, False, True]
    for _ in range(2):
        pool.allocate(PAGE)
    assert [prefixes.find(one) for one in hashes] == [None] * 3
    assert not prefixes._holders
    assert not prefixes.known


def test_a_page_that_another_run_holds_is_not_kept_twice() -> None:
    pool = pool_of(4)
    prefixes, first, second = Prefixes(pool), pool.allocate(PAGE), pool.allocate(PAGE)
    hashes = prefixes.page_hashes(prompt(PAGE + 1))
    for run in (first, second):
        prefixes.computed(run, hashes)
    prefixes.release(first)
    assert (len(pool.kept), prefixes.find(hashes)) == (0, (second, 1))
    prefixes.release(second)
    assert (pool.kept, pool.num_free_pages) == ([second], 4)


def test_a_common_beginning_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(MODEL, pool_tokens=1024, shares_prefixes=True)
    passes = passes_of(engine, monkeypatch)
    params = SamplingParams(max_tokens=3)
    common = prompt(100)
    asked = [Request(prompt=[*common, *prompt(5, seed)], params=params) for seed in (1, 2, 3)]
    answers = [engine.generate([one])[0][0] for one in asked]
    assert [answer.trace.num_cached_tokens for answer in answers] == [0, 96, 96]
    sizes = sorted(sum(size for size, _ in one) for one in passes)
    assert sizes[-3:] == [9, 9, 105]
    off = TorchEngine(MODEL, pool_tokens=1024)
    assert [off.generate([asked[0]])[0][0].trace.num_cached_tokens for _ in "ab"] == [0, 0]


def test_a_running_request_lends_its_prompt() -> None:
    engine = TorchEngine(MODEL, pool_tokens=1024, shares_prefixes=True)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    one = Request(prompt=prompt(50), params=params, forks=False)
    engine.submit(one)
    engine.step()
    second = engine.submit(one)
    answers = dict[int, Answer]()
    while engine.has_work:
        answers |= {n: e.answer for n, e in engine.step() if isinstance(e, Finished)}
    assert answers[second].trace.num_cached_tokens == 48
    assert answers[second].document == answers[0].document


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_logits_are_those_of_one_masked_pass_where_pages_are_shared(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta_lm.engines.local.scheduler.FIRST_STRETCH", 4)
    model = loaded(name)
    first, *others = programs(model, 7, name)
    common, strategies = (first.prompt * 40)[:40], list(PositionStrategy)
    plain = [replay(program, strategies[index % 3]) for index, program in enumerate(others)]
    asked = [replace(request, prompt=[*common, *request.prompt]) for request in plain]
    settings = {"pool_tokens": 360, "shares_prefixes": True}
    seen = [one for (one,) in Recording(model, **settings).run(asked)]
    num_cached = [one.answer.trace.num_cached_tokens for one in seen if one.answer]
    assert max(num_cached) >= 32
    assert max(one.worst_difference(model) for one in seen) <= 1e-4


def test_tokens_are_those_of_a_request_alone_while_pages_come_and_go() -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    starts = [prompt(20, seed) for seed in range(3)]
    asked = [
        Request(prompt=[*starts[index % 3], *prompt(9, index)], params=replace(params, seed=index))
        for index in range(12)
    ]
    recording = Recording(MODEL, pool_tokens=256, shares_prefixes=True)
    seen = [one for (one,) in recording.run(asked)]
    for index in (0, 5, 11):
        ((alone,),) = Recording(MODEL).run([asked[index]])
        is_tied(alone, seen[index], recording.engine.masks)
    check_integrity(recording.engine.pool)
    assert sum(one.answer.trace.num_cached_tokens > 0 for one in seen if one.answer) >= 3
