"""The pages of the comparison: which measured answers are points, under which names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from plan import FIRST, SEEDS, SHAPES, WEIGHTS, Options, Page, Plan, Step, read_steps

ON_THE_WAY = "Pasta-BoN, on the way"
"""Method of the models before the last round: they are shown, and enter no verdict."""
PAGE_KEYS = ("title", "ours", "baseline", "split", "num_prompts", "num_timed")
RECIPES = ("pasta-bon-4", "apar-bon-4", "rule-pasta-bon-4", "baseline-bon")
METHODS = ("Pasta-BoN", "APAR-BoN", "rule-pasta-BoN", "Baseline-BoN")
TRIALS = (
    *zip(RECIPES, METHODS, ("pasta", "apar", "pasta", "pasta"), strict=True),
)  # recipe, method, strategy; the baseline has no tags and forks nothing
BASES = ("pasta-noisy", "apar-noisy", "rule-pasta", "baseline")
SETTINGS = ("pair", "best", "best-four")


class Point(NamedTuple):
    """A point of a page: the answers of one strategy in one file of records."""

    measured: str
    """Name of the step that measures it, without its page."""
    name: str
    method: str
    label: str = ""
    strategy: str = "pasta"


def read_plan(options: Options) -> Plan:
    """Return the steps of the makefile and the pages that they fill."""
    steps = read_steps(options)
    pages = {}
    for seed in dict.fromkeys((*SEEDS, *options.seeds)):
        title = f"PASTA and its baselines on one base, training seed {seed}"
        pages[f"seed-{seed}"] = _page(options, steps, f"seed-{seed}", title, [*seed_points()])
        title = f"The hard split, training seed {seed}"
        pages[f"hard-{seed}"] = _page(options, steps, f"hard-{seed}", title, [*hard_points()])
    title = "Settings of stage two, on development prompts"
    pages["trials"] = _page(options, steps, "trials", title, [*trial_points()])
    title = f"One change at a time: Pasta-BoN, lambda {FIRST}, seed 0"
    pages["ablations"] = _page(options, steps, "ablations", title, [*ablation_points()])
    for shape in () if options.is_tiny else SHAPES:
        title, points = f"PASTA on a tiny {shape} from random weights", [*seed_points()]
        pages[f"shape-{shape}"] = _page(options, steps, f"shape-{shape}", title, points)
    pages["seed-0"].step_costs += _beside(options, steps, "step-cost")
    pages["seed-0"].replays += _beside(options, steps, "replay")
    return Plan(options, steps, pages)


def page_toml(page: Page) -> str:
    """Return a page as ``pasta evaluate frontier`` reads it."""
    lines = [f"{key} = {json.dumps(getattr(page, key))}" for key in PAGE_KEYS]
    for key in ("points", "step_costs", "replays"):
        for row in getattr(page, key):
            lines += [f"\n[[{key}]]", *(f"{k} = {json.dumps(v)}" for k, v in row.items())]
    return "\n".join(lines) + "\n"


def weighted_points(run: str, method: str, strategy: str = "pasta") -> Iterator[Point]:
    """Yield a point for each weight of quality."""
    for weight in WEIGHTS:
        yield Point(f"{run}-{weight}", f"{method}, lambda {weight}", method, weight, strategy)


def seed_points() -> Iterator[Point]:
    """Yield the points of a training seed: PASTA, sequential, then the other methods."""
    yield Point("pasta-noisy", "Pasta-SFT, noisy", "Pasta-SFT", "noisy")
    last = f"pasta-bon-{FIRST}"
    for label, suffix in (("tenth", "tenth"), ("round 1", "round-1")):
        yield Point(f"{last}-{suffix}", f"Pasta-BoN, lambda {FIRST}, {label}", ON_THE_WAY, label)
    yield from weighted_points("pasta-bon", "Pasta-BoN")
    for bound in ("perfect forks", "always fork", "random fork"):
        yield Point(last, bound.capitalize(), "bound", strategy=bound)
    yield Point("baseline-bon", "Baseline-BoN", "sequential", "BoN")
    yield Point("baseline", "Baseline-SFT", "sequential", "SFT", "sequential")
    for strategy in ("prompt-lookup", "draft-model"):
        yield Point("baseline", f"Baseline-SFT, {strategy}", "sequential", strategy=strategy)
    yield Point("apar-noisy", "APAR-SFT", "APAR", "SFT", "apar")
    yield from weighted_points("apar-bon", "APAR-BoN", "apar")
    yield Point("rule-pasta", "rule-pasta-SFT", "rule-pasta", "SFT")
    yield from weighted_points("rule-pasta-bon", "rule-pasta-BoN")
    yield Point("sot-noisy", "SoT-SFT", "SoT", "SFT", "sot")
    yield Point("sot-noisy", "SoT-SFT, routed", "SoT", "routed", "sot-router")
    yield Point("baseline-sot", "SoT, prompted", "SoT", "prompted", "sot")
    rules, own = ", own rules", f"own rules, lambda {FIRST}"
    yield Point("apar", f"APAR-SFT{rules}", "APAR", "rules", "apar")
    yield Point(f"apar-own-bon-{FIRST}", f"APAR-BoN, {own}", "APAR-BoN", FIRST, "apar")
    yield Point("rule-lines", f"rule-pasta-SFT{rules}", "rule-pasta", "rules")
    yield Point(f"rule-lines-bon-{FIRST}", f"rule-pasta-BoN, {own}", "rule-pasta-BoN", FIRST)
    yield Point("sot", f"SoT-SFT{rules}", "SoT", "rules", "sot")
    yield Point("pasta-gold", "Pasta-SFT, gold", "Pasta-SFT", "gold")
    yield Point("apar-gold", "APAR-SFT, gold", "APAR", "gold", "apar")
    yield Point("sot-gold", "SoT-SFT, gold", "SoT", "gold", "sot")


def hard_points() -> Iterator[Point]:
    """Yield the points of the hard split."""
    shown = {"pasta-noisy", "sot-noisy", f"apar-bon-{FIRST}", f"rule-pasta-bon-{FIRST}"}
    shown |= {f"pasta-bon-{weight}" for weight in WEIGHTS}
    points = (one for one in seed_points() if one.measured in shown)
    yield from (one for one in points if one.method != "bound" and one.label != "routed")


def trial_name(recipe: str, setting: str) -> str:
    """Return the name of a trial's point; its finetuning alone is the setting ``before``."""
    return f"{recipe}-{setting}"


def trial_points() -> Iterator[Point]:
    """Yield the points of the trials: each method before stage two, and by each setting."""
    for (recipe, method, strategy), base in zip(TRIALS, BASES, strict=True):
        yield Point(base, trial_name(recipe, "before"), method, "before", strategy)
        for setting in SETTINGS:
            name = trial_name(recipe, setting)
            yield Point(name, name, method, setting.replace("-", " "), strategy)


def ablation_points() -> Iterator[Point]:
    """Yield the points of the ablations; the first two are measured with seed 0."""
    main = f"pasta-bon-{FIRST}"
    yield Point(f"seed-0/measure/{main}", f"Pasta-BoN, lambda {FIRST}", "Pasta-BoN", FIRST)
    for term in ("speedup", "harmonic"):
        yield Point(f"efficiency-{term}", f"efficiency term: {term}", "efficiency term", term)
    yield Point("continue", "positions: continue", "positions", "continue")
    # A model trained with positions "predict" may be decoded with "rotate": both are the same
    # until the first sync.
    yield Point(f"{main}-rotate", "positions: rotate", "positions", "rotate")
    for what in ("topics", "syncs"):
        yield Point(f"no-{what}", f"{what} removed", f"no {what}", what)
    for number in ("2", "5", "20"):
        yield Point(f"samples-{number}", f"N = {number}", "N", number)
    yield Point(f"seed-0/measure/{main}-round-1", "rounds: 1", "rounds", "1")
    yield Point(f"seed-0/measure/{main}", "rounds: 2", "rounds", "2")
    for round_ in ("3", "4"):
        yield Point(f"rounds-4-{round_}", f"rounds: {round_}", "rounds", round_)


def _page(
    options: Options, steps: Mapping[str, Step], name: str, title: str, points: list[Point]
) -> Page:
    """Return a page with the points that have a step; the toy has fewer of them."""
    found = [
        (one, steps[step])
        for one in points
        if not (one.method == "bound" and name.startswith("shape-"))
        and (step := one.measured if "/" in one.measured else f"{name}/measure/{one.measured}")
        in steps
    ]
    first = next(step for _, step in found if step.name.startswith(name))
    is_timed = first.flag("--split") == "test" and not options.is_tiny
    page = Page(
        name=name,
        title=title,
        ours="Pasta-BoN",
        baseline=first.flag("--baseline"),
        split=first.flag("--split"),
        num_prompts=int(first.flag("--num-prompts")),
        num_timed=options.num_timed if is_timed else 0,
    )
    for point, step in found:
        page.points.append(
            {
                "name": point.name,
                "method": point.method,
                "label": point.label,
                "model": step.flag("--model"),
                "strategy": point.strategy,
                "records": str(step.file.with_suffix(".jsonl")),
                "command": options.again(step.name),
            }
        )
    return page


def _beside(options: Options, steps: Mapping[str, Step], kind: str) -> Iterator[dict[str, str]]:
    """Yield step costs or replays, which stand on the page of seed 0 beside the points."""
    for step in steps.values():
        folder, _, name = step.name.partition("/")
        if folder == kind:
            if kind == "replay":
                name += f", {step.flag('--random').rpartition('/')[2].removesuffix('.json')}"
            yield {"name": name, "file": str(step.file), "command": options.again(step.name)}
