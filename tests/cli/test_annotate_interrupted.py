"""``pasta annotate`` in a process of its own, sent the signals of a terminal and of a scheduler."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.engines.servers.request_pace import FIRST_LIMIT
from pasta_lm.learn.annotate.run import JOURNAL
from pasta_lm.models.annotated import read_records
from tests.cli.test_annotate import write_recipe
from tests.fakes.scripted_server import Faults, ScriptedReply, ScriptedServer
from tests.fakes.scripted_teacher import teacher_by_rule
from tests.learn.annotate.runs import Nursery

FEW = int(FIRST_LIMIT)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery")) as one:
        yield one


class Gate:
    """A teacher that keeps everyone waiting until it is opened."""

    def __init__(self, faults: Faults | None = None) -> None:
        self._play = teacher_by_rule()
        self._opened = threading.Event()
        self.server = ScriptedServer(self._reply, faults)

    def _reply(self, asked: Mapping[str, Any]) -> ScriptedReply:
        self._opened.wait(60)
        return self._play(asked)

    def open(self) -> None:
        self._opened.set()


def until(nursery: Nursery, text: str) -> None:
    """Wait until a run has said something."""
    while text not in nursery.said():
        assert nursery.is_running(), nursery.said()
        time.sleep(0.005)


def begin(nursery: Nursery, recipe: str, server: ScriptedServer) -> None:
    """Begin a run and wait until as many requests are in flight as may be."""
    nursery.type("annotate", recipe)
    while server.num_requests < FEW:
        assert nursery.is_running(), nursery.said()
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_keeps_paid_replies_and_prints_the_command_to_continue(
    nursery: Nursery, tmp_path: Path, number: signal.Signals
) -> None:
    gate = Gate()
    with gate.server as server:
        recipe = write_recipe(tmp_path, server.base_url)
        begin(nursery, recipe, server)
        nursery.send(number)
        until(nursery, f"waiting for {FEW} requests in flight; Ctrl-C again stops at once")
        gate.open()
        said = nursery.finish()
        assert f" rows: {FEW} ok, 0 failed, " in said
        assert f"pasta: stopped by interrupt. To go on: pasta annotate {recipe}\n" in said
        assert said.endswith("exit code 130\n")
        assert server.num_requests == FEW
        assert len(read_records(tmp_path / "out" / "annotated.jsonl")) == FEW

        nursery.type("annotate", recipe)
        assert "8 rows: 7 ok, 0 failed, 1 skipped" in nursery.finish()
        assert list(server.paid.values()) == [1] * 7


def test_a_first_signal_ends_retries(nursery: Nursery, tmp_path: Path) -> None:
    gate = Gate(Faults(truncated=1.0))
    with gate.server as server:
        recipe = write_recipe(tmp_path, server.base_url)
        begin(nursery, recipe, server)
        nursery.send(signal.SIGINT)
        until(nursery, "stops at once")
        gate.open()
        said = nursery.finish()
        assert said.endswith("exit code 130\n")
        assert server.num_requests == FEW
    assert " rows: 0 ok, 0 failed, " in said


def test_a_second_signal_stops_at_once(nursery: Nursery, tmp_path: Path) -> None:
    gate = Gate()
    with gate.server as server:
        recipe = write_recipe(tmp_path, server.base_url)
        begin(nursery, recipe, server)
        nursery.send(signal.SIGINT)
        until(nursery, "stops at once")
        nursery.send(signal.SIGINT)
        said = nursery.finish()  # the gate is still closed
        gate.open()
    assert (
        f"pasta: stopped at once; what was paid is kept. To go on: pasta annotate {recipe}" in said
    )
    assert said.endswith("exit code 130\n")
    assert '"reply/' not in (tmp_path / "out" / f"{JOURNAL}.jsonl").read_text("utf-8")
    assert not (tmp_path / "out" / "annotated.jsonl").exists()
