"""``pasta train``: recipes that are carried out, shown, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pasta_lm.engines.local.loading import load
from pasta_lm.learn.data.preferences import write_pairs
from pasta_lm.learn.train.config import ModelConfig
from tests.cli.conftest import Pasta
from tests.learn.train.recipes import begin, pair, save_tiny, write_file

RECIPE = """
[model]
base = "{base}"
[data]
file = "{file}"
max_tokens = 700
[train]
out = "{out}"
steps = 2
log_steps = 1
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return begin(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def recipe(model: ModelConfig, out: Path) -> Path:
    file = out.parent / "recipe.toml"
    answers = write_file(out.parent / "data", 24).file
    file.write_text(RECIPE.format(base=model.base, out=out, file=answers), encoding="utf-8")
    return file


def test_a_recipe_is_carried_out_and_its_model_s_folder_is_all_that_is_printed(
    pasta: Pasta, model: ModelConfig, out: Path
) -> None:
    result = pasta("train", "sft", recipe(model, out))
    assert (result.code, result.out) == (0, f"{out / 'model'}\n")
    assert "step 2/2  loss " in result.err
    assert load(out / "model").vocabulary.has_pieces
    assert {path.name for path in out.iterdir()} == {
        *("checkpoint-2", "log.jsonl", "model", "recipe.json", "inputs.json", "lock")
    }


def test_a_finished_run_is_refused_resumed_or_overwritten(
    pasta: Pasta, model: ModelConfig, out: Path
) -> None:
    config = recipe(model, out)
    folder = pasta("train", "sft", config).out
    again = pasta("train", "sft", config)
    assert (again.code, again.out) == (2, "")
    assert f"{out} has a run already" in again.err
    assert "--resume continues it, --overwrite replaces it" in again.err
    assert pasta("train", "sft", config, "--resume").out == folder
    assert pasta("train", "sft", config, "--overwrite").out == folder
    assert len((out / "log.jsonl").read_text("utf-8").splitlines()) == 3


PREFERENCE = """
[model]
base = "{base}"
[data]
file = "{pairs}"
[rollouts]
samples = 4
[train]
out = "{out}"
steps = 2
rounds = 1
log_steps = 1
"""


@pytest.fixture(scope="module")
def preference_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a finetuned model, as it were, and a file of pairs."""
    folder = tmp_path_factory.mktemp("finetuned")
    pairs = [pair(name, f"Say {name}.", f"Nothing of {name}.") for name in ("one", "two")]
    write_pairs(folder / "pairs.jsonl", pairs)
    return {"base": save_tiny(folder / "a"), "pairs": str(folder / "pairs.jsonl")}


def preference_recipe(models: dict[str, str], out: Path) -> Path:
    file = out.parent / "preference.toml"
    file.write_text(PREFERENCE.format(**models, out=out), encoding="utf-8")
    return file


def test_preferences_are_learned_and_the_last_model_s_folder_is_all_that_is_printed(
    pasta: Pasta, preference_models: dict[str, str], out: Path
) -> None:
    config = preference_recipe(preference_models, out)
    result = pasta("train", "preference", config)
    assert (result.code, result.out) == (0, f"{out / 'round-1' / 'model'}\n")
    assert "margin" in result.err
    assert load(out / "round-1" / "model").vocabulary.has_pieces
    again = pasta("train", "preference", config)
    assert (again.code, again.out) == (2, "")
    assert "has a run already" in again.err
    assert pasta("train", "preference", config, "--resume").out == result.out


def test_comparisons_are_written_for_a_judge_that_is_a_file_alone(
    pasta: Pasta, preference_models: dict[str, str], out: Path
) -> None:
    config = preference_recipe(preference_models, out)
    result = pasta("train", "preference", config, "--write-pairs", out / "pairs.jsonl")
    assert (result.code, result.out) == (2, "")
    assert "--write-pairs would be ignored: the recipe has no judge.file" in result.err


@pytest.mark.parametrize("stage", ["sft", "preference"])
def test_interrupted_it_says_how_to_go_on(
    pasta: Pasta, model: ModelConfig, preference_models: dict[str, str], out: Path, stage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"pasta_lm.learn.train.{stage}.train_{stage}", interrupt)
    file = recipe(model, out) if stage == "sft" else preference_recipe(preference_models, out)
    result = pasta("train", stage, file)
    assert (result.code, result.out) == (130, "")
    assert "--resume goes on" in result.err


@pytest.mark.parametrize(("form", "name"), [("--merged", "out"), ("--gguf", "out.gguf")])
def test_a_model_is_exported(
    pasta: Pasta, tmp_path: Path, taught_folder: Path, form: str, name: str
) -> None:
    result = pasta("export", taught_folder, tmp_path / name, form)
    assert result.code == 0
    assert "bfloat16" in result.out
    assert "68 tag pieces" in result.out
    assert "trained with positions predict, join shared: a stock server is not" in result.err
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("changes", "notice"),
    [
        ({"join": "recompute"}, "positions continue, join recompute: a stock server is exact\n"),
        ({"join": "shared"}, "join shared: a stock server is exact up to an answer's first sync"),
        ({"positions": "oracle"}, "not exact, and pasta run --engine needs --allow-inexact"),
        (None, "it is not known with which positions this model was trained"),
    ],
)
def test_a_notice_says_whether_a_stock_server_is_exact(
    pasta: Pasta, tmp_path: Path, taught_folder: Path, changes: dict[str, str] | None, notice: str
) -> None:
    source = tmp_path / "mine"
    shutil.copytree(taught_folder, source)
    file = source / "pasta_config.json"
    about = json.loads(file.read_text()) | {"positions": "continue"}
    file.unlink() if changes is None else file.write_text(json.dumps(about | changes))
    result = pasta("export", source, tmp_path / "out", "--merged")
    assert notice in result.err


def test_a_model_without_tags_is_exported_with_a_notice(
    pasta: Pasta, tmp_path: Path, untaught_folder: Path
) -> None:
    result = pasta("export", untaught_folder, tmp_path / "out", "--merged")
    assert result.code == 0
    assert "has no tag pieces" in result.err
    assert not (tmp_path / "out" / "pasta_config.json").exists()
