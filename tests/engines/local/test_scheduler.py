from __future__ import annotations

import pytest
import torch

from pasta_lm.engines.local import scheduler as scheduling
from pasta_lm.engines.local.pool import LayerShape, Pool
from pasta_lm.engines.local.scheduler import Scheduler, Ticket
from pasta_lm.errors import RequestError

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


def test_only_so_many_requests_run_at_once() -> None:
    scheduler = Scheduler(pool_of(8), max_running=2)
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
