"""``pasta teach`` on a tiny random model: end to end, killed, interrupted, without room."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pasta_lm.engines.local.loading import load
from pasta_lm.journal import read_rows
from pasta_lm.learn.train.teach_config import LearningConfig, TeachConfig
from pasta_lm.learn.train.teach_run import FOLDERS, STEPS, VERBS
from pasta_lm.recipe import toml_of
from tests.cli.conftest import Pasta
from tests.cli.teachable import recipe, save_teachable

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["pasta_lm.cli", "pasta_lm.learn.train.preference", "tests.cli.test_teach"]
)


def teach_in_process(arguments: list[str], log: str, max_bytes: int | None) -> None:
    """Run the command line; files may have no more bytes than that."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    if max_bytes is not None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    from pasta_lm.cli import main

    sys.argv = ["pasta", *arguments]
    main()


class Teaching:
    """A run in a folder, by the command line in a process of its own."""

    def __init__(self, model: str, recipe: Path, out: Path) -> None:
        self.out = out
        self._arguments = ["teach", model, "--out", str(out), "--recipe", str(recipe)]
        out.parent.mkdir(parents=True, exist_ok=True)
        self.log = out.parent / "stderr.log"

    @contextmanager
    def running(self, max_bytes: int | None = None) -> Iterator[BaseProcess]:
        """Start the command; it is over at the end."""
        given = (self._arguments, str(self.log), max_bytes)
        process = PROCESSES.Process(target=teach_in_process, args=given)
        process.start()
        try:
            yield process
            process.join(timeout=800)
        finally:
            process.kill()
            process.join()

    def has(self, row: str) -> bool:
        """Return whether the journal has a row, while it is being written."""
        path = self.out / "journal.jsonl"
        return path.exists() and f'"id": "{row}"' in path.read_text("utf-8")

    def wait_for(self, step: str, process: BaseProcess) -> None:
        """Return when a step has begun, or the process is over."""
        while not self.has(f"{step}/begun") and process.is_alive():
            time.sleep(0.01)

    def finish(self) -> None:
        """Run to the end."""
        with self.running() as process:
            pass
        assert process.exitcode == 0, self.log.read_text("utf-8")[-3000:]

    def result(self) -> dict[str, Any]:
        """Return everything that must not depend on interruptions, but the weights."""
        texts = {
            name: (self.out / name).read_bytes()
            for name in (
                "01-answers/usable.jsonl",
                "02-annotated/annotated.jsonl",
                "02-annotated/held_out.txt",
                "05-preference/prompts.jsonl",
                "05-preference/round-1/pairs.jsonl",
                "05-preference/round-1/development.json",
                "06-measures/prompts/held_out.txt",
            )
        }
        card = (self.out / "model" / "README.md").read_text("utf-8")
        report = json.loads((self.out / "06-measures" / "report.json").read_text("utf-8"))
        shown = [
            line for line in card.splitlines() if "realised" not in line and "Time" not in line
        ]
        sets = report["sets"]["instructions"]
        keys = ("theoretical_speedup", "parallelism", "well_formed", "text", "finish_reasons")
        return {
            **{name: text.replace(str(self.out).encode(), b"OUT") for name, text in texts.items()},
            "card": shown,
            "measured": {key: sets[key] for key in keys},
            "cost": report["references"]["cost"],
            "steps": [step for step in STEPS if step in self.rows],
        }

    @property
    def rows(self) -> dict[str, Any]:
        return {row["id"]: row for row in read_rows(self.out / "journal.jsonl")}

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.out / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a model and a recipe."""
    folder = tmp_path_factory.mktemp("teach")
    path = folder / "recipe.toml"
    path.write_text(toml_of(asdict(recipe(folder / "data"))))
    return save_teachable(folder / "model"), path


@pytest.fixture(scope="module")
def whole(given: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Teaching:
    """Return a run that nothing interrupted."""
    found = Teaching(*given, tmp_path_factory.mktemp("whole") / "out")
    found.finish()
    return found


def assert_same(one: Teaching, other: Teaching) -> None:
    assert one.result() == other.result()
    ours, theirs = one.weights(), other.weights()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.allclose(weight, theirs[name], atol=1e-6), name


# --- one run


def test_a_run_ends_with_a_model_that_can_be_loaded_and_has_tag_pieces(whole: Teaching) -> None:
    assert [*whole.result()["steps"]] == [*STEPS]
    loaded = load(str(whole.out / "model"))
    assert loaded.vocabulary.has_pieces
    assert json.loads((whole.out / "model" / "pasta_config.json").read_text())["positions"]


def test_the_estimate_is_said_before_the_first_step(whole: Teaching) -> None:
    log = whole.log.read_text("utf-8")
    before = log.partition("step 1 of 8")[0]
    for said in ("tokens/s", "ms to learn a token", "memory:", "disk:", "together", "estimated"):
        assert said in before


def test_the_card_says_what_was_measured_and_what_was_not(whole: Teaching) -> None:
    card = (whole.out / "model" / "README.md").read_text("utf-8")
    report = json.loads((whole.out / "06-measures" / "report.json").read_text("utf-8"))
    cost = report["references"]["cost"]
    assert f"Cost of not seeing: {cost['mean']:.3f}" in card
    assert "13 usable" in card
    _, _, lacking = card.partition("## Not measured")
    assert "by a judge" in lacking
    assert "IFEval" in lacking
    assert "no prompt was timed" not in lacking
    assert "{{" not in card
    assert "Undefined" not in card


def test_both_models_of_stage_one_read_the_same_answers_and_none_that_is_held_back(
    whole: Teaching,
) -> None:
    plain, tagged = (
        (whole.out / FOLDERS[step] / "recipe.toml").read_text("utf-8")
        for step in ("baseline", "pasta")
    )
    assert (
        plain.replace("plain = true", "plain = false").replace("03-baseline", "04-pasta") == tagged
    )
    held_back = (whole.out / "02-annotated" / "held_out.txt").read_text("utf-8").split()
    prompts = [row["id"] for row in read_rows(whole.out / "05-preference" / "prompts.jsonl")]
    assert held_back == prompts
    assert len(held_back) == 6


@pytest.mark.parametrize("step", VERBS)
def test_each_step_can_be_run_by_hand(
    step: str, whole: Teaching, pasta: Pasta, tmp_path: Path
) -> None:
    text = (whole.out / FOLDERS[step] / "recipe.toml").read_text("utf-8")
    head = text.splitlines()[0].removeprefix("# Written by pasta teach. ")
    assert head == VERBS[step].format(whole.out / FOLDERS[step])
    found = pasta(*head.split()[1:])  # there is nothing left to do
    assert found.code == 0, found.err


def test_a_finished_run_does_nothing_more(whole: Teaching) -> None:
    before = whole.rows
    whole.finish()
    assert whole.rows == before


# --- interruptions


def test_a_run_that_is_killed_in_every_step_ends_with_the_same_model(
    given: tuple[str, Path], whole: Teaching, tmp_path: Path
) -> None:
    random, killed = Random(20), Teaching(*given, tmp_path / "out")
    num_killed = 0
    for step in STEPS:
        with killed.running() as process:
            killed.wait_for(step, process)
            moment_s = time.monotonic() + random.random() * whole.rows[step]["wall_s"]
            while time.monotonic() < moment_s and not killed.has(step):
                time.sleep(0.01)
            process.kill()
            process.join()
        num_killed += process.exitcode == -signal.SIGKILL
    assert num_killed > len(STEPS) // 2  # the last steps may be over before they are seen
    killed.finish()
    assert_same(killed, whole)


SLOW = pytest.mark.slow  # the whole run once more; other tests stop it in the same step


@pytest.mark.parametrize("step", [pytest.param("answers", marks=SLOW), "preference"])
def test_an_interrupted_run_says_how_to_go_on(
    step: str, given: tuple[str, Path], whole: Teaching, tmp_path: Path
) -> None:
    stopped = Teaching(*given, tmp_path / "out")
    _copy_until(step, whole, stopped)
    with stopped.running() as process:
        stopped.wait_for(step, process)
        os.kill(process.pid or 0, signal.SIGINT)
    if process.exitcode != 0:  # it had not come to its end
        assert process.exitcode == 130, stopped.log.read_text("utf-8")[-2000:]
        assert "the same command continues" in stopped.log.read_text("utf-8")
    stopped.finish()
    assert_same(stopped, whole)


@pytest.mark.parametrize(
    ("step", "max_bytes"),
    [
        pytest.param("answers", 3000, marks=SLOW),
        ("baseline", 120_000),
        ("measures", 8000),
    ],
)
def test_a_full_disk_loses_nothing(
    step: str, max_bytes: int, given: tuple[str, Path], whole: Teaching, tmp_path: Path
) -> None:
    full = Teaching(*given, tmp_path / "out")
    _copy_until(step, whole, full)
    file, pipe = full.log, tmp_path / "pipe"
    os.mkfifo(pipe)  # the limit holds for files, and what is said is no file
    reader = os.open(pipe, os.O_RDWR)
    full.log = pipe
    with full.running(max_bytes) as process:
        pass
    said = os.read(reader, 100_000).decode()
    assert process.exitcode == 1, said[-2000:]
    assert "has no room: File too large" in said
    assert "run the same command again" in said
    assert step not in full.rows
    full.log = file
    full.finish()
    assert_same(full, whole)


def _copy_until(step: str, whole: Teaching, other: Teaching) -> None:
    """Copy what a run had when a step began, with its paths."""
    before = STEPS[: STEPS.index(step)]
    shutil.copytree(whole.out, other.out)
    for name in {*FOLDERS.values()} - {FOLDERS[one] for one in before}:
        kept = other.out / name / "prompts"
        for path in (other.out / name).iterdir():
            if path not in (kept, other.out / "05-preference" / "prompts.jsonl"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    path = other.out / "journal.jsonl"
    rows = {
        name: row for name, row in whole.rows.items() if name.partition("/")[0] in (*before, "plan")
    }
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    for file in other.out.rglob("*"):
        if file.suffix in (".toml", ".json", ".jsonl") and file.is_file():
            text = file.read_text("utf-8")
            file.write_text(text.replace(str(whole.out), str(other.out)), "utf-8")


# --- adapters, and refusals


def test_a_run_with_adapters_ends_with_one_adapter_of_the_base(
    given: tuple[str, Path], tmp_path: Path
) -> None:
    config = recipe(tmp_path / "data")
    small = LearningConfig(weights="adapter", rank=2, passes=3, save_steps=1)
    path = tmp_path / "recipe.toml"
    path.write_text(toml_of(asdict(replace(config, train=small))))
    run = Teaching(given[0], path, tmp_path / "out")
    run.finish()
    folder, best = run.out / "model", run.out / run.rows["preference"]["best"]
    assert (folder / "adapter_config.json").exists()
    ours, theirs = (load(str(one)).model.state_dict() for one in (folder, best))
    for name, weight in ours.items():
        assert torch.allclose(weight, theirs[name], atol=1e-4), name


def test_another_recipe_is_refused_in_the_same_folder(
    given: tuple[str, Path], whole: Teaching, pasta: Pasta
) -> None:
    base = ("teach", given[0], "--out", str(whole.out), "--recipe", str(given[1]))
    found = pasta(*base, "--set", "train.passes=7")
    assert found.code == 2
    assert "train.passes = 6, not 7" in found.err


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("annotation.annotator=teacher", "needs [annotation.teacher]"),
        ("preference.judge.kind=grader", "the grader knows tasks alone"),
        ("answers.num_held_out=40", "too few beside"),
        ("train.weight=all", "did you mean 'weights'"),
    ],
)
def test_a_recipe_that_cannot_be_carried_out_is_refused_before_anything_is_loaded(
    key: str, message: str, given: tuple[str, Path], pasta: Pasta, tmp_path: Path
) -> None:
    base = ("teach", "no/such/model", "--out", str(tmp_path / "out"), "--recipe", str(given[1]))
    found = pasta(*base, "--set", key)
    assert found.code in (2, 3)
    assert message in found.err


def test_a_dry_run_writes_nothing(given: tuple[str, Path], pasta: Pasta, tmp_path: Path) -> None:
    base = ("teach", given[0], "--out", str(tmp_path / "out"), "--recipe", str(given[1]))
    found = pasta(*base, "--dry-run", "--budget-hours", "0.001")
    assert found.code == 0, found.err
    assert "to keep within the budget: rounds 1 -> 0" in found.err
    assert not (tmp_path / "out").exists()


def test_the_default_recipe_names_no_teacher_and_no_api() -> None:
    config = TeachConfig()
    assert config.annotation.annotator == "markdown_rule"
    assert config.annotation.teacher is None
    assert config.preference.judge is None
