"""``pasta annotate`` in a process of its own, sent the signals of a terminal and of a scheduler."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.learn.annotate.run import JOURNAL
from pasta_lm.learn.data.annotated import read_records
from tests.cli.test_annotate import write_recipe
from tests.fakes.scripted_server import Faults, ScriptedReply, ScriptedServer
from tests.fakes.scripted_teacher import teacher_by_rule
from tests.learn.annotate.runs import AnnotateProcess

FEW = 4
LIMIT = f"max_in_flight = {FEW}\n"


class Gate:
    def __init__(self, faults: Faults | None = None) -> None:
        self._play = teacher_by_rule()
        self._opened = threading.Event()
        self.server = ScriptedServer(self._reply, faults)

    def _reply(self, asked: Mapping[str, Any]) -> ScriptedReply:
        self._opened.wait(60)
        return self._play(asked)

    def open(self) -> None:
        self._opened.set()


def until(process: AnnotateProcess, holds: Callable[[], bool]) -> None:
    while not holds():
        assert process.is_running, process.output
        time.sleep(0.005)


def interrupted(recipe: str, server: ScriptedServer, number: signal.Signals) -> AnnotateProcess:
    """Begin a run and send it a signal when as many requests are in flight as may be."""
    process = AnnotateProcess(Path(recipe))
    until(process, lambda: server.num_requests >= FEW)
    process.send(number)
    until(process, lambda: "Ctrl-C again stops at once" in process.output)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_keeps_paid_replies_and_prints_the_command_to_continue(
    tmp_path: Path, number: signal.Signals
) -> None:
    gate = Gate()
    with gate.server as server:
        recipe = write_recipe(tmp_path, server.base_url, LIMIT)
        process = interrupted(recipe, server, number)
        assert f"waiting for {FEW} requests in flight; Ctrl-C again" in process.output
        gate.open()
        assert process.finish() == 130
        assert f" rows: {FEW} ok, 0 failed, " in process.output
        assert f"stopped by interrupt. To go on: pasta annotate {recipe}\n" in process.output
        assert server.num_requests == FEW
        assert len(read_records(tmp_path / "out" / "annotated.jsonl")) == FEW

        again = AnnotateProcess(Path(recipe))
        assert again.finish() == 0
        assert "8 rows: 7 ok, 0 failed, 1 skipped" in again.output
        assert list(server.paid.values()) == [1] * 7


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    gate = Gate()
    with gate.server as server:
        recipe = write_recipe(tmp_path, server.base_url, LIMIT)
        process = interrupted(recipe, server, signal.SIGINT)
        process.send(signal.SIGINT)
        assert process.finish() == 130  # the gate is still closed
        gate.open()
    assert f"what was paid is kept. To go on: pasta annotate {recipe}" in process.output
    assert not (tmp_path / "out" / f"{JOURNAL}.jsonl").exists()
    assert not (tmp_path / "out" / "annotated.jsonl").exists()
