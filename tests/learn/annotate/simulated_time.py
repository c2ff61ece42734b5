"""Annotation runs by a clock of their own, in which waiting takes no time.

Time passes only where everybody waits, and then at once: what is measured is the waiting, and
nothing of the machine. Rows are read and written for real; the server is simulated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from random import Random
from selectors import DefaultSelector, SelectorKey
from typing import Any, NamedTuple, TypeVar

import pytest

from pasta_lm.engines.servers.request_pace import HttpReply, Pace, RetryPolicy
from pasta_lm.learn.annotate import run as module
from pasta_lm.learn.chat import client, pool
from tests.fakes.scripted_server import Faults, completion
from tests.fakes.scripted_teacher import teacher_by_rule
from tests.learn.annotate.runs import recipe

T = TypeVar("T")
TIME_OUT = 3.0
"""Of a request, in latencies."""


class Clock(DefaultSelector):
    """What an event loop waits with; it waits for nothing and says how long it would have been."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout:
            self.now += timeout
        return found


def run_by(clock: Clock, main: Coroutine[Any, Any, T]) -> T:
    def loop_of_clock() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(clock)
        loop.time = lambda: clock.now  # type: ignore[method-assign]
        return loop

    with asyncio.Runner(loop_factory=loop_of_clock) as runner:
        return runner.run(main)


class Simulated:
    """A server without a socket, which fails as the scripted one does."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._play = teacher_by_rule()
        self.num_requests = self.num_in_flight = 0

    async def post(self, asked: Mapping[str, Any]) -> HttpReply:
        is_full = self.num_in_flight >= (self._faults.max_in_flight or 1000)
        outcome = "too_many" if is_full else self._faults.draw(self.num_requests)
        self.num_requests += 1
        self.num_in_flight += 1
        try:
            await asyncio.sleep(1000 if outcome == "hang" else self._faults.latency_of(outcome))
        finally:
            self.num_in_flight -= 1
        if outcome in ("too_many", "server_error"):
            return HttpReply(429 if outcome == "too_many" else 500, {}, b"{}")
        data = json.dumps(completion(self._play(asked), asked, "scripted")).encode()
        return HttpReply(200, {}, data if outcome == "ok" else data[:40])

    async def close(self) -> None:
        pass


class MeasuredPace(Pace):
    """A pace that knows what its bound was on average, by a clock."""

    def __init__(self, max_in_flight: int, now: Callable[[], float]) -> None:
        super().__init__(max_in_flight)
        self._now, self._area = now, 0.0
        self._began = self._noted = now()

    def grow(self, era: int) -> None:
        self.note()
        super().grow(era)

    def shrink(self, era: int) -> None:
        self.note()
        super().shrink(era)

    def note(self) -> float:
        """Return the bound so far, averaged over time."""
        now = self._now()
        self._area += int(self.limit) * (now - self._noted)
        self._noted = now
        return self._area / max(now - self._began, 1e-9)


def write_rows(path: Path, num_rows: int) -> Path:
    """Write short answers of one paragraph."""
    rows = ({"prompt": f"Say {n}.", "answer": f"This is answer {n}."} for n in range(num_rows))
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


class Measured(NamedTuple):
    """How a run went, by the clock."""

    wall_s: float
    mean_bound: float
    num_requests: int


def measured(faults: Faults, num_rows: int, in_flight: int, folder: Path) -> Measured:
    """Annotate rows that need one reply each, against a server that is simulated."""
    with pytest.MonkeyPatch.context() as patch:
        return _measured(faults, num_rows, in_flight, folder, patch)


def _measured(
    faults: Faults, num_rows: int, in_flight: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Measured:
    clock, server = Clock(), Simulated(faults)
    pace = MeasuredPace(in_flight, lambda: clock.now)

    async def next_at_once(rows: Iterator[T]) -> T | None:
        return next(rows, None)

    monkeypatch.setattr(pool, "next_in_thread", next_at_once)
    monkeypatch.setattr(module.asyncio, "run", lambda main: run_by(clock, main))
    monkeypatch.setattr(client, "connect", lambda endpoint: server)
    monkeypatch.setattr(client, "Random", lambda: Random(0))
    source = write_rows(folder / "source.jsonl", num_rows)
    keys = {"timeout_s": TIME_OUT * faults.latency_s, "max_in_flight": in_flight}
    config = recipe(source, folder / "out", "http://h/v1", **keys)
    done = module.annotate(config, pace=pace, policy=RetryPolicy())
    assert done.tally.num_rows == {"ok": num_rows}
    return Measured(clock.now, pace.note(), server.num_requests)
