"""Two processes train one model on CPUs: the losses equal those of one, and the model loads."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pasta_lm.engines.local.loading import load
from pasta_lm.errors import UsageError
from pasta_lm.learn.train import trainer
from pasta_lm.learn.train.config import SftConfig, TrainConfig
from pasta_lm.learn.train.sft import train_sft
from pasta_lm.learn.train.trainer import check_launch, training_arguments
from tests.learn.train.recipes import as_toml, begin, losses, sft, weights, write_file

ROOT = Path(__file__).parents[3]
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
}
NUM_STEPS, TOLERANCE = 4, 1e-4


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> SftConfig:
    """Return a recipe whose steps have two packs, carried out by one process."""
    folder = tmp_path_factory.mktemp("alone")
    data = write_file(folder, max_tokens=700)
    recipe = sft(begin(folder), folder / "out", data, steps=NUM_STEPS, accumulate=2, save_steps=2)
    train_sft(recipe)
    return recipe


def carry_out(recipe: SftConfig, file: Path, *flags: str, **environment: str) -> str:
    """Carry a recipe out by two processes; return what they printed."""
    file.write_text(as_toml(recipe), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ["--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", str(port)]
    command = [sys.executable, "-m", "torch.distributed.run", *where]
    command += ["-m", "tests.learn.train.fsdp_on_cpu", "train", "sft", str(file), *flags]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    settings = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_two_sharded_processes_learn_the_same_as_one(alone: SftConfig, tmp_path: Path) -> None:
    recipe = replace(alone, train=replace(alone.train, out=str(tmp_path / "out")))
    printed = carry_out(recipe, tmp_path / "recipe.toml", **FSDP)
    assert printed.splitlines() == [str(tmp_path / "out" / "model")]
    assert (tmp_path / "out" / f"checkpoint-{NUM_STEPS}" / "pytorch_model_fsdp_0").is_dir()
    for step, (loss,) in losses(alone).items():
        assert losses(recipe)[step] == [pytest.approx(loss, abs=TOLERANCE)]
    expected, found = (weights(Path(one.train.out) / "model") for one in (alone, recipe))
    torch.testing.assert_close(expected, found, atol=TOLERANCE, rtol=1e-5)
    assert load(tmp_path / "out" / "model").trained_strategy == "pasta"


# --- refused


@pytest.mark.parametrize(
    ("options", "environment", "reason"),
    [
        ({"has_adapters": True}, {}, r"\[lora\] is for one process, and there are 2"),
        ({"has_row_rates": True}, {}, "a rate of rows is for one process"),
        ({}, FSDP | {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "without weights"),
    ],
)
def test_unsupported_recipes_are_refused_with_several_processes(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, bool],
    environment: dict[str, str],
    reason: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check_launch(**{"has_adapters": False, **options})  # alone, all of it can be trained
    monkeypatch.setattr(trainer, "num_processes", lambda: 2)
    with pytest.raises(UsageError, match=reason):
        check_launch(**{"has_adapters": False, **options})


def test_a_step_has_the_same_number_of_packs_for_any_number_of_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def packs_each(accumulate: int) -> int:
        train = TrainConfig(out="out", steps=1, accumulate=accumulate)
        return training_arguments(train, 0).gradient_accumulation_steps

    assert packs_each(8) == 8
    monkeypatch.setattr(trainer, "num_processes", lambda: 4)
    assert packs_each(8) == 2
    with pytest.raises(UsageError, match="accumulate is 6, and 4 processes share"):
        packs_each(6)
