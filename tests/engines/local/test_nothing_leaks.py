"""Pages, tickets and requests are all back, however a response ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.passes.runner import Batch
from pasta_lm.engines.request import Answer, Failed, Finished, Request, SamplingParams
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.positions import PositionStrategy
from tests.architectures import loaded
from tests.engines.local.test_pool import check_integrity
from tests.fakes.recording_engine import Recording, is_tied

MODEL = loaded("qwen2")
PAGE = 16
SAMPLED = SamplingParams(max_tokens=24, temperature=1.0, seed=1)


def request(text: str = "three tips", **changes: object) -> Request:
    prompt = MODEL.vocabulary.encode_prompt(text)
    return Request(prompt=prompt, params=replace(SAMPLED, **changes))  # type: ignore[arg-type]


def engine(**settings: int) -> TorchEngine:
    return TorchEngine(MODEL, **{"pool_tokens": 512, **settings})  # type: ignore[arg-type]


def assert_empty(engine: TorchEngine) -> None:
    assert not engine.has_work
    assert engine.pool.runs == []
    assert engine.pool.num_free_pages == engine.pool.num_pages
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting
    assert engine.step() == []


def num_steps(given: Request) -> int:
    one, steps = engine(), 0
    one.submit(given)
    while one.has_work:
        one.step()
        steps += 1
    return steps


@pytest.mark.parametrize("positions", [PositionStrategy.PREDICT, PositionStrategy.CONTINUE])
def test_nothing_is_left_when_a_response_is_aborted_at_any_step(
    positions: PositionStrategy,
) -> None:
    given = replace(request(n=2), positions=positions)
    for when in range(num_steps(given)):
        one = engine(max_batch_tokens=3)
        number = one.submit(given)
        for _ in range(when):
            one.step()
        events = [event for event in one.cancel(number) if isinstance(event, Finished)]
        assert all(event.answer.finish_reason == "abort" for event in events)
        assert_empty(one)


def test_others_go_on_as_if_the_aborted_one_had_never_been() -> None:
    others = [request("the dog"), request("a", seed=4)]
    expected = [answer.document for (answer,) in engine().generate(others)]
    for when in (0, 1, 5, 12):
        one = engine()
        doomed = one.submit(request(n=2))
        numbers = [one.submit(other) for other in others]
        found: dict[int, Answer] = {}
        for step in range(100):
            if step == when:
                one.cancel(doomed)
            events = [(n, e.answer) for n, e in one.step() if isinstance(e, Finished)]
            found.update(events)
        assert [found[number].document for number in numbers] == expected
        assert_empty(one)


def test_aborting_twice_or_what_never_was_does_nothing() -> None:
    one = engine()
    number = one.submit(request())
    assert one.cancel(number)
    assert one.cancel(number) == one.cancel(99) == []


def test_streams_that_are_read_in_turns_lose_nothing() -> None:
    requests = [request(), request("the dog", n=2), request("a", seed=3)]
    expected = [[type(event) for event in engine().stream(given)] for given in requests]
    one = engine()
    streams = [one.stream(given) for given in requests]
    found: list[list[type]] = [[], [], []]
    for step in range(400):
        event = next(streams[step % 3], None)
        if event is not None:
            found[step % 3].append(type(event))
        if step == 40:
            one.generate([request("go on")])  # while they are open
    assert found == expected
    assert_empty(one)


class BrokenModelError(Exception):
    """What the tests throw inside the runner."""


def break_pass(one: TorchEngine, when: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one pass of an engine fail, counted from 1; None: every pass."""
    run: Callable[[Batch], torch.Tensor] = one.run_batch
    count = itertools.count(1)

    def broken(batch: Batch) -> torch.Tensor:
        if when in (None, next(count)):
            raise BrokenModelError
        return run(batch)

    monkeypatch.setattr(one, "run_batch", broken)


@pytest.mark.parametrize("when", [1, 2, 7])
def test_an_error_in_a_pass_frees_everything_and_the_engine_still_works(
    when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(max_batch_tokens=3)
    break_pass(one, when, monkeypatch)
    with pytest.raises(BrokenModelError):
        one.generate([request("the dog", n=2)])
    assert_empty(one)
    assert one.generate([request()])[0][0].document == engine().generate([request()])[0][0].document


class Breaks:
    """What breaks one request from a step on; the others must not notice."""

    def __init__(self, one: TorchEngine, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.active = one.active[number]
        self.engine = one
        self.patch = monkeypatch

    def forward(self) -> None:
        run, own = self.engine.run_batch, self.active.ticket.run

        def broken(batch: Batch) -> torch.Tensor:
            if any(part.run is own for part in batch.slices):
                raise BrokenModelError
            return run(batch)

        self.patch.setattr(self.engine, "run_batch", broken)

    def planning(self) -> None:
        self.patch.setattr(self.active.responses[-1], "feed", self.fail)

    def interpreting(self) -> None:
        self.patch.setattr(self.active.responses[-1], "take", self.fail)

    def fail(self, *_: object, **__: object) -> None:
        raise BrokenModelError


@pytest.mark.parametrize("place", ["forward", "planning", "interpreting"])
@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("when", [0, 3])
def test_an_error_ends_only_the_request_that_it_concerns(
    place: str, broken: int, when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [request(), request("the dog", n=2), request("a", seed=3)]
    alone = [engine().generate([one])[0] for one in asked]
    one = engine()
    numbers = [one.submit(given) for given in asked]
    events = [event for _ in range(when) for event in one.step()]
    breaks = Breaks(one, numbers[broken], monkeypatch)
    events += one.step() if place == "forward" and when == 0 else []  # it has its pages from here
    getattr(breaks, place)()
    while one.has_work:
        events += one.step()
    failed = [(number, type(event.error)) for number, event in events if isinstance(event, Failed)]
    assert failed == [(numbers[broken], BrokenModelError)]
    for index, number in enumerate(numbers):
        ends = [event for at, event in events if at == number and isinstance(event, Finished)]
        ends.sort(key=lambda event: event.sample)
        expected = [] if index == broken else [answer.document for answer in alone[index]]
        assert [event.answer.document for event in ends] == expected
    assert_empty(one)


@pytest.mark.parametrize("when", [1, 2, 7])
def test_a_pass_that_fails_once_is_run_again_request_by_request(
    when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [request(), request("the dog", n=2)]
    alone = [engine().generate([one])[0] for one in asked]
    one = engine()
    break_pass(one, when, monkeypatch)
    found = one.generate(asked)
    assert [[one.document for one in row] for row in found] == [
        [one.document for one in row] for row in alone
    ]


@pytest.mark.parametrize("all_fail", [True, False])
def test_a_stream_raises_the_error_that_ended_it_and_the_others_go_on_or_learn_of_it(
    all_fail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine()
    first, second = one.stream(request()), one.stream(request("the dog"))
    next(first)
    next(second)
    if all_fail:
        break_pass(one, None, monkeypatch)
    else:
        Breaks(one, min(one.active), monkeypatch).forward()
    with pytest.raises(BrokenModelError):
        list(first)
    last = list(second)[-1]
    assert isinstance(last, Finished)
    assert (last.answer.finish_reason == "abort") is all_fail
    assert_empty(one)


def test_an_error_while_a_pass_is_planned_frees_everything_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = engine()
    one.submit(request(n=2))
    for _ in range(3):
        one.step()
    with monkeypatch.context() as patch:
        patch.setattr(one.scheduler, "reserve_pages", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            one.step()
    assert_empty(one)


def test_when_a_later_request_is_refused_the_earlier_ones_are_taken_back() -> None:
    one = engine()
    with pytest.raises(RequestError):
        one.generate([request(), request(max_tokens=10_000)])
    assert_empty(one)


SMALL = SamplingParams(max_tokens=20, temperature=1.0)
ROOM_FOR_TWO = 2 * 2 * PAGE


@pytest.fixture
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pasta_lm.engines.local.scheduler.FIRST_STRETCH", 2)


def many(count: int) -> list[Request]:
    prompts = ["a", "the dog", "go on", "tips"]
    strategies = [PositionStrategy.PREDICT, PositionStrategy.CONTINUE]
    return [
        Request(
            prompt=MODEL.vocabulary.encode_prompt(prompts[seed % 4]),
            params=replace(SMALL, seed=seed),
            positions=strategies[seed % 2],
        )
        for seed in range(count)
    ]


@pytest.mark.usefixtures("short_stretches")
def test_two_hundred_responses_all_finish_on_a_pool_for_two() -> None:
    recording = Recording(MODEL, pool_tokens=ROOM_FOR_TWO)
    requests = many(200)
    assert max(len(r.prompt) for r in requests) + 20 > PAGE, "each needs two pages"
    seen = [one for (one,) in recording.run(requests)]
    assert_empty(recording.engine)
    assert all(one.answer and one.answer.finish_reason in ("stop", "length") for one in seen)
    assert sum(one.num_preemptions for one in seen) > 20
    for index in range(0, 200, 25):
        ((alone,),) = Recording(MODEL).run([requests[index]])
        is_tied(alone, seen[index], recording.engine.masks)


@pytest.mark.usefixtures("short_stretches")
def test_the_oldest_is_never_preempted_and_always_takes_part() -> None:
    one = engine(pool_tokens=ROOM_FOR_TWO)
    numbers = [one.submit(given) for given in many(30)]
    tickets = {number: one.active[number].ticket for number in numbers}
    while one.has_work:
        oldest = min(one.active)
        preemptions = tickets[oldest].num_preemptions
        computed = tickets[oldest].num_computed
        one.step()
        check_integrity(one.pool)
        assert tickets[oldest].num_preemptions == preemptions
        if oldest in one.active:
            assert tickets[oldest].num_computed > computed
    assert sum(ticket.num_preemptions for ticket in tickets.values()) > 5
    assert tickets[numbers[0]].num_preemptions == 0
