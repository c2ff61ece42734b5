"""What judging takes, where it stops, and that what was paid is kept whatever stops it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.engines.servers.request_pace import HttpReply
from pasta_lm.errors import EndpointError, RemoteError
from pasta_lm.journal import read_rows
from pasta_lm.learn.chat.client import TokenCounts
from pasta_lm.learn.chat.pool import MAX_FAILURES, Estimate
from pasta_lm.learn.judge import Comparison
from tests.learn.judge.endpoint import ScriptedTransport, answers_of, judge, stated

MANY = [Comparison(f"q{n}", "What?", f"{n}", f"{n}!") for n in range(30)]
VERDICT = stated("Verdict: A, confidence: 80")


def rows(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "replies.jsonl")


def test_an_estimate_excludes_stored_replies_and_equal_answers(tmp_path: Path) -> None:
    one = judge(tmp_path, ScriptedTransport(lambda _: VERDICT))
    equal = Comparison("q", "What?", "same", "same")
    found = one.estimate([*MANY, *MANY, equal])
    assert (found.num_requests, found.tokens.completion) == (30, 3000)
    assert 30 * 250 < found.tokens.prompt < 30 * 500
    one.ask(MANY[:20])
    assert one.estimate(MANY).num_requests == 10
    assert one.estimate(MANY[:20]) == Estimate(0, TokenCounts(0, 0))
    token = judge(tmp_path, None, template="one-token-v1").estimate(MANY)
    assert token.tokens.completion == 30


def test_a_server_that_is_gone_stops_the_run_and_replies_are_kept(tmp_path: Path) -> None:
    left = iter(range(12))
    transport = ScriptedTransport(lambda _: VERDICT if next(left, None) is not None else 503)
    one = judge(tmp_path, transport)
    with pytest.raises(RemoteError, match=f"{MAX_FAILURES} requests in a row"):
        one.ask(MANY)
    assert len(rows(tmp_path)) == 12
    assert len(one.failures) >= MAX_FAILURES - 1  # the last one is the error


def test_a_server_that_refuses_every_request_stops_the_run(tmp_path: Path) -> None:
    transport = ScriptedTransport(lambda _: 400)
    with pytest.raises(EndpointError, match="HTTP 400") as caught:
        judge(tmp_path, transport).ask(MANY)
    assert "no request succeeded" in str(caught.value.hint)
    assert len(transport.asked) < 20
    some = ScriptedTransport(lambda said: 400 if "7" in answers_of(said)[0] else VERDICT)
    one = judge(tmp_path, some)
    num_missing = sum(reading.problem is not None for reading in one.ask(MANY))
    assert num_missing == 3 == len(one.failures)


class Slow(ScriptedTransport):
    """Takes as long as it takes until somebody else has had a turn."""

    async def send(self, *args: Any) -> HttpReply:
        await asyncio.sleep(0.001)
        return await super().send(*args)


def test_an_interrupt_awaits_requests_in_flight_and_the_next_run_asks_for_the_rest(
    tmp_path: Path,
) -> None:
    left = iter(range(7))

    def interrupted(_: str) -> dict[str, Any]:
        if next(left, None) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return VERDICT

    more = [Comparison(f"q{n}", "What?", f"{n}", f"{n}!") for n in range(300)]
    transport = Slow(interrupted)
    with pytest.raises(KeyboardInterrupt):
        judge(tmp_path, transport).ask(more)
    assert 7 <= len(rows(tmp_path)) == len(transport.asked) < 300
    again = ScriptedTransport(lambda _: VERDICT)
    judge(tmp_path, again).ask(more)
    assert len(transport.asked) + len(again.asked) == 300
