"""``runs/paper.sh --tiny`` once: everything is there at its end, and nothing is done twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from math import inf
from pathlib import Path

import pytest

from pasta_lm.learn.data.annotated import read_records
from pasta_lm.learn.train.config import PreferenceConfig, SftConfig
from pasta_lm.recipe import read_recipe
from pasta_lm.strategies.model import Pasta

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "runs" / "recipes" / "paper"
LAMBDAS = {"4": 4.0, "inf": inf}  # of the five, those of a tiny run
SYSTEMS = {"pasta-sft", "apar-sft", "sot", *(f"bon-{name}" for name in LAMBDAS)}
SFT = sorted(path for path in PAPER.glob("*.toml") if path.stem != "bon")


COMMAND = f"{sys.executable} -m pasta_lm"


def run(out: Path, pasta: str = COMMAND) -> subprocess.CompletedProcess[str]:
    settings = {"OUT": str(out), "PASTA": pasta, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    environment = os.environ | settings | {"PYTHONPATH": str(ROOT / "src")}
    command = [str(ROOT / "runs" / "paper.sh"), "--tiny"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    done = run(out)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def report(made: Path, system: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((made / "alpaca" / system / "report.json").read_text())
    return found


@pytest.mark.slow
def test_the_whole_path_ends_with_figures_of_all_systems(made: Path) -> None:
    table = json.loads((made / "speed.json").read_text())["systems"]
    names = ["Pasta-SFT", "APAR-SFT", "SoT", *(f"Pasta-BoN {name}" for name in LAMBDAS)]
    assert {*table} == {"sequential", *names}
    for name in names:
        assert table[name]["theoretical_speedup"] is not None
        assert table[name]["realised_speedup"] is not None


@pytest.mark.slow
def test_a_scripted_judge_yields_no_win_rate_anywhere(made: Path) -> None:
    assert {path.parent.name for path in made.glob("alpaca/*/report.md")} == SYSTEMS
    for system in SYSTEMS:
        figures = report(made, system)["systems"]
        assert isinstance(figures, dict)
        for one in figures.values():
            assert one["pipeline_check"].startswith("pipeline check, n = ")
            assert not {"win_rate", "length_controlled_winrate"} & {*one}
        assert "pipeline check, n = " in (made / "alpaca" / system / "table.txt").read_text()


@pytest.mark.slow
def test_every_answer_was_annotated_or_failed_and_some_have_blocks(made: Path) -> None:
    records = read_records(made / "annotated" / "annotated.jsonl")
    failed = (made / "annotated" / "failed.jsonl").read_text().splitlines()
    assert len(records) + len(failed) == 24
    assert len(failed) < 4  # a copy that the teacher's rule marks in vain
    assert any(one.document.blocks for one in records)


@pytest.mark.slow
def test_the_models_were_taught_what_they_are_called_after(made: Path) -> None:
    for name, taught in (("pasta", "pasta"), ("apar", "apar"), ("bon-4/round-2", "pasta")):
        model = Pasta.from_pretrained(made / name / "model")
        assert (model.has_tag_pieces, model.engine.loaded.trained_strategy) == (True, taught)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAMBDAS)
def test_each_weight_of_quality_has_its_own_rounds_and_shares_the_first_samples(
    made: Path, name: str
) -> None:
    config = read_recipe(made / "recipes" / f"bon-{name}.toml", PreferenceConfig)
    assert config.score is not None
    assert config.score.quality_weight == LAMBDAS[name]
    first = Path("round-1", "rollouts.jsonl")
    assert (made / f"bon-{name}" / first).read_bytes() == (made / "bon-4" / first).read_bytes()
    assert (made / f"bon-{name}" / "round-2" / "rollouts.jsonl").exists()
    logged = json.loads((made / f"bon-{name}" / "round-2" / "log.jsonl").read_text().split("\n")[0])
    assert logged["is_scripted"]


@pytest.mark.slow
def test_what_was_done_before_is_not_done_again(made: Path, tmp_path: Path) -> None:
    def times() -> dict[Path, int]:
        kept = [*made.rglob("*.safetensors"), *made.rglob("*.jsonl")]
        return {path: path.stat().st_mtime_ns for path in kept}

    before = times()
    done = run(made, "false")
    assert (done.returncode, times()) == (0, before), done.stderr[-3000:]
    # One step is gone, and that one alone is done again.
    (made / "speed.json").unlink()
    called = tmp_path / "called"
    wrapper = tmp_path / "pasta"
    wrapper.write_text(f'#!/bin/sh\necho "$1 $2" >>{called}\nexec {COMMAND} "$@"\n')
    wrapper.chmod(0o755)
    assert run(made, str(wrapper)).returncode == 0
    assert called.read_text().splitlines() == ["evaluate speed"]
    assert (made / "speed.json").exists()


@pytest.mark.parametrize("path", SFT, ids=lambda path: path.stem)
def test_every_recipe_of_stage_one_can_be_read(path: Path) -> None:
    config = read_recipe(path, SftConfig)
    assert (config.lora is not None) == path.stem.endswith("-lora")
    train = config.train
    assert (train.epochs, train.schedule, train.dtype) == (4, "linear", "bfloat16")


def test_stage_two_is_as_in_the_paper_but_for_what_it_says() -> None:
    config = read_recipe(PAPER / "bon.toml", PreferenceConfig)
    assert (config.rollouts.samples, config.rollouts.temperature) == (10, 1.0)
    assert (config.train.rounds, config.loss.alpha) == (2, 0.005)
    assert config.judge is not None
    assert tomllib.loads((PAPER / "bon.toml").read_text())["lora"]["trained_tokens"] == "tags"


@pytest.mark.parametrize(
    ("flags", "environment", "says"),
    [
        (["--big"], {}, "unknown flag --big"),
        (["--model", "bon"], {}, "no recipe of stage one at runs/recipes/paper/bon.toml"),
        ([], {}, "TEACHER_URL is not set"),
        ([], {"TEACHER_URL": "http://x/v1", "TEACHER_MODEL": "t"}, "JUDGE_URL is not set"),
    ],
)
def test_what_is_missing_is_named_before_anything_begins(
    tmp_path: Path, flags: list[str], environment: dict[str, str], says: str
) -> None:
    names = ("TEACHER_URL", "TEACHER_MODEL", "JUDGE_URL", "JUDGE_MODEL")
    settings = {key: value for key, value in os.environ.items() if key not in names}
    settings |= {"OUT": str(tmp_path), "PASTA": "false", **environment}
    command = [str(ROOT / "runs" / "paper.sh"), *flags]
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
