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
from tests.fakes.scripted_judge import prefer_more_words
from tests.fakes.scripted_server import Faults, ScriptedServer

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
        """
    )
    (tmp_path / "labels.json").write_text('{"parts": {"0": "several"}}')
    return file


def test_the_cost_has_every_system_and_region(
    pasta: Pasta, answers: Path, taught_folder: Path, untaught_folder: Path
) -> None:
    base = ("--baseline", untaught_folder, "--untaught", untaught_folder)
    command = ("evaluate", "cost", answers, "--model", taught_folder, *base)
    found = pasta(*command, "--json").json
    assert set(found["nats"]) == {"pasta", "taught_sequential", "sequential", "untaught"}
    assert found["num_answers"] == 2
    assert found["forked"]["num_answers"] == 1
    assert all(found["cost_by_region"].values())
    # The baseline and the untaught model are the same here.
    assert found["baseline_gain"]["mean"] == 0
    table = pasta(*command).out
    assert "cost: pasta less the baseline" in table
    assert "after_sync" in table


@pytest.mark.parametrize("name", ["nosuch", "no/such", "./nosuch"])
def test_all_models_are_looked_up_before_one_is_loaded(
    pasta: Pasta, answers: Path, taught_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("pasta_lm.engines.local.loading.load")
    result = pasta("evaluate", "cost", answers, "--model", taught_folder, "--untaught", name)
    assert (result.code, Path(name).name in result.err) == (2, True)


def test_a_run_is_reported_continued_and_computed_again_without_models(
    pasta: Pasta, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = ("evaluate", "instructions", recipe, "--out", out, "--json")
    first = pasta(*command)
    assert first.code == 0, first.err
    assert set(first.json["sets"]) == {"alpaca"}
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


NUM = 40


@pytest.fixture
def instructions(tmp_path: Path) -> Path:
    file = tmp_path / "instructions.jsonl"
    rows = [{"instruction": f"Name {n} rivers.", "dataset": "ab"[n % 2]} for n in range(2 * NUM)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_run_with_a_scripted_judge_ends_in_a_report_without_win_rates(
    pasta: Pasta, taught_folder: Path, untaught_folder: Path, instructions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    models = ("--model", taught_folder, "--set", f"baseline={untaught_folder}")
    models += ("--set", "max_tokens=12")
    with ScriptedServer(prefer_more_words, Faults(server_error=0.05), model="judge-1") as server:
        judge = ("--set", "judge.model=judge-1", "--set", f"judge.base_url={server.base_url}")
        flags = ("--out", out, "--set", f"instructions={instructions}", "--limit", NUM)
        flags += ("--set", "num_timed=4")
        result = pasta("evaluate", "alpaca", *flags, *models, *judge)
        assert result.code == 0
        assert "the judge is to be asked: " in result.err
        num_paid = sum(server.paid.values())
        again = pasta("evaluate", "alpaca", *flags, *models, *judge, "--json")
        assert sum(server.paid.values()) == num_paid
    assert f"pipeline check, n = {NUM}" in result.out
    report = again.json
    assert report["judge"]["is_scripted"]
    assert "win_rate" not in again.out
    pasta_figures = report["systems"]["pasta"]
    assert (pasta_figures["num_prompts"], pasta_figures["num_timed"]) == (NUM, 4)
    assert pasta_figures["realised_speedup"]["mean"] > 0
    assert pasta_figures["provenance"]["model"] == str(taught_folder)
    instructions.unlink()
    offline = pasta("evaluate", "alpaca", "--out", out, "--offline", "--json")
    assert (offline.code, offline.json) == (0, report)


def test_without_a_judge_only_speed_is_reported(
    pasta: Pasta, taught_folder: Path, instructions: Path, tmp_path: Path
) -> None:
    named = f"other=pasta:{taught_folder}"
    flags = ("--model", taught_folder, "--set", f"instructions={instructions}", "--limit", 2)
    flags += ("--out", tmp_path / "run", "--set", "max_tokens=8", "--system", named)
    result = pasta("evaluate", "alpaca", *flags)
    assert (result.code, result.err) == (0, "")
    assert "nobody judged: no win rates" in result.out
    assert {"sequential", "pasta", "other"} < {*result.out.splitlines()}
    reader = ("--set", f"judge.file={tmp_path / 'v'}", "--write-pairs", tmp_path / "pairs.jsonl")
    written = pasta("evaluate", "alpaca", *flags, *reader)
    assert (written.code, written.out) == (0, f"{reader[-1]}\n")


PREFERENCES = (2, 1, 1.5, 1.75, 0, 2, 1.25, 2)


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    files = {name: tmp_path / name for name in ("annotations", "difficulty", "gamed")}
    rows = [
        {"model": name, "row": row, "preference": one, "len_1": 100 + row, "len_2": 90 + 3 * row}
        for name, turned in (("good", PREFERENCES), ("worse", [1] * 8))
        for row, one in enumerate(turned)
    ]
    files["annotations"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    difficulty = "".join(f"{row},{row / 4 - 1}\n" for row in range(8))
    files["difficulty"].write_text("index,instruction_difficulty\n" + difficulty)
    gamed = "".join(f"0.{row},{row - 4},{row / 4 - 1}\n" for row in range(8))
    files["gamed"].write_text("preference,std_delta_len,instruction_difficulty\n" + gamed)
    return files


def flags(tables: dict[str, Path]) -> list[object]:
    return [part for name, file in tables.items() for part in (f"--{name}", file)]


def test_json_has_the_figures_of_each_model_and_a_missing_verdict_is_an_exit_code(
    pasta: Pasta, tables: dict[str, Path]
) -> None:
    result = pasta("evaluate", "lc-winrate", *flags(tables), "--json")
    assert (result.code, result.err) == (0, "")
    assert [*result.json] == ["good", "worse"]
    documented = {"standard_error", "length_controlled_winrate", "lc_standard_error"}
    assert all(figures.keys() >= documented for figures in result.json.values())
    good = result.json["good"]
    assert (good["win_rate"], good["n_total"], good["avg_length"]) == (62.5, 8, 100)
    assert result.json["worse"]["win_rate"] == 0
    file = tables["annotations"]
    file.write_text(file.read_text().replace('"preference": 0,', '"preference": null,'))
    refused = pasta("evaluate", "lc-winrate", *flags(tables), "--json")
    assert (refused.code, refused.json["good"]["win_rate"]) == (1, None)
    assert "pasta: the answers of good have no win rate: 1 of 8 rows have no" in refused.err
    allowed = pasta("evaluate", "lc-winrate", *flags(tables), "--allow-missing", "--json")
    assert (allowed.code, allowed.err) == (0, "")
