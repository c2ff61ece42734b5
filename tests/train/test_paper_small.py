"""The comparison of the paper at a small scale: its plan by itself, and all of it as a toy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from threading import Barrier, Event
from time import sleep
from typing import IO, Any

import pytest
from transformers import AutoModelForCausalLM

from pasta_lm.engines.torch.random_model import read_architecture
from pasta_lm.engines.torch.self_test import check_exact
from pasta_lm.recipe import read_recipe
from pasta_lm.strategies.model import EXACT_SEQUENTIAL
from pasta_lm.train.config import SftConfig
from pasta_lm.train.preference_config import PreferenceConfig

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "runs" / "paper-small.sh")


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


KEPT = Path("src/pasta_lm/models/builtin-sequential")


def plan_of(paper: dict[str, Any], folder: Path, **changes: Any) -> Any:
    folders = {"out": folder / "out", "laptop": folder / "laptop", "kept": None}
    options = paper["steps"].Options(**{**folders, **changes})
    return paper["order"].comparison(options)


def recipe_of(command: Sequence[str]) -> SftConfig | PreferenceConfig:
    """Read the recipe of a training as its command changes it."""
    changes = [word.removeprefix("--set=") for word in command if word.startswith("--set=")]
    kind = SftConfig if command[1] == "sft" else PreferenceConfig
    return read_recipe(Path(command[2]), kind, changes)


def trainings(plan: Any) -> dict[str, SftConfig | PreferenceConfig]:
    found = {n: s.command for n, s in plan.steps.items() if s.command[1] in ("sft", "preference")}
    return {name: recipe_of(command) for name, command in found.items()}


# --- the plan


def test_the_compute_goes_to_headline_rivals_seeds_and_ablations_in_this_order(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    names = list(plan_of(paper, tmp_path).steps)
    order = [
        *("base", "seed-0/pasta-bon-4", "seed-0/measure/pasta-bon-4", "seed-0/pasta-bon-1"),
        *("seed-0/measure/baseline", "seed-0/apar-bon-4", "seed-0/rule-pasta-bon-4"),
        *("seed-0/measure/sot-noisy", "seed-0/apar-bon-inf", "seed-1/pasta-bon-4"),
        *("seed-1/rule-pasta-bon-4", "seed-2/apar-bon-4", "ablations/efficiency-harmonic"),
        *("ablations/continue", "ablations/no-topics", "ablations/no-syncs"),
        *("ablations/samples-2", "ablations/rounds-4", "shape-llama/base", "shape-qwen/base"),
    ]
    places = [names.index(name) for name in order]
    assert places == sorted(places)


def test_what_is_asked_for_is_a_part_of_what_is_listed(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    def wanted(**changes: Any) -> set[str]:
        steps = paper["order"].wanted(plan_of(paper, tmp_path, **changes))
        return {step.group for step in steps}

    assert wanted() == {"seed-0"}
    assert wanted(seeds=(0, 2), has_ablations=True) == {"seed-0", "seed-2", "ablations"}
    assert wanted(has_trials=True) == {"seed-0", "trials"}
    assert "seed-7/pasta-bon-4" in plan_of(paper, tmp_path, seeds=(7,)).steps


def test_every_training_has_the_same_prompts_tokens_and_trials(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    found = trainings(plan_of(paper, tmp_path))
    tuned = [name for name in found if not name.endswith("base") and name != "draft"]
    budgets, sampled = set(), set()
    settings: dict[str, set[Any]] = {}
    for name in tuned:
        config = found[name]
        train = config.train
        budget = (train.steps, train.epochs, train.accumulate, train.warmup)
        if isinstance(config, SftConfig):
            budgets.add(("sft", config.data.max_tokens, *budget, train.learning_rate))
        else:
            budgets.add(("bon", config.data.max_tokens, *budget))
            assert config.score is not None
            rate, pairs = train.learning_rate, config.score.pairs
            setting = paper["trials"].Setting(config.loss.alpha, rate, pairs)
            runs = [f"trials/{one.recipe}-" for one in paper["trials"].TRIED]
            tried = next((one[7:-1] for one in runs if name.startswith(one)), "")
            settings.setdefault(tried, set()).add(setting)
            tasks, rollouts = config.data.tasks, config.rollouts
            assert tasks is not None
            one = (tasks.num_prompts, rollouts.samples, rollouts.temperature, rollouts.max_tokens)
            if "samples" not in name:
                sampled.add((*one, config.loss.kind, config.loss.beta))
    assert len(budgets) == 2
    assert len(sampled) == 1
    trials = set(paper["trials"].SETTINGS.values())
    assert [settings.pop(tried.recipe) for tried in paper["trials"].TRIED] == [trials] * 4
    assert settings.pop("") <= trials
    assert not settings
    seeds = {name: config.train.seed for name, config in found.items() if name.startswith("seed-")}
    assert all(name.startswith(f"seed-{seed}/") for name, seed in seeds.items())


def test_no_two_stages_and_no_two_seeds_meet_the_same_tasks(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    met: dict[int, set[str]] = {}
    for name, config in trainings(plan_of(paper, tmp_path)).items():
        tasks = config.data.tasks
        assert tasks is not None
        stage = "base" if name.endswith("base") else "draft" if name == "draft" else name[:6]
        stage = stage if name.startswith("seed-") or stage in ("base", "draft") else "seed-0"
        kind = "sft" if isinstance(config, SftConfig) else "bon"
        met.setdefault(tasks.seed, set()).add(f"{stage} {kind}")
    assert len(met) == 2 + 2 * 3
    assert all(len(stages) == 1 for stages in met.values())


def test_samples_of_round_one_are_shared_by_all_weights_and_come_first(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(paper, tmp_path)
    found = trainings(plan)
    for run in ("pasta-bon", "apar-bon", "rule-pasta-bon"):
        first = f"seed-1/{run}-4"
        for weight in ("1", "2", "8", "inf"):
            config = found[f"seed-1/{run}-{weight}"]
            assert isinstance(config, PreferenceConfig)
            shared = tmp_path / "out" / first / "round-1" / "rollouts.jsonl"
            assert config.rollouts.files == (str(shared),)
            assert config.score is not None
            assert config.score.quality_weight == float(weight)
            assert first in plan.steps[f"seed-1/{run}-{weight}"].needs
        own = found[first]
        assert isinstance(own, PreferenceConfig)
        assert own.rollouts.files == ()


def test_ablations_change_what_they_say_and_nothing_else(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    found = trainings(plan_of(paper, tmp_path))

    def flat(config: Any, place: str = "") -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in config.items():
            inner = flat(value, f"{place}{key}.") if isinstance(value, dict) else None
            table |= {f"{place}{key}": value} if inner is None else inner
        return table

    def changed(name: str, other: str) -> set[str]:
        ours, usual = (flat(asdict(found[one])) for one in (name, other))
        return {key for key in ours if ours[key] != usual[key]} - {"train.out"}

    main, files = "seed-0/pasta-bon-4", {"rollouts.files"}
    assert changed("ablations/efficiency-harmonic", main) == files | {"score.efficiency"}
    assert changed("ablations/samples-20", main) == {"rollouts.samples"}
    assert changed("ablations/continue", main) == {"model.base", "train.positions"}
    assert changed("ablations/no-topics", main) == {"model.base"}
    noisy = "seed-0/pasta-noisy"
    assert changed("ablations/no-topics-sft", noisy) == {"data.tasks.annotator"}
    assert changed("ablations/continue-sft", noisy) == {"train.positions"}
    assert changed("ablations/rounds-4", main) == {"train.rounds"}
    assert changed("shape-gemma/pasta-noisy", noisy) == {"model.base"}
    assert changed("shape-gemma/base", "base") == {"model.random.architecture"}
    for shape in ("llama", "gemma", "qwen"):
        base = found[f"shape-{shape}/base"]
        assert isinstance(base, SftConfig)
        assert base.model.random is not None
        assert (ROOT / base.model.random.architecture).is_file()


def test_models_that_are_there_are_taken_and_not_trained(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("random", "baseline", "pasta-noisy"):
        folder = tmp_path / "laptop" / name / "model"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").touch()
        steps = 800 if name in ("baseline", "pasta-noisy") else 1
        (folder.parent / "log.jsonl").write_text(f'{{"step": {steps}}}\n', "utf-8")
    plan = plan_of(paper, tmp_path)
    assert not {"base", "seed-0/baseline", "seed-0/pasta-noisy"} & {*plan.steps}
    assert {"seed-0/pasta-gold", "seed-1/baseline", "shape-llama/baseline"} < {*plan.steps}
    found = trainings(plan)
    assert found["seed-0/pasta-gold"].model.base == str(tmp_path / "laptop/random/model")
    assert found["seed-0/pasta-bon-4"].model.base == str(tmp_path / "laptop/pasta-noisy/model")
    assert "base" not in {need for step in plan.steps.values() for need in step.needs}
    recipe = tmp_path / "laptop" / "baseline.toml"
    ours = (ROOT / "runs" / "recipes" / "baseline.toml").read_text("utf-8")
    for base, rate, is_taken in (
        ("random", "8e-4", True),
        ("another", "8e-4", False),
        ("random", "7e-4", False),
    ):
        theirs = ours.replace("build/laptop/random", f"{tmp_path}/laptop/{base}")
        recipe.write_text(
            theirs.replace("learning_rate = 8e-4", f"learning_rate = {rate}"), "utf-8"
        )
        assert ("seed-0/baseline" not in plan_of(paper, tmp_path).steps) is is_taken
    recipe.unlink()
    log = tmp_path / "laptop" / "baseline" / "log.jsonl"
    log.write_text('{"step": 600}\n', "utf-8")  # by another budget
    assert "seed-0/baseline" in plan_of(paper, tmp_path).steps
    log.unlink()
    assert "seed-0/baseline" in plan_of(paper, tmp_path).steps
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").touch()
    plan = plan_of(paper, tmp_path, base=other)
    assert "seed-0/baseline" in plan.steps  # that of the laptop is of another base
    assert trainings(plan)["seed-0/baseline"].model.base == str(other)


def test_without_a_trained_base_the_sequential_model_of_the_package_is_the_base(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(paper, tmp_path, kept=KEPT)
    assert "base" not in plan.steps
    assert trainings(plan)["seed-0/baseline"].model.base == str(KEPT)
    assert "base" not in plan_of(paper, tmp_path, kept=KEPT, is_tiny=True).steps


def test_answers_to_test_prompts_that_a_model_has_given_are_not_asked_again(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "laptop" / "baseline"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.safetensors").touch()
    (folder / "log.jsonl").write_text('{"step": 800}\n', "utf-8")
    recipe = (ROOT / "runs" / "recipes" / "baseline.toml").read_text("utf-8")
    (tmp_path / "laptop" / "baseline.toml").write_text(
        recipe.replace("build/laptop/random/model", str(KEPT)), "utf-8"
    )
    results = tmp_path / "laptop" / "results"
    results.mkdir()
    records = results / "pasta-gold-test.jsonl"
    records.touch()
    for num_there, is_asked in ((840, False), (839, True)):
        records.with_suffix(".json").write_text(f'{{"num_prompts": {num_there}}}', "utf-8")
        plan = plan_of(paper, tmp_path, kept=KEPT, num_prompts=840)
        assert ("seed-0/measure/sequential" in plan.steps) is is_asked
        command = plan.steps["seed-0/measure/pasta-noisy"].command
        assert (str(records) in command) is not is_asked
    assert "hard-0/measure/sequential" in plan.steps  # of another split


@pytest.mark.parametrize("shape", ["llama", "gemma", "qwen"])
def test_the_shapes_of_the_ablation_can_be_decoded_exactly(shape: str) -> None:
    config = read_architecture(ROOT / "runs" / "recipes" / f"{shape}-2m.json")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    assert 1.5e6 < model.num_parameters() < 3e6
    check_exact(model)


def test_less_of_everything_is_less_for_all_alike(paper: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(paper, tmp_path, num_prompts=210, num_timed=2, num_sampled=50)
    found = [one for one in trainings(plan).values() if isinstance(one, PreferenceConfig)]
    assert {one.data.tasks.num_prompts for one in found if one.data.tasks} == {50}
    asked = {
        (step.name.startswith("hard"), *step.command[step.command.index("--num-prompts") :][1:4:2])
        for step in plan.steps.values()
        if step.command[:2] == ("evaluate", "tasks") and not step.name.endswith("/sequential")
    }
    assert asked == {(False, "210", "2"), (False, "105", "0"), (True, "52", "0")}


def test_the_baseline_answers_once_and_all_points_share_it(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(paper, tmp_path)
    by_page: dict[str, set[str]] = {}
    for step in plan.steps.values():
        if step.command[:2] == ("evaluate", "tasks") and "--baseline-records" in step.command:
            file = step.command[step.command.index("--baseline-records") + 1]
            (shared,) = [one for one in plan.steps.values() if file in map(str, one.parts)]
            assert shared.name in step.needs
            for flag in ("--baseline", "--split", "--num-prompts"):
                place = [one.command[one.command.index(flag) + 1] for one in (shared, step)]
                assert place[0] == place[1]
            by_page.setdefault(step.name.split("/")[0], set()).add(shared.name)
    assert {page: len(names) for page, names in by_page.items()} == dict.fromkeys(plan.pages, 1)
    assert by_page["ablations"] == by_page["seed-0"] == {"seed-0/measure/sequential"}


def test_every_point_has_a_step_that_measures_it_and_a_command_that_runs_it(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(paper, tmp_path, flags="--prompts 9")
    for page in plan.pages.values():
        assert page.ours in {point["method"] for point in page.points}
        for one in (*page.points, *page.step_costs, *page.replays):
            head, _, name = one["command"].rpartition(" --only ")
            assert head == "runs/paper-small.sh --prompts 9"
            step = plan.steps[name]
            assert one.get("records", one.get("file")) in map(str, step.parts)
            assert all(need in plan.steps for need in step.needs)
            if one.get("method") == "bound":
                assert "--bounds" in step.command
            elif "strategy" in one:
                asked = step.command[step.command.index("--strategies") + 1]
                assert one["strategy"] in asked.split(",")


def test_what_is_the_baselines_is_asked_of_the_baseline_and_of_no_other_model(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    """Under a sequential strategy ``evaluate tasks`` lets the baseline answer, whoever is asked."""
    plan = plan_of(paper, tmp_path)
    for page in plan.pages.values():
        for point in page.points:
            assert point["strategy"] not in EXACT_SEQUENTIAL or point["model"] == page.baseline
    trials = {point["name"]: point["model"] for point in plan.pages["trials"].points}
    assert "baseline-bon-best-four" in trials
    assert len({*trials.values()}) == len(trials)


# --- carrying it out


def test_a_step_that_fails_is_said_and_the_others_go_on(
    paper: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(paper, tmp_path, is_tiny=True)
    asked: list[str] = []

    def run(words: Sequence[str], out: IO[str]) -> int:
        asked.append(" ".join(words[:3]))
        return int(words[1] == "sft")

    runner = paper["runner"].Runner(plan, run)
    assert not runner.make(plan.steps["seed-0/measure/pasta-bon-4"])
    assert asked == ["train sft runs/recipes/random.toml"]
    assert {"base", "seed-0/pasta-noisy", "seed-0/pasta-bon-4"} < runner.failed
    said = capsys.readouterr().err
    assert "base: failed; again: runs/paper-small.sh --only base" in said
    assert not runner.make(plan.steps["seed-0/apar-noisy"])
    assert len(asked) == 1  # what failed is not tried again


def small_plan(paper: dict[str, Any], folder: Path, needs: dict[str, tuple[str, ...]]) -> Any:
    """Return a plan of steps by name; each makes a file."""
    plan = plan_of(paper, folder)
    plan.steps.clear()
    for name, before in needs.items():
        plan.add(name, (name,), folder / name, before)
    return plan


def test_steps_that_need_nothing_of_each_other_run_at_the_same_time(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    plan = small_plan(paper, tmp_path, {"a": (), "b": (), "c": ("a", "b"), "d": ("c",), "e": ()})
    together, asked = Barrier(2), []

    def run(words: Sequence[str], out: IO[str]) -> int:
        asked.append(words[0])
        if words[0] in "abde":
            together.wait(60)  # breaks where nobody comes
        (tmp_path / words[0]).touch()
        return 0

    assert paper["runner"].Runner(plan, run, 2).make(plan.steps["d"], plan.steps["e"])
    assert {*asked[:2]} == {"a", "b"}  # the first in the plan, and both begun before either ended
    assert {*asked[2:4]} == {"c", "e"}
    assert sorted(asked) == ["a", "b", "c", "d", "e"]
    asked.clear()
    assert paper["runner"].Runner(plan, run, 2).make(*plan.steps.values())
    assert not asked  # all of it is done


def test_nothing_runs_beside_a_step_that_has_clocks(paper: dict[str, Any], tmp_path: Path) -> None:
    plan = small_plan(paper, tmp_path, {"a": (), "clock": (), "b": (), "other-clock": ("b",)})
    for name in ("clock", "other-clock"):
        plan.steps[name] = replace(plan.steps[name], is_alone=True)
    begun: list[str] = []
    beside: dict[str, list[str]] = {}
    running: set[str] = set()

    def run(words: Sequence[str], out: IO[str]) -> int:
        (name,) = words
        begun.append(name)
        running.add(name)
        sleep(0.05)  # another one has time to begin
        beside[name] = sorted(running - {name})
        running.discard(name)
        (tmp_path / name).touch()
        return 0

    assert paper["runner"].Runner(plan, run, 2).make(*plan.steps.values())
    assert begun == ["a", "clock", "b", "other-clock"]
    assert beside["clock"] == beside["other-clock"] == []


def test_what_has_clocks_runs_alone_and_lets_the_other_cores_grade(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(paper, tmp_path, jobs=3)
    alone = {name for name, step in plan.steps.items() if step.is_alone}
    assert {name.partition("/")[0] for name in alone} == {
        *("seed-0", "seed-1", "seed-2", "ablations", "step-cost", "replay"),
        *("shape-llama", "shape-gemma", "shape-qwen"),
    }
    for name, step in plan.steps.items():
        timed = step.command[:2] == ("evaluate", "tasks") and "0" not in step.command
        assert timed == (name in alone and "/measure/" in name)
        assert timed == ("--workers" in step.command)
    one = plan_of(paper, tmp_path, jobs=1)
    assert not any("--workers" in step.command for step in one.steps.values())


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_needs_a_step_that_failed_is_left_and_the_rest_is_made(
    paper: dict[str, Any], tmp_path: Path, jobs: int
) -> None:
    plan = small_plan(paper, tmp_path, {"a": (), "b": ("a",), "c": ("b",), "d": (), "e": ("d",)})
    asked = []

    def run(words: Sequence[str], out: IO[str]) -> int:
        asked.append(words[0])
        if words[0] == "a":
            (tmp_path / "a").touch()
        return int(words[0] == "b")  # "d" says that it went well, and made nothing

    runner = paper["runner"].Runner(plan, run, jobs)
    assert not runner.make(*plan.steps.values())
    assert sorted(asked) == ["a", "b", "d"]
    assert runner.failed == {"b", "c", "d", "e"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_command_that_was_interrupted_ends_all_of_them(
    paper: dict[str, Any], tmp_path: Path, jobs: int
) -> None:
    plan = small_plan(paper, tmp_path, {"a": (), "b": (), "c": ()})
    told, asked = Event(), []

    def run(words: Sequence[str], out: IO[str]) -> int:
        asked.append(words[0])
        if words[0] == "a":
            return 130
        assert told.wait(60)  # goes on until it is asked to stop
        return 130

    with pytest.raises(SystemExit) as ended:
        paper["runner"].Runner(plan, run, jobs, told.set).make(*plan.steps.values())
    assert ended.value.code == 130
    assert sorted(asked) == ["a", "b"][:jobs]


def test_processes_share_the_cores_and_stop_when_asked(
    paper: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PASTA", sys.executable)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    said = tmp_path / "said"
    for jobs, threads in ((1, "5"), (2, "3"), (4, "1"), (9, "1")):
        with said.open("w", encoding="utf-8") as out:
            words = ("-c", "import os; print(os.environ['OMP_NUM_THREADS']); raise SystemExit(7)")
            assert paper["runner"].Processes(jobs)(words, out) == 7
        assert said.read_text("utf-8").strip() == threads
    processes = paper["runner"].Processes(2)
    waits = "import time; print(1, flush=True); time.sleep(600)"
    with said.open("w", encoding="utf-8") as out, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(processes, ("-c", waits), out)
        while not said.read_text("utf-8").startswith("1"):
            sleep(0.05)
        processes.interrupt()
        assert ended.result(60) != 0


def test_files_appear_when_a_step_has_ended_well_and_not_before(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    said, rows = tmp_path / "a" / "said.json", tmp_path / "a" / "rows.jsonl"
    step = paper["steps"].Step(
        name="s", group="", command=("x",), makes=said, parts=(rows, said), prints_to=said
    )

    def run(words: Sequence[str], out: IO[str], code: int = 0) -> int:
        paper["steps"].part_of(rows).write_text("row")
        out.write("{}")
        assert not said.exists()
        assert not rows.exists()
        return code

    assert paper["runner"].carry_out(step, lambda words, out: run(words, out, 1)) == 1
    assert not said.exists()
    assert not rows.exists()
    assert paper["runner"].carry_out(step, run) == 0
    assert (said.read_text(), rows.read_text()) == ("{}", "row")
    assert {path.name for path in said.parent.iterdir()} == {"said.json", "rows.jsonl"}


def test_a_verdict_over_seeds_is_the_least_and_says_what_lacks(paper: dict[str, Any]) -> None:
    least = paper["headline"].least
    assert least(["better", "better", "better"]) == "better"
    assert least(["better", "not separated", "better"]) == "not separated"
    assert least(["better", "worse", "not separated (a trade)"]) == "worse"
    assert least(["better", "not run", "not run"]) == "better (1 of 3 seeds)"
    assert least(["not run", "not run", "not run"]) == "not run (0 of 3 seeds)"


@pytest.mark.parametrize(
    ("places", "area"),
    [
        ([], 0),
        ([(2.0, 0.5)], 0.5),
        ([(2.0, 0.5), (1.5, 0.8)], 0.5 + 0.3 * 0.5),
        ([(1.5, 0.8), (1.4, 0.7), (2.0, 0.5)], 0.5 + 0.3 * 0.5),  # one is covered
        ([(0.9, 0.9)], 0),  # slower than the baseline
    ],
)
def test_a_hypervolume_is_what_the_points_cover_together(
    paper: dict[str, Any], places: list[tuple[float, float]], area: float
) -> None:
    assert paper["rounds"].hypervolume(places) == pytest.approx(area)


# --- a part of it as a toy

PART = ("--only", "replay/pasta-bon-4", "--only", "step-cost/llama-tiny")
"""With what it needs: base, both finetunings, stage two, a measurement."""
NUM_STEPS = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    done = toy(out, *PART)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{out / 'report.md'}\n"
    return out


def toy(out: Path, *flags: str, **changes: str) -> subprocess.CompletedProcess[str]:
    usual = {name: value for name, value in os.environ.items() if name != "PASTA"}
    environment = usual | {"OUT": str(out), "PYTHON": sys.executable} | changes
    return subprocess.run(
        [SCRIPT, "--tiny", *flags], env=environment, capture_output=True, text=True, cwd=ROOT
    )


def page(made: Path, name: str = "seed-0") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made / "results" / f"{name}.json").read_text("utf-8"))
    return found


def test_a_step_is_made_with_all_that_it_needs_and_nothing_else(made: Path) -> None:
    lines = toy(made, "--list").stdout.splitlines()
    done = [line.split()[-1] for line in lines if line.startswith("done ")]
    assert done == [
        *("seed-0/baseline", "seed-0/measure/sequential"),
        *("seed-0/pasta-noisy", "seed-0/pasta-bon-4", "seed-0/measure/pasta-bon-4"),
        *("step-cost/llama-tiny", "programs/pasta-bon-4"),
        "replay/pasta-bon-4",
    ]
    assert len(done) == NUM_STEPS


def test_a_page_shows_bounds_step_costs_and_replays_beside_the_points(made: Path) -> None:
    found = page(made)
    by_name = {point["name"]: point for point in found["points"]}
    bounds = {"Perfect forks", "Always fork", "Random fork"}
    assert by_name.keys() == {"Pasta-BoN, lambda 4", *bounds}
    assert by_name["Perfect forks"]["is_bound"]
    assert by_name["Pasta-BoN, lambda 4"]["of_perfect_forks"]["realised"]["mean"] > 0
    (steps,), (replay,) = found["step_costs"], found["replays"]
    assert steps["found"]["weights"] == "random-weights"
    assert [*steps["found"]["step_ms"]] == ["1", "2"]
    assert (replay["found"]["kind"], replay["found"]["weights"]) == ("replayed", "random-weights")
    assert (made / "results" / "seed-0.md").read_text("utf-8").startswith("# ")
    assert 'class="bound"' in (made / "results" / "seed-0.svg").read_text("utf-8")


def test_the_report_lists_what_was_not_run_with_its_command(
    made: Path, paper: dict[str, Any]
) -> None:
    text = (made / "report.md").read_text("utf-8")
    assert "A toy: its figures mean nothing." in text
    assert "| 0 | round two | " in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| APAR-BoN")]
    assert rows
    assert all(row[3:6] == ["not run"] * 3 for row in rows)
    options = {"is_tiny": True, "flags": "--tiny", "out": made, "laptop": made}
    plan = paper["order"].comparison(paper["steps"].Options(**options))
    lacking = re.findall(rf"not run: `OUT={made} runs/paper-small.sh --tiny --only (\S+)`", text)
    there = {step.name for step in plan.steps.values() if step.is_done}
    asked = [point for one in plan.pages.values() for point in one.points]
    commands = {point["command"].rpartition(" ")[2] for point in asked}
    assert {*lacking} == commands - there
    assert "ablations/measure/samples-20" in lacking


def test_a_folder_is_not_gone_on_with_by_other_flags(made: Path) -> None:
    done = toy(made, "--timed", "3", *PART)
    assert done.returncode == 1
    assert "was begun with num_timed = 10, not 3: type the same flags" in done.stderr


def test_a_second_run_repeats_nothing(made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file()}
    done = toy(made, *PART, PASTA="false")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count(": done before") == 2
    assert {p: p.stat().st_mtime_ns for p in made.rglob("*") if p.is_file()} == before


def test_a_step_that_does_not_exist_is_refused(made: Path) -> None:
    done = toy(made, "--only", "seed-0/nothing")
    assert done.returncode == 1
    assert "no step seed-0/nothing; --list names them" in done.stderr


@pytest.mark.parametrize(
    ("flag", "least"), [("--prompts", 1), ("--timed", 0), ("--sampled", 1), ("--jobs", 1)]
)
def test_a_number_that_means_nothing_is_refused(tmp_path: Path, flag: str, least: int) -> None:
    done = toy(tmp_path, flag, str(least - 1))
    assert done.returncode == 2
    assert f"{flag} {least - 1}: at least {least}" in done.stderr


# --- all of it as a toy


@pytest.mark.slow
def test_the_whole_toy_has_a_point_of_every_kind_and_a_verdict_on_each_rival(
    tmp_path: Path,
) -> None:
    done = toy(tmp_path, "--trials")
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(
        line.startswith("done ") for line in toy(tmp_path, "--trials", "--list").stdout.splitlines()
    )
    found = page(tmp_path)
    assert {point["method"] for point in found["points"]} == {
        *("sequential", "bound", "Pasta-SFT", "Pasta-BoN", "Pasta-BoN, on the way"),
        *("APAR", "APAR-BoN"),
        *("rule-pasta", "rule-pasta-BoN", "SoT"),
    }
    assert found["fastest_sequential"].startswith("Baseline-SFT")
    assert {row["rival"] for row in found["comparisons"]} > {"APAR-BoN, lambda 4", "SoT-SFT"}
    assert found["not_run"] == []
    assert page(tmp_path, "hard-0")["split"] == "hard"
    first, other = (tmp_path / "seed-0" / f"pasta-bon-{weight}" for weight in ("4", "inf"))
    assert (first / "round-1" / "rollouts.jsonl").is_file()
    assert (other / "round-1" / "pairs.jsonl").is_file()
    assert not (other / "round-1" / "rollouts.jsonl").exists()
    assert (other / "round-2" / "rollouts.jsonl").is_file()
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "| pasta-bon-4 | pair | 0.005 | 5e-05 | 1 | " in text
    for row in [line.split(" | ") for line in text.splitlines() if line.startswith("| APAR-BoN")]:
        assert row[3] in {
            "better",
            "not separated",
            "not separated (a trade)",
            "worse",
            "not timed",
        }
        assert "(1 of 3 seeds)" in row[8] or row[3] == "not timed"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert toy(tmp_path, PASTA="false").returncode == 0
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before
