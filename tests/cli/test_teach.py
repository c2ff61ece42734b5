"""``pasta teach`` on a tiny random model: end to end, interrupted, without room."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pasta_lm.engines.local.loading import load
from pasta_lm.journal import read_rows
from pasta_lm.learn.data.annotated import read_records
from pasta_lm.learn.train.config import JudgeConfig
from pasta_lm.recipe import toml_of
from pasta_lm.teaching import run as teaching
from pasta_lm.teaching import teach
from pasta_lm.teaching.config import StageTwoConfig, TeachConfig
from pasta_lm.teaching.recipes import recipes_of
from tests.cli.conftest import Pasta
from tests.cli.teachable import THINKING, recipe, save_teachable
from tests.fakes.power_cut import PowerCutError, power_cut_after
from tests.fakes.scripted_judge import prefer_more_words
from tests.fakes.scripted_server import ScriptedServer

FOLDERS = {"answers": "01-answers", "annotated": "02-annotated", "pasta": "03-pasta"}
FOLDERS |= {"model": "model", "measures": "05-measures", "card": "model"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_teachable(tmp_path_factory.mktemp("teachable"))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TeachConfig:
    return recipe(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(model: str, config: TeachConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    assert teach(model, out, config) == out / "model"
    return out


def rows(out: Path) -> dict[str, Any]:
    return {row["id"]: row for row in read_rows(out / "journal.jsonl")}


def assert_same(one: Path, other: Path) -> None:
    names = ["01-answers/usable.jsonl", "02-annotated/annotated.jsonl"]
    names += ["02-annotated/held_back.txt", "05-measures/prompts/held_out.txt"]
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    ours, theirs = (load(str(out / "model")).model.state_dict() for out in (one, other))
    for name, weight in ours.items():
        assert torch.allclose(weight, theirs[name], atol=1e-6), name


def test_a_run_ends_with_a_model_that_can_be_loaded_and_has_tag_pieces(whole: Path) -> None:
    assert [*rows(whole)] == [*FOLDERS]
    assert load(str(whole / "model")).vocabulary.has_pieces


def test_the_card_names_what_was_measured_and_what_was_not(whole: Path) -> None:
    made, measured = (whole / "model" / "README.md").read_text("utf-8").split("## Measured")
    assert "13 usable" in made
    assert "adapters of rank 2" in made
    figures, lacking = measured.split("## Not measured")
    assert "speedup" in figures
    assert "by a judge" in lacking
    assert "IFEval" in lacking
    assert "no prompt was timed" not in lacking


def test_stage_one_reads_no_answer_that_is_held_back_and_is_measured_against_the_untaught_model(
    whole: Path, model: str
) -> None:
    tagged = (whole / FOLDERS["pasta"] / "recipe.toml").read_text("utf-8")
    settings = json.loads((whole / FOLDERS["measures"] / "settings.json").read_text("utf-8"))
    assert settings["baseline"] == str(Path(model).resolve())
    held_back = (whole / "02-annotated" / "held_back.txt").read_text("utf-8").split()
    assert len(held_back) == 4
    assert "held_back.txt" in tagged


@pytest.mark.parametrize("step", ["annotated", "pasta", "measures"])
def test_each_step_can_be_run_by_hand(step: str, whole: Path, pasta: Pasta) -> None:
    first_line = (whole / FOLDERS[step] / "recipe.toml").read_text("utf-8").splitlines()[0]
    command = first_line.removeprefix("# Written by pasta teach. ")
    result = pasta(*command.split()[1:])  # there is nothing left to do
    assert result.code == 0, result.err


def test_a_run_that_ends_after_each_step_continues_to_the_same_model(
    whole: Path, model: str, config: TeachConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    usual = teaching.carry_out

    def failing(step: teaching.Step, *rest: Any) -> None:
        if step.name in ended:
            usual(step, *rest)
            return
        step.carry_out()  # done, and not yet noted
        ended.append(step.name)
        raise PowerCutError

    monkeypatch.setattr(teaching, "carry_out", failing)
    for _ in FOLDERS:
        with pytest.raises(PowerCutError):
            teach(model, tmp_path / "out", config)
    teach(model, tmp_path / "out", config)
    assert ended == [*rows(tmp_path / "out")] == [*FOLDERS]
    assert_same(tmp_path / "out", whole)


@pytest.mark.slow
def test_a_model_that_thinks_learns_with_its_thoughts_also_after_a_power_cut(
    config: TeachConfig, tmp_path: Path
) -> None:
    model, out = save_teachable(tmp_path / "thinker", THINKING), tmp_path / "out"
    own = replace(config.answers, thoughts="loss", max_thinking_tokens=4, max_tokens=40)
    config = replace(config, answers=own)
    with power_cut_after(teaching, "train_sft", 0):
        teach(model, out, config)
    teach(model, out, config)
    records = read_records(out / "02-annotated" / "annotated.jsonl")
    assert records
    assert all(record.reasoning and "think" not in record.reasoning for record in records)
    assert not any("think>" in record.document.plain_text for record in records)
    assert 'thoughts = "loss"' in (out / FOLDERS["pasta"] / "recipe.toml").read_text("utf-8")
    taught = load(str(out / "model"))
    assert (taught.vocabulary.thinks, taught.vocabulary.has_pieces) == (True, True)
    assert "thinks" in (out / FOLDERS["measures"] / "report.md").read_text("utf-8")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def full(*_: object, **__: object) -> None:
    raise RuntimeError("Error while serializing: I/O error: File too large (os error 27)")


def test_the_same_command_continues_after_an_interrupt_and_on_a_disk_that_was_full(
    whole: Path, model: str, config: TeachConfig, pasta: Pasta, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    copy_until("pasta", whole, tmp_path / "out")
    command = command_of(model, tmp_path / "out", config)
    for method, fault, code, words in (
        ("trainer.PackTrainer.compute_loss", interrupted, 130, "the same command continues"),
        ("trainer.PackTrainer.save_model", full, 1, "03-pasta cannot be written: File too large"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"pasta_lm.learn.train.{method}", fault)
            result = pasta(*command)
        assert (result.code, words in result.err) == (code, True), result.err
    assert pasta(*command).out == f"{tmp_path / 'out' / 'model'}\n"
    assert_same(tmp_path / "out", whole)


def test_no_step_begins_when_the_time_is_over(
    whole: Path, model: str, config: TeachConfig, pasta: Pasta, tmp_path: Path
) -> None:
    copy_until("pasta", whole, tmp_path / "out")
    command = command_of(model, tmp_path / "out", config)
    result = pasta(*command, "--budget-hours", "0")
    assert (result.code, result.out) == (1, "")
    assert "of 0 hours are used up before the step: Pasta-SFT" in result.err
    assert [*rows(tmp_path / "out")] == ["answers", "annotated"]


def command_of(model: str, out: Path, config: TeachConfig) -> tuple[str, ...]:
    """Write the recipe beside the folder of the run, and return the command."""
    recipe = out.with_name("recipe.toml")
    recipe.write_text(toml_of(asdict(config)))
    return "teach", model, "--out", str(out), "--recipe", str(recipe)


def copy_until(step: str, whole: Path, out: Path) -> None:
    """Copy what a run had when a step began, with its paths."""
    steps = [*FOLDERS]
    before = steps[: steps.index(step)]
    shutil.copytree(whole, out)
    for name in {*FOLDERS.values()} - {FOLDERS[one] for one in before}:
        for path in (out / name).iterdir():
            if path.name != "prompts":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    kept = [row for name, row in rows(whole).items() if name in before]
    (out / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    for file in out.rglob("*"):
        if file.suffix in (".toml", ".json", ".jsonl") and file.is_file():
            text = file.read_text("utf-8")
            file.write_text(text.replace(str(whole), str(out)), "utf-8")


def test_with_a_judge_stage_two_trains_the_model(
    whole: Path, model: str, config: TeachConfig, tmp_path: Path
) -> None:
    with ScriptedServer(prefer_more_words) as server:
        judge = JudgeConfig(model="scripted", base_url=server.base_url)
        two = StageTwoConfig(judge=judge, rounds=1, num_prompts=4, samples=3, steps=2)
        out = tmp_path / "out"
        teach(model, out, replace(config, preference=two))
    assert rows(out)["preference"]["best"] == "04-preference/round-1/model"
    prompts = {row["id"] for row in read_rows(out / "04-preference" / "prompts.jsonl")}
    references = (out / "02-annotated" / "references.txt").read_text("utf-8").split()
    held_back = (out / "02-annotated" / "held_back.txt").read_text("utf-8").split()
    assert {*references} | prompts == {*held_back}
    assert not {*references} & prompts


def test_a_model_for_servers_learns_positions_and_join_that_they_compute(tmp_path: Path) -> None:
    paper = replace(TeachConfig().train, positions="predict", join="shared")
    for config in (TeachConfig(), replace(TeachConfig(), train=paper).for_servers()):
        train = recipes_of("m", tmp_path, config.on("cpu"), tmp_path / "i").pasta.train
        assert (train.positions, train.join) == ("continue", "recompute")


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    model: str, config: TeachConfig, pasta: Pasta, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = command_of(model, out, config)
    result = pasta(*command, "--dry-run")
    assert (result.code, result.out) == (0, ""), result.err
    for words in ("one pass takes", "positions continue, join recompute", "stage two: none"):
        assert words in result.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set", "annotation.annotator=teacher"], "needs [annotation.teacher]"),
        (["--set", "preference.rounds=1"], "preference.judge is missing"),
        (["--set", "preference.judge.file=v"], "preference.judge.file would be ignored"),
        (["--set", "answers.num_held_out=40"], "too few beside"),
        (["--set", "train.weight=all"], "did you mean 'weights'"),
        (["--set", "train.positions=predict"], "'predict' does"),
        (["--for", "phones"], "servers"),
    ],
)
def test_a_recipe_that_cannot_be_carried_out_is_refused_before_anything_is_loaded(
    flags: list[str], message: str, config: TeachConfig, pasta: Pasta, tmp_path: Path
) -> None:
    (tmp_path / "config.json").touch()  # all that is read of a model before its recipe
    result = pasta(*command_of(str(tmp_path), tmp_path / "out", config), *flags)
    assert result.code in (2, 3)
    assert message in result.err


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_an_adapter_is_not_taught_another_and_nothing_is_begun(
    flags: list[str], pasta: Pasta, tmp_path: Path
) -> None:
    result = pasta("teach", "builtin", "--out", tmp_path / "out", *flags)
    assert (result.code, result.out) == (2, "")
    assert "adapter" in result.err
    assert "pasta export builtin OUT --merged" in result.err
    assert not (tmp_path / "out").exists()
