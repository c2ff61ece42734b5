"""The comparison of the paper at a small scale: its makefile, and a part of it as a toy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from pasta_lm.engines.local.random_model import read_architecture
from pasta_lm.engines.local.self_test import check_exact
from pasta_lm.learn.train.config import SftConfig
from pasta_lm.learn.train.preference_config import PreferenceConfig
from pasta_lm.recipe import read_recipe
from pasta_lm.strategies.model import EXACT_SEQUENTIAL

ROOT = Path(__file__).parents[3]
SCRIPT = str(ROOT / "runs" / "paper-small.sh")
STEP = str(ROOT / "runs" / "paper_small" / "step.sh")


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def plan_of(paper: dict[str, Any], folder: Path, **changes: Any) -> Any:
    usual = {"out": folder / "out", "base": "some/base"}
    return paper["pages"].read_plan(paper["plan"].Options(**{**usual, **changes}))


def verbs(step: Any) -> list[str]:
    """Return the words of a step's command behind ``pasta``; of a script its own."""
    words = [*step.command]
    return words[words.index("pasta_lm") + 1 :] if "pasta_lm" in words else words[1:]


def recipe_of(words: Sequence[str]) -> SftConfig | PreferenceConfig:
    """Read the recipe of a training as its command changes it."""
    changes = [word.removeprefix("--set=") for word in words if word.startswith("--set=")]
    kind = SftConfig if words[1] == "sft" else PreferenceConfig
    return read_recipe(Path(words[2]), kind, changes)


def trainings(plan: Any) -> dict[str, SftConfig | PreferenceConfig]:
    words = {name: verbs(step) for name, step in plan.steps.items()}
    found = {name: one for name, one in words.items() if one[1] in ("sft", "preference")}
    return {name: recipe_of(one) for name, one in found.items()}


# --- the plan


def test_steps_are_ordered_pasta_other_methods_further_seeds_ablations(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    names = list(plan_of(paper, tmp_path).steps)
    order = [
        *(
            "seed-0/baseline",
            "seed-0/pasta-bon-4",
            "seed-0/measure/pasta-bon-4",
            "seed-0/pasta-bon-1",
        ),
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
        plan = plan_of(paper, tmp_path, **changes)
        assert {*plan.options.groups} < {step.group for step in plan.steps.values()}
        return {*plan.options.groups}

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
            setting = (config.loss.alpha, rate, pairs)
            runs = [f"trials/{recipe}-" for recipe in paper["pages"].RECIPES]
            tried = next((one[7:-1] for one in runs if name.startswith(one)), "")
            settings.setdefault(tried, set()).add(setting)
            tasks, rollouts = config.data.tasks, config.rollouts
            assert tasks is not None
            one = (tasks.num_prompts, rollouts.samples, rollouts.temperature, rollouts.max_tokens)
            if "samples" not in name:
                sampled.add((*one, config.loss.kind, config.loss.beta))
    assert len(budgets) == 2
    assert len(sampled) == 1
    trials = {(0.005, 5e-5, 1), (1.0, 2e-4, 1), (1.0, 4e-4, 4)}
    assert [settings.pop(recipe) for recipe in paper["pages"].RECIPES] == [trials] * 4
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
    for shape in ("llama", "gemma", "qwen"):
        base = found[f"shape-{shape}/base"]
        assert isinstance(base, SftConfig)
        assert base.model.random is not None
        assert base.model.random.architecture == f"runs/recipes/{shape}-2m.json"
        assert (ROOT / base.model.random.architecture).is_file()


def test_the_base_is_the_model_of_the_laptop_run_unless_one_is_named(
    paper: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def base_of(*flags: str) -> str | None:
        monkeypatch.setattr(sys, "argv", ["run.py", *flags])
        base: str | None = paper["run"].read_options()[0].base
        return base

    recipe = tomllib.loads((ROOT / "runs" / "recipes" / "random.toml").read_text("utf-8"))
    assert base_of() == f"{recipe['train']['out']}/model"
    assert base_of("--base", "other") == "other"
    assert base_of("--tiny") is None  # a toy makes its own


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
        (step.name.startswith("hard"), step.flag("--num-prompts"), step.flag("--num-timed"))
        for step in plan.steps.values()
        if verbs(step)[:2] == ["evaluate", "tasks"] and not step.name.endswith("/sequential")
    }
    assert asked == {(False, "210", "2"), (False, "105", "0"), (True, "52", "0")}


def records_of(step: Any) -> str:
    """Return the records that a step leaves; empty if it leaves none."""
    return step.flag("--records").removesuffix(".part") if "--records" in step.command else ""


def shared_records(step: Any) -> str:
    """Return the records of the baseline that a step takes; empty if it takes none."""
    key = "baseline_records="
    return next((word.removeprefix(key) for word in step.command if word.startswith(key)), "")


def test_the_baseline_answers_once_and_all_points_share_it(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(paper, tmp_path)
    by_page: dict[str, set[str]] = {}
    for step in plan.steps.values():
        if verbs(step)[:2] == ["evaluate", "tasks"] and shared_records(step):
            file = shared_records(step)
            (shared,) = [one for one in plan.steps.values() if records_of(one) == file]
            assert shared.name in step.needs
            for flag in ("--baseline", "--split", "--num-prompts"):
                assert shared.flag(flag) == step.flag(flag)
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
            assert one.get("records", one.get("file")) in (records_of(step), str(step.file))
            assert all(need in plan.steps for need in step.needs)
            if one.get("method") == "bound":
                assert "bounds=true" in step.command
            elif "strategy" in one:
                assert one["strategy"] in step.flag("--strategies").split(",")
    points = {point["command"] for page in plan.pages.values() for point in page.points}
    measured = {name for name in plan.steps if "/measure/" in name and "sequential" not in name}
    assert measured == {command.rpartition(" ")[2] for command in points}


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


# Stands for pasta: writes what a command would make, and a line into LOG at its start and its end.
# MEET waits until so many commands have started; FAIL, LIE and STOP name outputs that fail, are not
# written although all went well, or are interrupted.
PASTA = """
import os, re, sys, time
from pathlib import Path
words = " ".join(sys.argv[1:])
found = re.search(r"train.out=(\\S+)|--out (\\S+)|--records (\\S+)[.]part", words)
name = next(filter(None, found.groups())) if found else "page"
rounds = re.search(r"train.rounds=(\\d+)", words)
def log(word):
    with open(os.environ["LOG"], "a", encoding="utf-8") as file:
        file.write(f"{word} {name} {os.environ.get('OMP_NUM_THREADS')}\\n")
    return Path(os.environ["LOG"]).read_text("utf-8").count("start")
def is_named(variable):
    return os.environ.get(variable, "?") in name
try:
    num, deadline = log("start"), time.monotonic() + 300
    while num < int(os.environ.get("MEET", 0)) and time.monotonic() < deadline:
        time.sleep(0.05)
        num = Path(os.environ["LOG"]).read_text("utf-8").count("start")
    if is_named("STOP"):
        sys.exit(130)
    time.sleep(600 if is_named("SLEEP") else 0)
except KeyboardInterrupt:
    log("interrupted")
    sys.exit(130)
if name == "page" or is_named("FAIL"):
    sys.exit(1)
if not is_named("LIE"):
    if "train.out" in words:
        folder = Path(name) / (f"round-{rounds[1]}/model" if rounds else "model")
        folder.mkdir(parents=True)
        (folder / "model.safetensors").touch()
    elif "--records" in words:
        Path(name + ".part").touch()
        print("{}")
    log("end")
"""


def run_fake(out: Path, *flags: str, **changes: str) -> tuple[int, str, list[list[str]]]:
    """Run the script with a fake ``pasta``; return its code, its errors and the log."""
    out.mkdir(exist_ok=True)
    (out / "pasta.py").write_text(PASTA, encoding="utf-8")
    log = out / "log"
    log.unlink(missing_ok=True)
    fake = {"PASTA": f"{sys.executable} {out / 'pasta.py'}", "LOG": str(log)}
    done = run_script(out, "--base", "some/base", *flags, **fake, **changes)
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    named = [line.replace(f"{out}/", "").split() for line in lines]
    return done.returncode, done.stderr, [one for one in named if one[1] != "page"]


def run_script(out: Path, *flags: str, **changes: str) -> subprocess.CompletedProcess[str]:
    usual = {name: value for name, value in os.environ.items() if name != "PASTA"}
    environment = usual | {"OUT": str(out), "PYTHON": sys.executable} | changes
    return subprocess.run(
        [SCRIPT, *flags], env=environment, capture_output=True, text=True, cwd=ROOT
    )


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_steps_that_need_a_failed_step_are_skipped_and_the_others_are_made(
    tmp_path: Path, jobs: str
) -> None:
    steps = only("seed-0/measure/pasta-bon-4", "seed-0/apar-noisy", "seed-0/apar-bon-4")
    code, said, log = run_fake(tmp_path, "--jobs", jobs, *steps, FAIL="pasta-noisy")
    assert code == 1
    made = {
        "seed-0/baseline",
        "seed-0/apar-noisy",
        "seed-0/apar-bon-4",
        "results/seed-0/sequential.jsonl",
    }
    assert {name for word, name, _ in log if word == "end"} == made
    assert {name for word, name, _ in log if word == "start"} == made | {"seed-0/pasta-noisy"}
    again = f"OUT={tmp_path} runs/paper-small.sh --base some/base --only seed-0/pasta-noisy"
    assert f"seed-0/pasta-noisy: failed; again: {again}" in said
    assert "not run: " in (tmp_path / "report.md").read_text("utf-8")


def test_a_command_that_ends_well_and_makes_nothing_has_failed(tmp_path: Path) -> None:
    code, said, _ = run_fake(tmp_path, *only("seed-0/apar-noisy"), LIE="apar-noisy")
    assert code == 1
    assert "seed-0/apar-noisy: failed; again: " in said


def test_independent_steps_run_at_the_same_time_and_what_is_done_is_not_repeated(
    tmp_path: Path,
) -> None:
    steps = only("seed-0/baseline", "seed-0/pasta-noisy")
    _, _, log = run_fake(tmp_path, "--jobs", "2", *steps, MEET="2")
    assert [word for word, *_ in log] == ["start", "start", "end", "end"]
    threads = str(max(1, (os.cpu_count() or 1) // 2))
    assert {shared for *_, shared in log} == {threads}
    code, said, log = run_fake(tmp_path, "--jobs", "2", *steps)
    assert (log, said.count(": done before")) == ([], 2)


def test_nothing_runs_beside_a_step_that_has_clocks(tmp_path: Path) -> None:
    steps = only("seed-0/measure/pasta-noisy", "seed-0/measure/apar-noisy", "seed-0/sot-noisy")
    _, _, log = run_fake(tmp_path, "--jobs", "2", *steps)
    names = [name for _, name, _ in log]
    for clock in ("results/seed-0/pasta-noisy.jsonl", "results/seed-0/apar-noisy.jsonl"):
        first = names.index(clock)
        assert names[first : first + 2] == [clock] * 2
        assert names.index("seed-0/sot-noisy") < first
    assert {name for word, name, _ in log if word == "end"} == {*names}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_command_stops_all_of_them(tmp_path: Path, jobs: str) -> None:
    steps = only("seed-0/baseline", "seed-0/pasta-noisy", "seed-0/apar-noisy")
    code, said, log = run_fake(
        tmp_path, "--jobs", jobs, *steps, STOP="baseline", SLEEP="noisy", MEET=jobs
    )
    assert code == 130
    assert "interrupted; run it again to go on" in said
    words = [word for word, *_ in log]
    assert words == ["start"] * int(jobs) + ["interrupted"] * (jobs == "2")


def test_what_has_clocks_runs_alone_and_lets_the_other_cores_grade(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(paper, tmp_path, jobs=3)
    alone = {name for name, step in plan.steps.items() if step.is_timed}
    groups = {"seed-0", "seed-1", "seed-2", "ablations", "step-cost", "replay"}
    groups |= {"shape-llama", "shape-gemma", "shape-qwen"}
    assert {name.partition("/")[0] for name in alone} == groups
    for name, step in plan.steps.items():
        timed = verbs(step)[:2] == ["evaluate", "tasks"] and step.flag("--num-timed") != "0"
        assert timed == (name in alone and "/measure/" in name)
        assert timed == ("workers=3" in step.command)
    one = plan_of(paper, tmp_path, jobs=1)
    assert not any("workers=" in " ".join(step.command) for step in one.steps.values())


def test_files_appear_when_a_step_has_ended_well_and_not_before(tmp_path: Path) -> None:
    said, rows = tmp_path / "a" / "said.json", tmp_path / "a" / "rows.jsonl"
    outputs = {**os.environ, "OUTPUTS": f"{said} {rows}"}

    def carry_out(code: int) -> int:
        check = f"test ! -e {said} && test ! -e {rows} && echo '{{}}' && echo row > {rows}.part"
        words = [STEP, "name", str(said), "bash", "-c", f"{check} && exit {code}"]
        return subprocess.run(words, env=outputs, capture_output=True).returncode

    assert carry_out(1) == 1
    assert not said.exists()
    assert not rows.exists()
    assert carry_out(0) == 0
    assert (said.read_text(), rows.read_text()) == ("{}\n", "row\n")
    assert {path.name for path in said.parent.iterdir()} == {"said.json", "rows.jsonl"}


def test_a_verdict_over_seeds_is_the_worst_and_says_how_many_were_run(
    paper: dict[str, Any],
) -> None:
    worst = paper["headline"].worst
    assert worst(["better", "better", "better"]) == "better"
    assert worst(["better", "not separated", "better"]) == "not separated"
    assert worst(["better", "worse", "not separated (a trade)"]) == "worse"
    assert worst(["better", "not run", "not run"]) == "better (1 of 3 seeds)"
    assert worst(["not run", "not run", "not run"]) == "not run (0 of 3 seeds)"


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
"""With what it needs: base, both finetunings, stage two, a measurement, an export."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    done = toy(out, *PART)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{out / 'report.md'}\n"
    return out


def toy(out: Path, *flags: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return run_script(out, "--tiny", *flags, **changes)


def page(made: Path, name: str = "seed-0") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made / "results" / f"{name}.json").read_text("utf-8"))
    return found


@pytest.mark.slow
def test_a_step_is_made_with_all_that_it_needs_and_nothing_else(made: Path) -> None:
    lines = toy(made, "--list").stdout.splitlines()
    done = [line.split()[-1] for line in lines if line.startswith("done ")]
    assert done == [
        *("base", "seed-0/baseline", "seed-0/measure/sequential"),
        *("seed-0/pasta-noisy", "seed-0/pasta-bon-4", "seed-0/measure/pasta-bon-4"),
        *("step-cost/llama-tiny", "programs/pasta-bon-4"),
        "replay/pasta-bon-4",
    ]


@pytest.mark.slow
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
    assert "<svg" in (made / "results" / "seed-0.svg").read_text("utf-8")


@pytest.mark.slow
def test_the_report_lists_what_was_not_run_with_its_command(
    made: Path, paper: dict[str, Any]
) -> None:
    text = (made / "report.md").read_text("utf-8")
    assert "A toy: its figures mean nothing." in text
    assert "| 0 | round two | " in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| APAR-BoN")]
    assert rows
    assert all(row[3:6] == ["not run"] * 3 for row in rows)
    plan = plan_of(paper, made, is_tiny=True, flags="--tiny", out=made, base=None)
    lacking = re.findall(rf"not run: `OUT={made} runs/paper-small.sh --tiny --only (\S+)`", text)
    there = {step.name for step in plan.steps.values() if step.is_done}
    asked = [point for one in plan.pages.values() for point in one.points]
    commands = {point["command"].rpartition(" ")[2] for point in asked}
    assert {*lacking} == commands - there
    assert "ablations/measure/samples-20" in lacking


@pytest.mark.slow
def test_a_folder_is_not_gone_on_with_by_other_flags(made: Path) -> None:
    done = toy(made, "--timed", "3", *PART)
    assert done.returncode == 1
    assert "was begun with num_timed = 10, not 3: type the same flags" in done.stderr


@pytest.mark.slow
def test_a_second_run_repeats_nothing(made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file()}
    done = toy(made, *PART, PASTA="false")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count(": done before") == 2
    assert {p: p.stat().st_mtime_ns for p in made.rglob("*") if p.is_file()} == before


@pytest.mark.slow
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
