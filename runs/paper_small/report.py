"""Put the pages of the comparison side by side: verdicts by seed, stages, yardsticks, gaps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from order import FIRST, SEEDS
from plan import Plan

from pasta_lm.tasks import make
from pasta_lm.tasks.annotators import gold
from pasta_lm.tasks.registry import training_families

Figures = dict[str, Any]
RIVALS = ("APAR-BoN", "rule-pasta-BoN", "SoT")
"""Methods that the headline is against, each in its best form."""
VERDICTS = ("better", "not separated", "a trade", "worse")
STAGES = (
    ("Pasta-SFT, noisy", "after SFT"),
    (f"Pasta-BoN, lambda {FIRST}, tenth", "a tenth of round one"),
    (f"Pasta-BoN, lambda {FIRST}, round 1", "round one"),
    (f"Pasta-BoN, lambda {FIRST}", "round two"),
)
STAGE_FIGURES = (
    *("fork_precision", "fork_recall", "sync_precision", "sync_recall"),
    *("quality", "theoretical_speedup", "realised_speedup"),
)
SPEEDS = ("theoretical", "realised")
OF_PERFECT = tuple(f"of perfect forks, {speed}" for speed in SPEEDS)
LOWEST_QUALITY, LOWEST_SHARE = -0.02, 0.90
LOWEST_SPEED, MOST_FORKS = 0.98, 0.02
"""Of families that cannot gain."""


def write_report(path: Path, plan: Plan) -> None:
    """Write the report as Markdown."""
    pages = {name: _read(plan, name) for name in plan.pages}
    lines = ["# PASTA and its rivals on one base model", "", f"Base: `{plan.base}`.", ""]
    if plan.options.is_tiny:
        lines += ["A toy: its figures mean nothing.", ""]
    seeds = {seed: pages[f"seed-{seed}"] for seed in _seeds(plan)}
    for part in (
        _headline(plan, seeds),
        _stages(seeds),
        _quality(pages),
        _yardsticks(seeds[0]),
        _no_gain(seeds[0]),
        _ablations(pages["ablations"]),
        _rounds(plan, pages["ablations"]),
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


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield a table of Markdown."""
    names = list(header)
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _headline(plan: Plan, seeds: dict[int, Figures | None]) -> Iterator[str]:
    yield "## Headline, from the noisy set: Pasta-BoN against each rival's points"
    yield ""
    yield "Paired by prompt, 95 % intervals; a verdict over all seeds is the least of theirs."
    yield ""
    points = plan.pages["seed-0"].points
    noisy = [one for one in points if one.get("label") != "gold"]
    rivals = [one["name"] for one in noisy if one["method"] in RIVALS]
    found = {
        (name, speed): [_verdict(page, name, speed) for page in seeds.values()]
        for name in rivals
        for speed in SPEEDS
    }
    header = ("rival's point", "speed", *(f"seed {seed}" for seed in seeds), "all seeds")
    yield from _table(header, ((*key, *each, _least(each)) for key, each in found.items()))


def _verdict(page: Figures | None, rival: str, speed: str) -> str:
    rows = page["comparisons"] if page else []
    for row in rows:
        if (row["rival"], row["speed"]) == (rival, speed):
            return str(row["verdict"])
    is_there = page is not None and any(one["name"] == rival for one in page["points"])
    return "not timed" if is_there else "not run"


def _least(verdicts: list[str]) -> str:
    known = [VERDICTS.index(one) for one in verdicts if one in VERDICTS]
    lacks = [one for one in verdicts if one not in VERDICTS]
    least = VERDICTS[max(known)] if known else lacks[0]
    return f"{least} ({len(known)} of {len(verdicts)} seeds)" if lacks else least


def _stages(seeds: dict[int, Figures | None]) -> Iterator[str]:
    yield "## What each stage bought, without gold labels"
    yield ""
    names = (key.replace("_", " ") for key in STAGE_FIGURES)
    points = (
        (str(seed), stage, _point(page, name))
        for seed, page in seeds.items()
        for name, stage in STAGES
    )
    rows = (
        (seed, stage, *(_cell(one[key]) if one else "not run" for key in STAGE_FIGURES))
        for seed, stage, one in points
    )
    yield from _table(("seed", "stage", *names), rows)


def _quality(pages: dict[str, Figures | None]) -> Iterator[str]:
    yield f"## Grade against sequential: is the lower bound above {LOWEST_QUALITY}?"
    yield ""
    header = ("page", "point", "minus the baseline's", "won, tied, lost", "length / baseline's", "")
    answered = {n: page for n, page in pages.items() if n.startswith(("seed-", "hard-"))}
    rows = ((name, *_kept(one)) for name, page in answered.items() for one in _ours(page))
    yield from _table(header, rows)


def _kept(point: Figures) -> Iterator[str]:
    yield point["name"]
    yield _cell(point["quality_difference"])
    yield ", ".join(str(point[key]) for key in ("wins", "ties", "losses"))
    yield ("! " if point["is_length_unusual"] else "") + _cell(point["length_ratio"])
    yield "yes" if point["quality_difference"]["low"] > LOWEST_QUALITY else "**no**"


def _yardsticks(page: Figures | None) -> Iterator[str]:
    fastest = page["fastest_sequential"] if page else None
    yield "## Speed against perfect forks and against the fastest exact sequential way"
    yield ""
    yield f"The fastest exact sequential way: {fastest or 'not run'}. Aim: {LOWEST_SHARE} of the"
    yield "speed of perfect forks. What a step of several rows costs, and the same programs at"
    yield "another shape (replayed, random weights), stand on the page of seed 0."
    yield ""
    header = ("point", "realised", "over the fastest sequential way", *OF_PERFECT, "")
    timed = [point for point in _ours(page) if point["of_perfect_forks"]]
    yield from _table(header, map(_shares, timed))


def _shares(point: Figures) -> Iterator[str]:
    share = point["of_perfect_forks"]
    yield point["name"]
    for figure in (point["realised_speedup"], point["over_fastest_sequential"]):
        yield _cell(figure)
    yield from (_cell(share[speed]) for speed in SPEEDS)
    is_reached = share["realised"] and share["realised"]["mean"] >= LOWEST_SHARE
    yield "reached" if is_reached else "**missed**"


def _no_gain(page: Figures | None) -> Iterator[str]:
    yield "## Families that cannot gain"
    yield ""
    yield f"Aim: {LOWEST_SPEED}x realised at least, and at most {MOST_FORKS:.0%} forked."
    yield ""
    names = [
        name
        for name in training_families()
        if not any(gold(make(name, "test", seed)).blocks for seed in range(20))
    ]
    asked = (
        (name, point["name"], point["families"][name]) for name in names for point in _ours(page)
    )
    rows = ((name, point, *_gained(found)) for name, point, found in asked if found["num_prompts"])
    yield from _table(("family", "point", "realised", "forked", ""), rows)


def _gained(found: Figures) -> Iterator[str]:
    speed, rate = found["realised_speedup"], found["fork_rate"]
    yield _cell(speed)
    yield f"{rate:.3f}"
    is_kept = rate <= MOST_FORKS and (speed is None or speed["mean"] >= LOWEST_SPEED)
    yield "reached" if is_kept else "**missed**"


def _ablations(page: Figures | None) -> Iterator[str]:
    yield f"## Ablations of Pasta-BoN, lambda {FIRST}"
    yield ""
    yield "Ours less or over theirs, paired by prompt: above 0 and 1 the change has cost something."
    yield ""
    found = page["comparisons"] if page else ()
    rows = (
        (row["rival"], _cell(row["quality_difference"]), _cell(row["speed_ratio"]), row["verdict"])
        for row in found
        if row["speed"] == "theoretical"
    )
    header = ("change", "grade less theirs", "theoretical speedup / theirs", "verdict")
    yield from _table(header, rows)


def _rounds(plan: Plan, page: Figures | None) -> Iterator[str]:
    yield "## Rounds: hypervolume over training compute"
    yield ""
    yield "The area of quality above 0 and theoretical speedup above 1 that the rounds cover;"
    yield "compute as optimiser steps, all rounds being sampled alike."
    yield ""
    run = plan.options.out / f"seed-0/pasta-bon-{FIRST}"
    places: list[tuple[float, float]] = []
    num_steps = 0
    rows = []
    for number in (1, 2, 3, 4):
        point = _point(page, f"rounds: {number}")
        log = run / f"round-{number}" / "log.jsonl"
        if point is None or not log.exists():
            rows.append([str(number), *["not run"] * 4])
            continue
        fast, good = point["theoretical_speedup"], point["quality"]
        places.append((fast["mean"], good["mean"]))
        lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
        num_steps += max((row.get("step", 0) for row in lines), default=0)
        area = f"{hypervolume(places):.4f}"
        rows.append([str(number), str(num_steps), _cell(good), _cell(fast), area])
    yield from _table(("rounds", "steps", "quality", "theoretical speedup", "hypervolume"), rows)


def hypervolume(places: Iterable[tuple[float, float]]) -> float:
    """Return the area that points of speedup and quality cover, from speedup 1 and quality 0 on."""
    area = covered = 0.0
    for fast, good in sorted(places, reverse=True):
        area += max(good - covered, 0) * max(fast - 1, 0)
        covered = max(covered, good)
    return area


def _pages(plan: Plan, pages: dict[str, Figures | None]) -> Iterator[str]:
    yield "## Pages"
    yield ""
    for name, page in pages.items():
        if page:
            num = f"{page['num_prompts']} prompts of split {page['split']}"
            kinds = ", ".join(page["kinds"])
            yield f"- [{plan.pages[name].title}](results/{name}.html): {num}, {kinds}"


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
    return [point for point in points if point["method"] == "Pasta-BoN"]


def _point(page: Figures | None, name: str) -> Figures | None:
    points: list[Figures] = page["points"] if page else []
    return next((point for point in points if point["name"] == name), None)


def _cell(figure: Figures | None) -> str:
    if figure is None:
        return "-"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"
