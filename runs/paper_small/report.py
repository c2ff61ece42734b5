"""The report over all pages: verdicts by seed, stages, reference points, what was not run."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headline import OURS, Answers, answers_of, headline
from pages import SETTINGS, TRIALS, trial_name
from plan import FIRST, SEEDS, Plan
from rounds import rounds
from stages import stages
from table import cell, table

from pasta_lab.evaluate.frontier import over_prompts
from pasta_lab.evaluate.records import commit, processor
from pasta_lab.tasks import make
from pasta_lab.tasks.annotators import gold
from pasta_lab.tasks.registry import training_families

Figures = dict[str, Any]
SPEEDS = ("theoretical", "realised")
OF_PERFECT = tuple(f"of perfect forks, {speed}" for speed in SPEEDS)
MIN_QUALITY, MIN_SHARE = -0.02, 0.90
MIN_SPEED, MAX_FORKS = 0.98, 0.02
"""Of families that cannot gain."""
LEFT_OUT = (
    ("positions: oracle", "its lengths are known only once an answer is there"),
    ("positions: rotate, trained", "until a sync it is trained as predict; decoded, it is a point"),
    ("length in digits", "the vocabulary spells a length as one piece"),
    ("tuning of beta", "it is BoNBoN's; of alpha, rates and pairs see the trials"),
)
"""Ablations of the paper that no step runs, and why."""


def write_report(path: Path, plan: Plan) -> None:
    """Write the report as Markdown."""
    pages = {name: _read(plan, name) for name in plan.pages}
    lines = ["# PASTA and its baselines on one base model", "", f"Base: `{plan.options.base}`.", ""]
    if plan.options.is_tiny:
        lines += ["A toy: its figures mean nothing.", ""]
    seeds = {seed: pages[f"seed-{seed}"] for seed in _seeds(plan)}
    answers = {seed: answers_of(plan, f"seed-{seed}") for seed in seeds}
    points = {seed: _by_name(page) for seed, page in seeds.items()}
    unusual = {n for by in points.values() for n, one in by.items() if one["is_length_unusual"]}
    for part in (
        _budget(plan),
        _trials(plan, _by_name(pages["trials"])),
        headline(plan, answers, unusual),
        stages(points, answers),
        _quality(pages),
        _references(seeds),
        _no_gain(answers),
        _ablations(pages["ablations"]),
        _shapes(pages),
        rounds(plan, _by_name(pages["ablations"]), answers_of(plan, "ablations")),
        _pages(plan, pages),
        _not_run(plan, pages),
    ):
        lines += [*part, ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")


def _seeds(plan: Plan) -> list[int]:
    return list(dict.fromkeys((*SEEDS, *plan.options.seeds)))


def _read(plan: Plan, name: str) -> Figures | None:
    path = plan.options.out / "results" / f"{name}.json"
    found: Figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found or None


def _budget(plan: Plan) -> Iterator[str]:
    """Yield the training budget, as the recipes have it."""
    yield "## Budget, the same for all"
    yield ""
    options = plan.options
    if not options.is_tiny:
        sft, bon = _toml("pasta-noisy"), _toml("pasta-bon-4")
        one, two = sft["train"], bon["train"]
        sampled = options.num_sampled or bon["data"]["tasks"]["num_prompts"]
        yield f"- Finetuning of the base: {one['steps']} steps of at most"
        yield f"  {sft['data']['max_tokens']} tokens, AdamW at"
        yield f"  {one['learning_rate']:g}."
        yield f"- Stage two: {two['rounds']} rounds of {sampled} prompts with"
        yield f"  {bon['rollouts']['samples']} samples each, {two['epochs']} epoch,"
        yield "  AdamW as trials chose, as many for every method; round one's"
        yield "  samples are shared by all weights of a method."
    yield f"- {options.num_prompts} test prompts, {options.num_timed} of each family timed; what is"
    yield "  `generated` and what `replayed` stands on each page."
    yield f"- Commit {commit() or 'of a release'}, torch {version('torch')}, {processor()},"
    yield f"  {os.cpu_count()} cores."


def _toml(recipe: str) -> Figures:
    return tomllib.loads(Path(f"runs/recipes/{recipe}.toml").read_text(encoding="utf-8"))


def _trials(plan: Plan, points: Mapping[str, Figures]) -> Iterator[str]:
    """Yield the figures of each setting, and which one each recipe has."""
    yield "## Trials: the setting of stage two"
    yield ""
    yield "One round, lambda 4, on development prompts. A recipe has the setting with the highest"
    yield "grade of those that raise parallelism."
    yield ""
    rows = []
    for recipe, *_ in TRIALS:
        for setting in ("before", *SETTINGS):
            name = trial_name(recipe, setting)
            if name in points:
                figures = (cell(points[name][key]) for key in ("quality", "parallelism"))
                keys = _keys_of_trial(plan, name)
                is_taken = keys and [float(key) for key in keys] == _setting(recipe)
                taken = "taken" if is_taken else ""
                row = (recipe, setting.replace("-", " "), *(keys or "---"), *figures, taken)
                rows.append(row)
    yield from table(("run", "setting", "alpha", "rate", "pairs", "grade", "parallelism", ""), rows)


def _keys_of_trial(plan: Plan, name: str) -> list[str]:
    """Return alpha, learning rate and pairs of a trial; nothing for a finetuning alone."""
    step = plan.steps.get(f"trials/{name}")
    changes = [word.removeprefix("--set=") for word in step.command] if step else []
    found = dict(change.split("=", 1) for change in changes if "=" in change)
    keys = ("loss.alpha", "train.learning_rate", "score.pairs")
    return [f"{float(found[key]):g}" for key in keys] if step else []


def _setting(recipe: str) -> list[float]:
    found = _toml(recipe)
    rate = found["train"]["learning_rate"]
    return [found["loss"]["alpha"], rate, found["score"].get("pairs", 1)]


def _quality(pages: dict[str, Figures | None]) -> Iterator[str]:
    yield f"## Grade against sequential: is the lower bound above {MIN_QUALITY}?"
    yield ""
    header = ("page", "point", "minus the baseline's", "won, tied, lost", "length / baseline's", "")
    answered = {n: page for n, page in pages.items() if n.startswith(("seed-", "hard-"))}
    rows = ((name, *_kept(one)) for name, page in answered.items() for one in _ours(page))
    yield from table(header, rows)


def _kept(point: Figures) -> Iterator[str]:
    yield point["name"]
    yield cell(point["quality_difference"])
    yield ", ".join(str(point[key]) for key in ("wins", "ties", "losses"))
    yield ("! " if point["is_length_unusual"] else "") + cell(point["length_ratio"])
    yield "yes" if point["quality_difference"]["low"] > MIN_QUALITY else "**no**"


def _references(seeds: Mapping[int, Figures | None]) -> Iterator[str]:
    yield "## Speed against perfect forks and against the fastest exact sequential way"
    yield ""
    yield f"Aim: {MIN_SHARE} of the speed of perfect forks. On a model this small part of every"
    yield "gain is overhead that threads share: what a step of several rows costs, and the same"
    yield "programs at another shape (replayed, random weights), stand on the page of seed 0."
    yield ""
    header = ("seed", "point", "realised", "fastest sequential way", "over it", *OF_PERFECT, "")
    rows = (
        (str(seed), *_shares(point, page["fastest_sequential"] or "not run"))
        for seed, page in seeds.items()
        if page
        for point in _ours(page)
        if point["of_perfect_forks"]
    )
    yield from table(header, rows)


def _shares(point: Figures, fastest: str) -> Iterator[str]:
    share = point["of_perfect_forks"]
    yield point["name"]
    yield cell(point["realised_speedup"])
    yield fastest
    yield cell(point["over_fastest_sequential"])
    yield from (cell(share[speed]) for speed in SPEEDS)
    is_reached = share["realised"] and share["realised"]["mean"] >= MIN_SHARE
    yield "reached" if is_reached else "**missed**"


def _no_gain(seeds: Mapping[int, Answers]) -> Iterator[str]:
    yield "## Families that cannot gain"
    yield ""
    yield f"Aim: {MIN_SPEED}x realised at least, and at most {MAX_FORKS:.0%} of answers forked."
    yield ""
    names = [
        name
        for name in training_families()
        if not any(gold(make(name, "test", seed)).blocks for seed in range(20))
    ]
    groups = {"all of them": names} | {name: [name] for name in names}
    rows = []
    for seed, answers in seeds.items():
        for point in (one for one in answers.values() if one.point.method == OURS):
            for group, families in groups.items():
                ids = [name for name, one in point.answers.items() if one.family in families]
                if ids:
                    gained = _gained(over_prompts(point, ids))
                    rows.append((str(seed), point.point.name, group, *gained))
    header = ("seed", "point", "family", "realised", "timed", "forked", "of", "")
    yield from table(header, rows)


def _gained(found: Figures) -> Iterator[str]:
    speed, rate = found["realised_speedup"], found["answers_forked"]
    yield cell(speed)
    yield str(found["num_timed"])
    yield f"{rate:.3f}"
    yield str(found["num_prompts"])
    if speed is None:
        yield "not timed"
    else:
        is_kept = rate <= MAX_FORKS and speed["mean"] >= MIN_SPEED
        yield "reached" if is_kept else "**missed**"


def _ablations(page: Figures | None) -> Iterator[str]:
    yield f"## Ablations of Pasta-BoN, lambda {FIRST}"
    yield ""
    yield "Difference of grades and ratio of speedups, paired by prompt: above 0 and 1 the"
    yield "change has cost something."
    yield ""
    found = page["comparisons"] if page else ()
    unusual = {n for n, one in _by_name(page).items() if one["is_length_unusual"]}
    rows = (
        (
            f"! {row['rival']}" if row["rival"] in unusual else row["rival"],
            *(cell(row[key]) for key in ("quality_difference", "speed_ratio")),
            row["verdict"],
        )
        for row in found
        if row["speed"] == "theoretical"
    )
    header = ("change", "difference of grades", "ratio of theoretical speedups", "verdict")
    yield from table(header, rows)
    yield ""
    for name, reason in LEFT_OUT:
        yield f"- {name}: not run: {reason}."


def _shapes(pages: Mapping[str, Figures | None]) -> Iterator[str]:
    """Yield the models on bases of other shapes; what was not run is listed below."""
    yield "## Shapes from random weights"
    yield ""
    keys = ("quality", "quality_difference", "theoretical_speedup", "fork_precision", "fork_recall")
    rows = (
        (name.removeprefix("shape-"), point["name"], *(cell(point[key]) for key in keys))
        for name, page in pages.items()
        if name.startswith("shape-")
        for point in _by_name(page).values()
    )
    yield from table(("shape", "point", *(key.replace("_", " ") for key in keys)), rows)


def _pages(plan: Plan, pages: dict[str, Figures | None]) -> Iterator[str]:
    yield "## Pages"
    yield ""
    for name, page in pages.items():
        if page:
            num = f"{page['num_prompts']} prompts of split {page['split']}"
            kinds = ", ".join(page["kinds"])
            yield f"- [{plan.pages[name].title}](results/{name}.md): {num}, {kinds}"


def _not_run(plan: Plan, pages: dict[str, Figures | None]) -> Iterator[str]:
    yield "## Not run"
    yield ""
    for name, page in pages.items():
        asked = plan.pages[name]
        there = {one["name"] for one in page["points"]} if page else set()
        beside = [*asked.step_costs, *asked.replays]
        lacking = [one for one in asked.points if one["name"] not in there]
        found = (*(page["step_costs"] if page else ()), *(page["replays"] if page else ()))
        done = {one["name"] for one in found if one["found"]}
        lacking += [one for one in beside if one["name"] not in done]
        for one in lacking:
            yield f"- {name}: {one['name']}: not run: `{one['command']}`"


def _ours(page: Figures | None) -> Iterable[Figures]:
    points: list[Figures] = page["points"] if page else []
    return [point for point in points if point["method"] == OURS]


def _by_name(page: Figures | None) -> dict[str, Figures]:
    points: list[Figures] = page["points"] if page else []
    return {point["name"]: point for point in points}
