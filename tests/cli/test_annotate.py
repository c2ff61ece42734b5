from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pasta_lm.cli.app import app
from pasta_lm.journal import write_rows
from pasta_lm.learn.annotate.recipe import AnnotateConfig
from pasta_lm.learn.annotate.run import JOURNAL
from pasta_lm.learn.data.annotated import read_records
from pasta_lm.recipe import read_recipe
from tests.fakes.scripted_server import Faults, ScriptedReply, ScriptedServer
from tests.fakes.scripted_teacher import teacher_by_rule
from tests.learn.annotate.runs import annotating, write_source
from tests.processes import Process

RECIPE = """
[source]
file = "{source}"
[output]
folder = "{folder}"
[teacher]
base_url = "{base_url}"
model = "scripted"
"""


def write_recipe(tmp_path: Path, base_url: str = "http://127.0.0.1:9/v1", more: str = "") -> str:
    source = write_source(tmp_path / "source.jsonl", 8)
    text = RECIPE.format(source=source, folder=tmp_path / "out", base_url=base_url) + more
    (tmp_path / "recipe.toml").write_text(text)
    return str(tmp_path / "recipe.toml")


def test_a_run_prints_its_files_and_a_summary(tmp_path: Path) -> None:
    with ScriptedServer(teacher_by_rule()) as server:
        found = CliRunner().invoke(app, ["annotate", write_recipe(tmp_path, server.base_url)])
    assert found.exit_code == 0, found.output
    names = ["annotated.jsonl", "failed.jsonl"]
    assert found.stdout.splitlines() == [str(tmp_path / "out" / name) for name in names]
    assert "estimate for 8 rows (1 skipped)" in found.stderr
    assert "8 rows: 7 ok, 0 failed, 1 skipped" in found.stderr
    assert " tokens in, " in found.stderr


def test_a_dry_run_prints_one_request_and_sends_none(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["annotate", write_recipe(tmp_path), "--dry-run"])
    assert found.exit_code == 0, found.output
    assert "Say 0." in found.stdout
    assert "&lt;sync/> is" in found.stdout
    assert " requests, about " in found.stderr
    assert not (tmp_path / "out").exists()


def test_a_limit_bounds_a_run(tmp_path: Path) -> None:
    with ScriptedServer(teacher_by_rule()) as server:
        recipe = write_recipe(tmp_path, server.base_url)
        found = CliRunner().invoke(app, ["annotate", recipe, "--limit", "2"])
        assert "2 rows: 2 ok" in found.stderr
        assert server.num_requests == 2
    rows = (tmp_path / "out" / "annotated.jsonl").read_text().splitlines()
    assert [json.loads(row)["id"] for row in rows] == ["r0", "r1"]


def test_a_run_whose_every_row_was_refused_has_failed(tmp_path: Path) -> None:
    with ScriptedServer(lambda _: ScriptedReply("", refusal="no")) as server:
        result = CliRunner().invoke(app, ["annotate", write_recipe(tmp_path, server.base_url)])
    assert result.exit_code == 1
    assert "no row was annotated" in result.stderr


@pytest.mark.parametrize(
    "recipe",
    sorted((Path(__file__).parents[2] / "runs" / "annotation").glob("*.toml")),
    ids=lambda one: one.stem,
)
def test_each_recipe_of_the_project_can_be_read(recipe: Path) -> None:
    config = read_recipe(recipe, AnnotateConfig)
    assert config.annotator == "markdown_rule" or config.teacher


def test_a_model_answers_the_instructions_first_and_the_rule_needs_no_server(
    tmp_path: Path,
) -> None:
    write_rows(tmp_path / "i.jsonl", [{"id": "a", "instruction": "Name a river."}])
    answered = {"id": "a", "answer": "It is the Rhine.", "num_tokens": 5, "ended": True}
    write_rows(tmp_path / "own" / "answers.jsonl", [{**answered, "temperature": None}])
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'annotator = "markdown_rule"\n[output]\nfolder = "{tmp_path / "out"}"\n[answers]\n'
        f'model = "m"\ninstructions = "{tmp_path / "i.jsonl"}"\nout = "{tmp_path / "own"}"\n'
    )
    result = CliRunner().invoke(app, ["annotate", str(recipe)])
    assert result.exit_code == 0, result.output
    assert "1 answers, 5 tokens: 1 usable" in result.stderr
    assert "It is the Rhine." in (tmp_path / "out" / "annotated.jsonl").read_text("utf-8")


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


def interrupted(recipe: str, server: ScriptedServer, number: signal.Signals) -> Process:
    """Begin a run and send it a signal when as many requests are in flight as may be."""
    process = annotating(Path(recipe))
    while server.num_requests < FEW:
        assert process.is_running, process.output
        time.sleep(0.005)
    process.send(number)
    process.wait_for("(Ctrl-C again stops at once)")
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

        again = annotating(Path(recipe))
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
