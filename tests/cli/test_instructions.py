"""``pasta evaluate cost``, ``instructions`` and ``ifeval`` with tiny models on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from pasta_lm.measure.answering import AnswerSettings, Models
from pasta_lm.measure.instructions import InstructionSettings
from pasta_lm.recipe import read_recipe
from tests.cli.conftest import Pasta

ANSWERS = [
    {"instruction": "Name two things.", "response": "Two."},
    {
        "instruction": "Say two things.",
        "response": 'So:<promise topic="a" tokens="1"/><async> one thing</async>'
        '<promise topic="b" tokens="1"/><async> another</async><sync/> Done.',
    },
]
PROMPT = {
    "key": 7,
    "prompt": "Say it without commas.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{}],
}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few bootstrap samples: intervals have tests of their own."""
    monkeypatch.setattr("pasta_lm.measure.table.NUM_DRAWS", 20)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    file = tmp_path / "answers.jsonl"
    rows = [{"id": f"a-{n}", **row} for n, row in enumerate(ANSWERS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def recipe(tmp_path: Path, answers: Path, taught_folder: Path, untaught_folder: Path) -> Path:
    prompts = tmp_path / "alpaca.jsonl"
    prompts.write_text('{"id": 0, "instruction": "Give me <3> tips & say hi."}\n')
    file = tmp_path / "recipe.toml"
    file.write_text(
        f"""
        model = "{taught_folder}"
        baseline = "{untaught_folder}"
        references = "{answers}"
        max_tokens = 30
        num_timed = 1
        pool_tokens = 2048
        [sets]
        alpaca = "{prompts}"
        alpaca_parts = "{tmp_path / "labels.json"}"
        starter = "{tmp_path / "starter"}"
        instructions = "{tmp_path / "instructions"}"
        """
    )
    (tmp_path / "labels.json").write_text('{"parts": {"0": "several"}}')
    for name, files in {
        "starter": {"starter.jsonl": ANSWERS, "second_pass.jsonl": ANSWERS},
        "instructions": {"instructions.jsonl": [{"instruction": "Why?", "parts": "one"}]},
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "held_out.txt").write_text("x-0\n")
        for kind, rows in files.items():
            lines = [json.dumps({"id": f"x-{n}", **row}) for n, row in enumerate(rows)]
            (folder / kind).write_text("\n".join(lines) + "\n")
    return file


def test_the_cost_has_every_system_and_region(
    pasta: Pasta, answers: Path, taught_folder: Path, untaught_folder: Path, tmp_path: Path
) -> None:
    base = ("--baseline", untaught_folder, "--untaught", untaught_folder)
    records = tmp_path / "records.jsonl"
    command = ("evaluate", "cost", answers, "--model", taught_folder, *base)
    found = pasta(*command, "--records", records, "--json").json
    assert set(found["nats"]) == {"pasta", "taught_sequential", "sequential", "untaught"}
    assert found["num_answers"] == 2
    assert found["forked"]["num_answers"] == 1
    assert all(found["cost_by_region"].values())
    # The baseline and the untaught model are the same here.
    assert found["baseline_gain"]["mean"] == 0
    assert len(records.read_text().splitlines()) == 8
    table = pasta(*command).out
    assert "cost: pasta less the baseline" in table
    assert "after_sync" in table


@pytest.mark.parametrize("name", ["nosuch", "no/such", "./nosuch"])
def test_all_models_are_looked_up_before_one_is_loaded(
    pasta: Pasta, answers: Path, taught_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("pasta_lm.engines.local.loading.load")
    result = pasta("evaluate", "cost", answers, "--model", taught_folder, "--untaught", name)
    assert (result.code, name in result.err) == (2, True)


def test_a_run_is_reported_continued_and_computed_again_without_models(
    pasta: Pasta, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = ("evaluate", "instructions", recipe, "--out", out, "--json")
    first = pasta(*command)
    assert first.code == 0, first.err
    assert set(first.json["sets"]) == {"alpaca", "starter", "instructions"}
    assert first.json["references"]["num_answers"] == 2
    refused = pasta(*command, "--set", "max_tokens=31")
    assert (refused.code, "was begun with max_tokens = 30, not 31" in refused.err) == (2, True)
    scored = (out / "scored.jsonl").read_text()
    (out / "scored.jsonl").write_text(scored[: len(scored) // 2])
    assert pasta(*command).json == first.json
    again = pasta("evaluate", "instructions", "--offline", "--out", out, "--json")
    assert again.json == first.json
    assert "taught model" in (out / "report.md").read_text()


@pytest.mark.parametrize(("num_timed", "together"), [(0, [1, 1]), (1, [2])])
def test_models_are_in_memory_together_only_for_clocks(
    num_timed: int, together: list[int], pasta: Pasta, recipe: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    loads, load = list[int](), AnswerSettings.load

    def counted(self: AnswerSettings, names: Iterable[str]) -> Models:
        loads.append(len({*names}))
        return load(self, names)

    monkeypatch.setattr(AnswerSettings, "load", counted)
    changes = ("--set", f"num_timed={num_timed}", "--out", tmp_path / "run")
    assert pasta("evaluate", "instructions", recipe, *changes).code == 0
    assert loads == together


def test_ifeval_compares_two_models_with_its_prompts_alone(
    pasta: Pasta, taught_folder: Path, untaught_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval")
    prompts = tmp_path / "ifeval.jsonl"
    prompts.write_text(json.dumps(PROMPT) + "\n")
    models = ("--model", taught_folder, "--baseline", untaught_folder)
    command = ("evaluate", "ifeval", "--prompts", prompts, "--out", tmp_path / "run", *models)
    found = pasta(*command, "--set", "max_tokens=20", "--set", "pool_tokens=2048", "--json").json
    assert set(found["sets"]) == {"ifeval"}
    figures = found["sets"]["ifeval"]["ifeval"]
    assert figures["num_prompts"] == 1
    assert {"prompt_strict", "prompt_strict_difference", "instruction_loose"} <= figures.keys()


def test_the_recipe_that_the_page_names_is_one() -> None:
    recipe = Path(__file__).parents[2] / "runs" / "recipes" / "instructions.toml"
    found = read_recipe(recipe, InstructionSettings)
    assert found.sets.instructions == "corpora/instructions"
