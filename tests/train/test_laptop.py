from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pasta_lm.strategies.model import Pasta

ROOT = Path(__file__).parents[2]
VARIANTS = ("base", "base-more", "base-last", "baseline", "pasta-gold", "pasta-noisy")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("laptop")
    environment = os.environ | {"OUT": str(out), "PASTA": f"{sys.executable} -m pasta_lm"}
    command = [str(ROOT / "runs" / "laptop.sh"), "--tiny"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def losses(log: Path) -> list[float]:
    rows = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_whole_path_on_a_toy_ends_with_a_falling_loss(made: Path, name: str) -> None:
    found = losses(made / name / "log.jsonl")
    assert found[-1] < found[0]


def test_the_whole_path_on_a_toy_ends_with_models_that_load_and_figures(made: Path) -> None:
    model = Pasta.from_pretrained(made / "pasta-gold" / "model")
    assert model.is_taught
    for name in ("pasta-gold-test", "pasta-gold-hard", "pasta-noisy-test"):
        report = json.loads((made / "results" / f"{name}.json").read_text(encoding="utf-8"))
        assert report["strategies"]["pasta"]["quality"] is not None


def test_what_was_done_before_is_not_done_again(made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*.safetensors")}
    environment = os.environ | {"OUT": str(made), "PASTA": "false"}
    command = [str(ROOT / "runs" / "laptop.sh"), "--tiny"]
    subprocess.run(command, env=environment, capture_output=True, check=True, cwd=ROOT)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*.safetensors")} == before
