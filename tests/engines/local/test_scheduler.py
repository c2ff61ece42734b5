from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pasta_lm.engines.guesses import prompt_lookup
from pasta_lm.engines.local import scheduler as scheduling
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.scheduler import Scheduler, Ticket
from pasta_lm.engines.passes.pool import LayerShape, Pool
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import parse
from tests.architectures import build, load, loaded
from tests.engines.local.test_oracle import programs, replay
from tests.fakes.guessers import knowing
from tests.fakes.recording_engine import decoded

PAGE = 4


def pool_of(num_pages: int) -> Pool:
    shape, cpu = LayerShape(1, 1, 1), torch.device("cpu")
    return Pool([shape], num_pages * PAGE, dtype=torch.float32, device=cpu, page_size=PAGE)


@pytest.fixture(autouse=True)
def no_first_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "FIRST_STRETCH", 0)


def running(scheduler: Scheduler) -> list[int]:
    return [ticket.arrival for ticket in scheduler.schedule()]


def test_a_request_is_admitted_when_its_prompt_and_a_first_stretch_are_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduling, "FIRST_STRETCH", PAGE)
    scheduler = Scheduler(pool_of(4))
    tickets = [scheduler.submit(PAGE, 4 * PAGE) for _ in range(3)]
    assert not scheduler.has_room(1, 1), "the third waits"
    assert running(scheduler) == [0, 1]
    assert (len(scheduler.running), len(scheduler.waiting)) == (2, 1)
    scheduler.release(tickets[0])
    assert running(scheduler) == [1, 2]


def test_requests_are_admitted_in_the_order_in_which_they_came() -> None:
    scheduler = Scheduler(pool_of(3))
    scheduler.submit(2 * PAGE, 2 * PAGE)
    scheduler.submit(2 * PAGE, 2 * PAGE)
    scheduler.submit(1, PAGE)
    assert running(scheduler) == [0], "the small one does not overtake"


def test_a_request_larger_than_the_pool_is_refused_with_both_numbers() -> None:
    with pytest.raises(RequestError, match=r"can need 17 cache entries .* the pool holds 16"):
        Scheduler(pool_of(4)).submit(5, 17)
    assert Scheduler(pool_of(4)).submit(5, 16).arrival == 0


def test_the_youngest_makes_room_first_and_comes_back_first() -> None:
    scheduler = Scheduler(pool_of(4))
    tickets = [scheduler.submit(PAGE, 4 * PAGE) for _ in range(5)]
    assert running(scheduler) == [0, 1, 2, 3]
    assert scheduler.reserve_pages(tickets[0], 3 * PAGE)
    assert [t.num_preemptions for t in tickets] == [0, 0, 1, 1, 0]
    assert running(scheduler) == [0, 1]
    scheduler.release(tickets[0])
    assert running(scheduler) == [1, 2, 3, 4], "in order of arrival, the preempted ones first"


def test_the_youngest_preempts_itself_rather_than_an_older_one() -> None:
    scheduler = Scheduler(pool_of(3))
    old, young = (scheduler.submit(PAGE, 3 * PAGE) for _ in range(2))
    assert running(scheduler) == [0, 1]
    assert scheduler.reserve_pages(old, 2 * PAGE)
    assert not scheduler.reserve_pages(young, 2 * PAGE)
    assert (old.num_preemptions, young.num_preemptions) == (0, 1)
    assert young.run is None
    assert young.num_computed == 0


def test_the_oldest_can_always_grow_to_all_that_it_can_need() -> None:
    scheduler = Scheduler(pool_of(5))
    tickets = [scheduler.submit(PAGE, 5 * PAGE) for _ in range(5)]
    assert running(scheduler) == [0, 1, 2, 3, 4]
    for num_entries in range(PAGE, 5 * PAGE + 1):
        assert scheduler.reserve_pages(tickets[0], num_entries)
    assert tickets[0].num_preemptions == 0
    assert len(scheduler.running) == 1


def test_a_ticket_that_was_preempted_in_this_pass_is_not_yielded() -> None:
    scheduler = Scheduler(pool_of(3))
    for _ in range(3):
        scheduler.submit(PAGE, 3 * PAGE)
    seen: list[Ticket] = []
    for ticket in scheduler.schedule():
        seen.append(ticket)
        assert scheduler.reserve_pages(ticket, 2 * PAGE) == (ticket.arrival == 0)
    assert [ticket.arrival for ticket in seen] == [0, 1]


def test_only_so_many_requests_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "MAX_RUNNING", 2)
    scheduler = Scheduler(pool_of(8))
    for _ in range(4):
        scheduler.submit(1, PAGE)
    assert running(scheduler) == [0, 1]


@pytest.mark.parametrize("when", ["waiting", "running", "preempted"])
def test_a_ticket_can_be_released_in_every_state(when: str) -> None:
    pool = pool_of(2)
    scheduler = Scheduler(pool)
    first, second = (scheduler.submit(PAGE, 2 * PAGE) for _ in range(2))
    if when != "waiting":
        assert running(scheduler) == [0, 1]
    if when == "preempted":
        assert scheduler.reserve_pages(first, 2 * PAGE)
        assert second.run is None
    scheduler.release(second)
    scheduler.release(first)
    assert (len(pool.runs), len(scheduler.running), len(scheduler.waiting)) == (0, 0, 0)


QWEN = load("qwen2", build("qwen2").double())
PROMPT = QWEN.vocabulary.encode_prompt("the dog and the cat")
SAMPLED = SamplingParams(max_tokens=200, temperature=1.0, seed=3)


def given(seed: object) -> Request:
    (program,) = programs(QWEN, 1, f"{seed}", num_parts=12)
    return replay(program, PositionStrategy.PREDICT)


@pytest.mark.parametrize("max_rows", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_answer_has_the_same_tokens(max_rows: int, seed: int) -> None:
    request = Request(prompt=PROMPT, params=replace(SAMPLED, seed=seed))
    (answer,), expected = decoded(QWEN, [request])
    (bounded,), outcomes = decoded(QWEN, [request], max_rows=max_rows)
    assert outcomes == expected
    assert len(answer.trace.threads) > 2
    assert bounded.trace.forward_passes >= answer.trace.forward_passes


STOPPED = parse(
    'A<promise topic="t" tokens="1"/><async> one two three four five six seven eight nine</async>'
    '<promise topic="u" tokens="1"/><async> and STOP it</async> and so on and so on and so on'
)


@pytest.mark.parametrize("max_tokens", [11, 23, 38, 61])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_limit_on_all_tokens_cuts_every_thread_at_the_same_token(
    max_tokens: int, is_stopped: bool
) -> None:
    stop, forced = ("STOP",) * is_stopped, QWEN.vocabulary.encode_document(STOPPED)
    params = replace(SAMPLED, max_tokens=max_tokens, ignore_eos=True, stop=stop)
    request = Request(prompt=PROMPT, params=params, forced=forced if is_stopped else None)
    (answer,), expected = decoded(QWEN, [request])
    assert decoded(QWEN, [request] * 8, max_rows=1)[1] == expected * 8
    guessed = replace(request, guesser=knowing(answer, "both"))
    assert decoded(QWEN, [guessed], max_rows=1)[1] == expected
    assert is_stopped or answer.finish_reason == "length"


def test_threads_go_one_after_the_other_in_reading_order_in_passes_of_one_row() -> None:
    (answer,), _ = decoded(QWEN, [given("inline")], max_rows=1)
    steps = [token.fed_step for token in answer.trace.tokens if token.fed_step is not None]
    num_blocks = len(answer.trace.threads) - 1
    assert num_blocks >= 3
    assert len(steps) - len(set(steps)) <= num_blocks, "only an end is fed beside another thread"
    ends = [thread.end_step or 0 for thread in answer.trace.threads[1:]]
    assert ends == sorted(ends)


@pytest.mark.parametrize("max_rows", [1, 4, 7])
def test_no_pass_has_more_rows_and_every_response_has_one(max_rows: int) -> None:
    rows: list[int] = []  # of this pass, the numbers of the responses
    requests = [given(index) for index in range(4)]
    engine = TorchEngine(
        QWEN, pool_tokens=4096, max_rows=max_rows, captures=False,
        on_logits=lambda response, live, choice, logits: rows.append(id(response)),
    )  # fmt: skip
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        decoding = {
            id(response)
            for active in engine.active.values()
            for response in active.responses
            if any(response.interpreter.runnable()) and active.has_decoded
        }
        rows.clear()
        engine.step()
        assert decoding <= {*rows}
        assert len(rows) <= max(max_rows, len(requests))


def test_programs_among_others_with_guesses_and_preemption_stay_the_same() -> None:
    model = loaded("gemma3")
    many = enumerate(programs(model, 6, "pays"))
    plain = [replay(program, list(PositionStrategy)[index % 3]) for index, program in many]
    _, expected = decoded(model, plain)
    assert decoded(model, plain, max_rows=1)[1] == expected
    guessed = [replace(request, guesser=prompt_lookup) for request in plain]
    assert decoded(model, guessed, max_rows=8, preempt_every=5)[1] == expected
