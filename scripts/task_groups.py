"""Compare record files of ``pasta evaluate tasks``: by dependence, with perfect forks, in pairs.

``python scripts/task_groups.py RECORDS… --model MODEL`` prints JSON. Of each file it has the
figures of one strategy over all prompts of trained families, those whose units form a chain, and
the others; the speed of perfect forks is that of the reference answers, counted by the model's
tokenizer. Files after the first are compared with it prompt by prompt.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pasta_lab.evaluate.quality import decisions
from pasta_lab.evaluate.records import GradedAnswer
from pasta_lab.tasks import make, training_families
from pasta_lab.tasks.annotators import gold
from pasta_lab.tasks.task import Dependence, Task
from pasta_lm import Pasta
from pasta_lm.errors import InputError, PastaError
from pasta_lm.interpreter.speed import document_speedup
from pasta_lm.measure.instructions import read_packed
from pasta_lm.measure.intervals import as_dict, geometric_mean, mean
from pasta_lm.measure.speed import speed
from pasta_lm.strategies import pasta, sequential

Figures = dict[str, Any]
Answers = dict[str, GradedAnswer]
CountTokens = Callable[[str], int]


def answers_of(path: Path, strategy: str) -> Answers:
    """Return the answers of one strategy to prompts of trained families, by task.

    Raises:
        InputError: the file has none, or is damaged.
    """
    rows = [GradedAnswer.from_row(row) for row in read_packed(path)]
    trained = training_families()
    found = {r.task_id: r for r in rows if r.strategy == strategy and r.family in trained}
    if not found:
        raise InputError(f"{path} has no answer of the strategy {strategy!r}")
    return found


def task_of(id: str) -> Task:
    """Return the task that an answer names."""
    family, split, seed = id.rsplit("-", 2)
    return make(family, split, int(seed))


def figures(path: Path, strategy: str, count: CountTokens) -> Figures:
    """Return the figures of one file by group of prompts."""
    ours, base = answers_of(path, strategy), answers_of(path, sequential.NAME)
    tasks = {id: task_of(id) for id in ours}
    chains = {id for id, task in tasks.items() if task.dependence is Dependence.CHAIN}
    groups = {"all": list(ours), "chains": sorted(chains), "others": sorted(set(ours) - chains)}
    return {
        name: _group(
            [tasks[id] for id in ids], [ours[id] for id in ids], [base[id] for id in ids], count
        )
        for name, ids in groups.items()
        if ids
    }


def _group(
    tasks: Sequence[Task],
    ours: Sequence[GradedAnswer],
    base: Sequence[GradedAnswer],
    count: CountTokens,
) -> Figures:
    perfect = [document_speedup(gold(task).with_spaces_after_tags(), count) for task in tasks]
    gained = [one.theoretical_speedup(b) for one, b in zip(ours, base, strict=True)]
    prefaced = [(task, one) for task, one in zip(tasks, ours, strict=True) if task.preface]
    said = [float(one.text.lstrip().startswith(task.preface.strip())) for task, one in prefaced]
    found = decisions(tasks, ours)
    return {
        "num_prompts": len(tasks),
        "grade": as_dict(mean([one.grade for one in ours])),
        "baseline_grade": as_dict(mean([one.grade for one in base])),
        "difference": as_dict(mean([a.grade - b.grade for a, b in zip(ours, base, strict=True)])),
        **speed(ours, base),
        "perfect_forks": as_dict(geometric_mean(perfect)),
        "of_perfect_forks": as_dict(
            geometric_mean([one / most for one, most in zip(gained, perfect, strict=True)])
        ),
        "preface_right": as_dict(mean(said)),
        **{name: value for name, value in found.items() if value is not None},
    }


def compared(first: Answers, other: Answers) -> Figures:
    """Return by how much the other answers are better, prompt by prompt.

    Raises:
        InputError: they answer other prompts.
    """
    if set(first) != set(other):
        raise InputError("the files have different prompts")
    pairs = [(first[id], other[id]) for id in first]
    ratios = [two.parallelism / one.parallelism for one, two in pairs]
    return {
        "grade": as_dict(mean([two.grade - one.grade for one, two in pairs])),
        "parallelism_ratio": as_dict(geometric_mean(ratios)),
    }


def together(files: Sequence[Path], strategy: str) -> Figures:
    """Return the mean grade of several files, and its difference from the mean baseline's.

    Raises:
        InputError: they answer other prompts.
    """
    ours = [answers_of(path, strategy) for path in files]
    base = [answers_of(path, sequential.NAME) for path in files]
    if any(set(one) != set(ours[0]) for one in ours):
        raise InputError("the files have different prompts")
    grades = [fmean(one[id].grade for one in ours) for id in ours[0]]
    theirs = [fmean(one[id].grade for one in base) for id in ours[0]]
    return {
        "grade": as_dict(mean(grades)),
        "difference": as_dict(mean([a - b for a, b in zip(grades, theirs, strict=True)])),
    }


def main() -> int:
    """Print the figures as JSON; 1 if something is wrong with the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("records", type=Path, nargs="+", help="record files, gzipped or not")
    parser.add_argument("--model", required=True, help="whose tokenizer counts")
    parser.add_argument("--strategy", default=pasta.NAME)
    given = parser.parse_args()
    try:
        vocabulary = Pasta.from_pretrained(given.model).engine.loaded.vocabulary
        count: CountTokens = lambda text: len(vocabulary.encode_text(text))  # noqa: E731
        first = answers_of(given.records[0], given.strategy)
        found = {}
        for path in given.records:
            found[path.name] = figures(path, given.strategy, count)
            if path != given.records[0]:
                against = compared(first, answers_of(path, given.strategy))
                found[path.name]["less_first"] = against
        found["together"] = together(given.records, given.strategy)
        print(json.dumps(found, indent=1))
    except (PastaError, OSError) as exc:
        print(f"task_groups.py: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
