from __future__ import annotations

import asyncio

import pytest

from pasta_lm.engines.servers import request_pace
from pasta_lm.engines.servers.request_pace import RequestPace


def rounds(pace: RequestPace, era: int, number: int) -> list[float]:
    """Return the bound after each of some rounds in which all that may be sent is answered."""
    limits = []
    for _ in range(number):
        for _ in range(int(pace.limit)):
            pace.grow(era)
        limits.append(pace.limit)
    return limits


def test_before_a_first_refusal_the_bound_doubles_each_round() -> None:
    assert rounds(RequestPace(max_in_flight=50, first_limit=4), 0, 5) == [8, 16, 32, 50, 50]


def test_after_a_refusal_the_bound_grows_by_one_each_round() -> None:
    pace = RequestPace(max_in_flight=64, first_limit=4)
    rounds(pace, 0, 3)
    pace.shrink(0)
    assert pace.limit == 16
    assert rounds(pace, 1, 3) == pytest.approx([17, 18, 19], abs=0.2)
    assert rounds(pace, 1, 99)[-1] == 64


def test_many_refusals_at_once_halve_the_bound_once() -> None:
    async def run() -> list[float]:
        pace, limits = RequestPace(max_in_flight=64, first_limit=32), []
        async with pace.slot() as first, pace.slot() as second:
            for era in (first, second):
                pace.shrink(era)
                limits.append(pace.limit)
        async with pace.slot() as third:
            pace.shrink(third)
        return [*limits, pace.limit]

    assert asyncio.run(run()) == [16, 16, 8]


def test_the_bound_never_falls_below_one() -> None:
    pace = RequestPace(first_limit=1.5)
    for era in range(5):
        pace.shrink(era)
    assert pace.limit == 1


def test_no_more_are_in_flight_than_the_bound_allows() -> None:
    async def run() -> int:
        pace, most = RequestPace(first_limit=3), 0

        async def one() -> None:
            nonlocal most
            async with pace.slot():
                most = max(most, pace.num_in_flight)
                await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(20)))
        assert pace.num_in_flight == 0
        return most

    assert asyncio.run(run()) == 3


def test_no_request_begins_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        seen: list[str] = []

        async def sleep(delay_s: float) -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            seen.append("pause over")

        monkeypatch.setattr(request_pace, "sleep", sleep)
        pace = RequestPace()

        async def one() -> None:
            async with pace.slot():
                seen.append("began")

        pausing = asyncio.create_task(pace.pause(5))
        await asyncio.sleep(0)
        await asyncio.gather(pausing, one())
        return seen

    assert asyncio.run(run()) == ["pause over", "began"]
