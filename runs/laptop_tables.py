"""Print the results of ``runs/laptop.sh`` as the Markdown tables of ``docs/results.md``.

``python runs/laptop_tables.py build/laptop/results``; files that are not there have no table. With
``--split dev`` the headline is that of ``pasta-gold-dev.json``: of a model before its report.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pasta_lab.evaluate.records import GradedAnswer, read_answers, task_of
from pasta_lab.evaluate.structure import structure, true_structure
from pasta_lab.tasks import Dependence, Task, make
from pasta_lab.tasks.annotators import always_fork
from pasta_lab.tasks.registry import FAMILIES
from pasta_lm.measure.intervals import as_dict, mean

ROWS = (
    ("grade", "quality"),
    ("difference to sequential", "quality_difference"),
    ("win rate", "win_rate"),
    ("theoretical speedup", "theoretical_speedup"),
    ("realised speedup", "realised_speedup"),
    ("parallelism", "parallelism"),
    ("length, in characters, against sequential", "length_ratio"),
    ("well formed", "well_formed"),
    ("well formed, mask off", "well_formed_unmasked"),
    ("fork precision", "fork_precision"),
    ("fork recall", "fork_recall"),
    ("sync precision", "sync_precision"),
    ("sync recall", "sync_recall"),
    ("minimal pairs right", "pair_accuracy"),
    ("minimal pairs told apart", "pairs_told_apart"),
    ("structure exact", "structure_exact"),
)
SPLITS = (
    ("gold, hard split", "pasta-gold-hard"),
    ("gold, training wordings", "pasta-gold-seen-wordings"),
    ("noisy, hard split", "pasta-noisy-hard"),
    ("noisy, training wordings", "pasta-noisy-seen-wordings"),
)
COSTS, FREE_COSTS = 0.20, 0.02
"""What breaking a dependence must cost at least, and a fork of what is free at most."""

Figures = dict[str, Any]


def main() -> None:
    """Print every table of a folder of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="folder of runs/laptop.sh")
    parser.add_argument("--split", default="test", choices=("test", "dev"), help="of the headline")
    typed = parser.parse_args()
    paths = typed.results.glob("*.json")
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in paths}
    gold, noisy = (found.get(f"pasta-{name}-{typed.split}") for name in ("gold", "noisy"))
    if gold is not None:
        print_headline(gold["strategies"], noisy and noisy["strategies"])
    if any(name in found for _, name in SPLITS):
        print_splits(found)
    if gold is not None:
        print_families(gold["strategies"], noisy and noisy["strategies"])
    records = typed.results / f"pasta-gold-{typed.split}.jsonl"
    if records.exists():
        print_exact(records)
    if "audit-always-fork-dev" in found:
        print_audit(found)
        records = typed.results / "audit-always-fork-dev.jsonl"
        if records.exists():
            print_free(records)


def print_headline(gold: Figures, noisy: Figures | None) -> None:
    """Print a column for each strategy, and one for the held-out families."""
    columns = {"sequential": gold["sequential"], "gold": gold["pasta"]}
    if noisy is not None:
        columns["noisy"] = noisy["pasta"]
    if "perfect forks" in gold:
        columns["perfect forks"] = gold["perfect forks"]
    held_out = gold["pasta"]["held_out"]
    columns["gold, held-out families"] = held_out
    print_columns(columns, ROWS)
    counts = ", ".join(
        f"{name} {column['wins']}/{column['ties']}/{column['losses']}"
        for name, column in columns.items()
        if "wins" in column and name != "sequential"
    )
    print(f"Wins, ties and losses against sequential: {counts}.\n")


def print_splits(found: dict[str, Figures]) -> None:
    """Print the hard split and the training wordings, each with the baseline on it."""
    columns = {}
    for label, name in SPLITS:
        if name in found:
            strategies = found[name]["strategies"]
            columns[label] = {"baseline": strategies["sequential"]["quality"]}
            columns[label] |= strategies["pasta"]
    print_columns(columns, [("grade, sequential", "baseline"), *ROWS])


def print_columns(columns: dict[str, Figures], rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of figures by name; a row that no column has is left out."""
    print_row(["", *columns])
    print_row(["---"] * (len(columns) + 1))
    for label, key in rows:
        cells = [cell(column.get(key)) for column in columns.values()]
        if set(cells) != {"-"}:
            print_row([label, *cells])
    print()


def print_families(ways: Figures, noisy: Figures | None) -> None:
    """Print a row for each family: grades, forks, realised and attainable speed."""
    sequential, gold = ways["sequential"], ways["pasta"]
    columns = [
        ("sequential grade", sequential, "quality"),
        ("gold grade", gold, "quality"),
        *([("noisy grade", noisy["pasta"], "quality")] if noisy is not None else []),
        ("fork precision", gold, "fork_precision"),
        ("fork recall", gold, "fork_recall"),
        ("realised", gold, "realised_speedup"),
        ("perfect forks", ways.get("perfect forks"), "realised_speedup"),
    ]
    print_row(["family", *(label for label, _, _ in columns)])
    print_row(["---"] * (len(columns) + 1))
    for name, family in FAMILIES.items():
        label = f"`{name}` (held out)" if family.held_out else f"`{name}`"
        print_row([label, *(short(of_family(way, name).get(key)) for _, way, key in columns)])
    print()


def print_audit(found: dict[str, Figures]) -> None:
    """Print the cost of breaking one rule per family, and whether its label is confirmed."""
    always = found["audit-always-fork-dev"]["strategies"]
    never = found.get("audit-never-sync-dev", {"strategies": {"pasta": None}})["strategies"]
    print_row(["family", "units are", "never fork", "always fork", "never sync", "as named"])
    print_row(["---"] * 6)
    for name, family in FAMILIES.items():
        if family.held_out:
            continue
        dependence = make(name, "dev", 0).dependence
        baseline = of_family(always["sequential"], name).get("quality")
        costs = [
            of_family(way, name).get("quality_difference")
            for way in (always["pasta"], never["pasta"])
        ]
        shown = [f"`{name}`", str(dependence), short(baseline), *map(cell, costs)]
        print_row([*shown, verdict(dependence, *costs)])
    print()


def answered(records: Path) -> Iterator[tuple[Task, GradedAnswer, GradedAnswer]]:
    """Yield each prompt of a trained family with PASTA's answer and the sequential one."""
    rows = [row for row in read_answers(records) if row.wall_s is None]
    theirs = {row.task_id: row for row in rows if row.strategy == "sequential"}
    for row in rows:
        if row.strategy == "pasta" and not FAMILIES[row.family].held_out:
            yield task_of(row.task_id, row.family, None), row, theirs[row.task_id]


def print_exact(records: Path) -> None:
    """Print grades where the structure is exactly the true one, and where it is not."""
    groups: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for task, ours, theirs in answered(records):
        groups[ours.structure == true_structure(task)].append((ours.grade, theirs.grade))
    for is_exact, grades in groups.items():
        if grades:
            means = ", ".join(f"{fmean(side):.3f}" for side in zip(*grades, strict=True))
            label = "exact" if is_exact else "not exact"
            print(f"Structure {label}, {len(grades)} prompts: PASTA and sequential {means}.")
    whole = [one for grades in groups.values() for one in grades]
    right = ", ".join(f"{fmean(g == 1 for g in side):.3f}" for side in zip(*whole, strict=True))
    print(f"Grade of 1, all prompts: PASTA and sequential {right}.\n")


def print_free(records: Path) -> None:
    """Print what forking costs where all is free, and where each block is where it was taught.

    A model that leaves a block out loses what the block would have said, and that says nothing of
    the family: so the cost is given for the answers whose structure is the taught one, too.
    """
    free, taught = [], []
    for task, ours, never in answered(records):
        if task.dependence is Dependence.FREE:
            free.append(ours.grade - never.grade)
            if ours.structure == structure(task, always_fork(task)):
                taught.append(free[-1])
    print(f"Always fork, free families together, {len(free)} prompts: {cell(as_dict(mean(free)))};")
    print(f"where all blocks are as taught, {len(taught)} of them: {cell(as_dict(mean(taught)))}.")


def verdict(dependence: Dependence, always: Figures | None, never: Figures | None) -> str:
    """Return whether breaking what a family is named after costs what it should."""
    broken = never if dependence is Dependence.SYNC else always
    if broken is None or dependence is Dependence.SHORT:
        return "-"
    if dependence is Dependence.FREE:
        return "yes" if -broken["mean"] < FREE_COSTS else "no"
    return "yes" if -broken["mean"] >= COSTS else "no"


def of_family(way: Figures | None, name: str) -> Figures:
    """Return the figures of one strategy for one family, none if it has none."""
    if way is None:
        return {}
    families = way["families"] | way["held_out"]["families"]
    return families.get(name) or {}


def cell(figure: Any) -> str:
    """Return a figure with its interval, if it has one."""
    if figure is None:
        return "-"
    if isinstance(figure, dict):
        return f"{figure['mean']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"
    return f"{figure:.3f}"


def short(figure: Figures | None) -> str:
    """Return the mean of a figure."""
    return "-" if figure is None else f"{figure['mean']:.2f}"


def print_row(cells: Sequence[str]) -> None:
    """Print one row of a table."""
    print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
