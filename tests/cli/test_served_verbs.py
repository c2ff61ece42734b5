"""``--engine`` of the verbs: what decodes on servers, and what says why it cannot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pasta_lm.models.folder import FILE_NAME
from tests.cli.conftest import Pasta
from tests.cli.test_annotate import write_recipe
from tests.fakes.scripted_server import ScriptedServer
from tests.fakes.scripted_teacher import teacher_by_rule
from tests.fakes.stock_server import StockTestServer
from tests.stock_model import serving

NOWHERE = "http://127.0.0.1:1"
FEW = ("--num-prompts", 1, "--num-timed", 1, "--set", "max_tokens=6")


@pytest.fixture(scope="module")
def continued(
    taught_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, StockTestServer]]:
    """Return the folder of a model that servers decode exactly, and a server that holds it."""
    folder = tmp_path_factory.mktemp("served") / "continued"
    shutil.copytree(taught_folder, folder)
    config = json.loads((folder / FILE_NAME).read_text())
    exact = {**config, "positions": "continue", "join": "recompute"}
    (folder / FILE_NAME).write_text(json.dumps(exact))
    with serving(folder) as server:
        yield folder, server


def test_tasks_are_answered_as_the_local_engine_answers_them(
    pasta: Pasta, continued: tuple[Path, StockTestServer], tmp_path: Path
) -> None:
    folder, server = continued
    rows, told = [], []
    # Random weights end no topic, which a taught model does.
    served = ("--engine", server.url, "--dialect", "vllm", "--allow-inexact")
    for name, flags in (("here", ()), ("there", served)):
        file = tmp_path / f"{name}.jsonl"
        result = pasta(
            "evaluate", "tasks", "--model", folder, *FEW, *flags, "--records", file, "--json"
        )
        assert result.code == 0, result.err
        told.append(result.json)
        rows.append([json.loads(line) for line in file.read_text("utf-8").splitlines()])
    here, there = rows
    programs = [{one["task_id"]: one["program"] for one in some} for some in rows]
    # Perfect forks are given answers, which a server does not decode.
    assert len(here) > len(there) > 8
    assert programs[1] == programs[0]
    assert told[1]["device"] == "servers"
    assert told[1]["model"] == told[1]["baseline"] == str(folder)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("evaluate", "tasks"), 2, "--engine needs --model"),
        (("evaluate", "tasks", "--model", "m", "--baseline", "b"), 2, "b is to answer too"),
        (
            ("evaluate", "tasks", "--model", "m", "--set", "workers=2"),
            2,
            "are for the local engine",
        ),
        (("evaluate", "alpaca", "--out", "o", "--model", "m", "--system", "s=sot:b"), 2, "b is to"),
        (
            ("evaluate", "instructions", "--out", "o", "--model", "m", "--baseline", "b"),
            2,
            "b is to",
        ),
        (("serve",), 2, "--engine needs --model"),
        (("serve", "--model", "m", "--device", "cpu"), 2, "--device cannot be used with --engine"),
        (("replay", "answers.jsonl", "--model", "m"), 2, "a stock server chooses its tokens"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(
    pasta: Pasta, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    result = pasta(*arguments, "--engine", NOWHERE)
    assert (result.code, result.out) == (code, "")
    assert reason in result.err


@pytest.mark.parametrize("verb", [("evaluate", "tasks"), ("serve",), ("train", "preference", "r")])
def test_the_companions_of_engine_are_refused_without_it(
    pasta: Pasta, verb: tuple[str, ...]
) -> None:
    result = pasta(*verb, "--dialect", "vllm")
    assert result.code == 2
    assert "--dialect is for --engine" in result.err


def test_a_model_that_is_not_exact_is_not_served_unless_it_is_allowed(
    pasta: Pasta, taught_folder: Path, continued: tuple[Path, StockTestServer]
) -> None:
    _, server = continued
    refused = pasta("serve", "--model", taught_folder, "--engine", server.url)
    assert refused.code == 3
    assert "positions 'predict' with join 'shared' are not exact" in refused.err
    assert "trained with 'predict' and 'shared'; --allow-inexact" in refused.err


def test_a_teacher_may_be_on_several_servers(pasta: Pasta, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with ScriptedServer(teacher_by_rule()) as one, ScriptedServer(teacher_by_rule()) as other:
        urls = ",".join(server.base_url for server in (one, other))
        result = pasta("annotate", recipe, "--engine", urls)
        assert result.code == 0, result.err
        assert min(one.num_requests, other.num_requests) > 0
    assert "8 rows: 7 ok" in result.err


def test_annotation_without_a_teacher_has_no_servers(pasta: Pasta, tmp_path: Path) -> None:
    recipe = Path(write_recipe(tmp_path))
    text = recipe.read_text().partition("[teacher]")[0]
    for annotator, table, reason in (
        ("markdown_rule", "", "it asks no model"),
        ("forced", '[forced]\nmodel = "m"\n', "under its own mask"),
    ):
        recipe.write_text(f'annotator = "{annotator}"\n{text}{table}')
        result = pasta("annotate", recipe, "--engine", NOWHERE)
        assert result.code == 2
        assert reason in result.err
