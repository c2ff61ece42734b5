"""Verifiable tasks, answered by strategies and held against the baseline's sequential answers.

The sequential strategy is the baseline model's: the same data without tags. Headlines are over
all prompts of the families that training sees, families uniform; held-out families stand apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_lm.engines.request import SamplingParams
from pasta_lm.evaluate.answered import Answered
from pasta_lm.evaluate.answering import (
    BOUNDS,
    MASKED,
    Bounds,
    Progress,
    answer_all,
    answer_timed,
    fork_rate,
    unmasked,
)
from pasta_lm.evaluate.quality import decisions, quality, share
from pasta_lm.evaluate.reuse import reused
from pasta_lm.evaluate.speed import realised, speed
from pasta_lm.strategies import pasta, sequential
from pasta_lm.strategies.model import EXACT_SEQUENTIAL
from pasta_lm.tasks.registry import held_out_families, make, training_families
from pasta_lm.tasks.sets import prompts_hash
from pasta_lm.tasks.task import Task

if TYPE_CHECKING:
    from pasta_lm.evaluate.workers import Side, Workers
    from pasta_lm.strategies.model import Pasta

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What is asked, and how."""

    strategies: tuple[str, ...] = (sequential.NAME, pasta.NAME)
    num_prompts: int = 420
    """Of the families that training sees, together; the held-out ones have as many each."""
    num_timed: int = 3
    """Prompts of each family that are decoded alone, for clocks and with the mask off."""
    split: str = "test"
    wordings: str | None = None
    """Another split whose wordings are used instead."""
    first_seed: int = 0
    max_tokens: int = 1024
    positions: str | None = None
    """Where PASTA's main goes on after a promise; None: as the model was taught."""
    baseline_records: Path | None = None
    """An earlier run's records that have the baseline's answers; None: they are decoded."""
    bounds: bool = False
    """Whether timed prompts are also replayed forking everywhere, and as often by chance."""


@dataclass(slots=True)
class Answers:
    """All answers to one set of tasks, in the order of the tasks."""

    tasks: list[Task]
    timed_tasks: list[Task]
    by_strategy: dict[str, list[Answered]] = field(default_factory=dict)
    timed: dict[str, list[Answered]] = field(default_factory=dict)
    unmasked: dict[str, list[Answered]] = field(default_factory=dict)
    fork_rate: float | None = None
    """Of PASTA's units, where forks were also made by chance."""

    def all(self) -> list[Answered]:
        """Return every answer, for the record file."""
        kinds = (self.by_strategy, self.timed, self.unmasked)
        return [answer for kind in kinds for answers in kind.values() for answer in answers]


def choose_tasks(settings: TaskSettings) -> tuple[list[Task], list[Task]]:
    """Return all tasks and those that are timed, families in turn and as uniform as can be."""
    trained = training_families()
    names = (*trained, *held_out_families())
    per_family = max(1, -(-settings.num_prompts // len(trained)))
    in_turn = [
        make(name, settings.split, seed, wordings=settings.wordings)
        for seed in range(settings.first_seed, settings.first_seed + per_family)
        for name in names
    ]
    surplus = per_family * len(trained) - settings.num_prompts
    kept, last = in_turn[: -len(names)], in_turn[-len(names) :]
    kept += last[: len(trained) - surplus] + last[len(trained) :]
    num_timed = min(settings.num_timed, per_family) * len(names)
    return kept, kept[:num_timed]


def answer_tasks(
    settings: TaskSettings,
    model: Pasta,
    baseline: Pasta,
    progress: Progress,
    workers: Workers | None = None,
) -> Answers:
    """Let both models answer; strategies with sequential tokens are the baseline's.

    Args:
        settings: What is asked, and how.
        model: Whose strategies are measured.
        baseline: Who answers sequentially.
        progress: Told what is done.
        workers: Processes that have the same models; they decode all that needs no clock.
    """
    params = SamplingParams(max_tokens=settings.max_tokens)
    sides: dict[Side, Pasta] = {"model": model, "baseline": baseline}
    answers = Answers(*choose_tasks(settings))
    names = dict.fromkeys((sequential.NAME, *settings.strategies))
    side_of: dict[str, Side] = {n: "baseline" if n in EXACT_SEQUENTIAL else "model" for n in names}
    for name, side in side_of.items():
        if name == sequential.NAME and settings.baseline_records is not None:
            given = reused(settings.baseline_records, answers.tasks, baseline, params, progress)
        elif workers is None:
            given = answer_all(
                sides[side], answers.tasks, name, params, progress, positions=settings.positions
            )
        else:
            given = workers.answer_all(
                side, answers.tasks, name, params, progress, positions=settings.positions
            )
        answers.by_strategy[name] = given
    timed = answers.timed_tasks
    if timed:
        forked = answers.by_strategy.get(pasta.NAME) if model.supports(pasta.NAME) else None
        rate = None if forked is None else fork_rate(answers.tasks, forked)
        bounds = Bounds(model, settings.bounds, rate) if model.has_tag_pieces else None
        answers.fork_rate = rate if settings.bounds else None
        who = [(name, sides[side]) for name, side in side_of.items()]
        answers.timed = answer_timed(
            who, bounds, timed, params, progress, positions=settings.positions
        )
    for name in [name for name in names if timed and name in MASKED and model.supports(name)]:
        free = answer_all(
            model, timed, name, unmasked(params), progress, positions=settings.positions
        )
        answers.unmasked[name] = [replace(one, strategy=MASKED[name]) for one in free]
    return answers


def report(settings: TaskSettings, answers: Answers, model: Pasta, baseline: Pasta) -> Figures:
    """Return the object that ``pasta evaluate tasks --json`` prints."""
    from pasta_lm.engines.torch.self_test import devices

    loaded = model.engine.loaded
    machine = next((name for name in devices() if name.startswith(str(loaded.device))), None)
    names = list(dict.fromkeys(settings.strategies))
    trained, held_out = training_families(), held_out_families()
    names += [name for name in BOUNDS if name in answers.timed]
    return {
        "kind": loaded.kind.value,
        "num_prompts": sum(task.family in trained for task in answers.tasks),
        "model": loaded.name,
        "baseline": baseline.engine.loaded.name,
        "device": str(loaded.device),
        "machine": machine,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "positions": settings.positions or loaded.positions.value,
        "split": settings.split,
        "wordings": settings.wordings or settings.split,
        "first_seed": settings.first_seed,
        "max_tokens": settings.max_tokens,
        "fork_rate": answers.fork_rate,
        "baseline_records": settings.baseline_records and str(settings.baseline_records),
        "prompts_sha256": prompts_hash(_by_family(answers.tasks)),
        "strategies": {
            name: _figures(answers, name, trained)
            | {"families": {family: _figures(answers, name, [family]) for family in trained}}
            | {
                "held_out": _figures(answers, name, held_out)
                | {"families": {family: _figures(answers, name, [family]) for family in held_out}}
            }
            for name in names
        },
    }


def _by_family(tasks: Sequence[Task]) -> list[Task]:
    """Return tasks in the order of ``task_set``, whose hash is that of docs/hypotheses.md."""
    order = (*training_families(), *held_out_families())
    return sorted(tasks, key=lambda task: order.index(task.family))


def _figures(answers: Answers, name: str, families: Sequence[str]) -> Figures:
    """Return every figure of one strategy over some families."""
    tasks, timed = answers.tasks, answers.timed_tasks
    clocks = {"realised_speedup": None, "num_timed": 0}
    if answers.timed:
        clocks = realised(
            _of(families, timed, answers.timed[name]),
            _of(families, timed, answers.timed[sequential.NAME]),
        )
    if name in BOUNDS:
        given = _of(families, timed, answers.timed[name])
        base = _of(families, timed, answers.timed[sequential.NAME])
        figures = {"num_prompts": len(given), "kind": "replayed", **speed(given, base), **clocks}
        asked = [task for task in timed if task.family in families]
        return figures | decisions(asked, given)
    given = _of(families, tasks, answers.by_strategy[name])
    base = _of(families, tasks, answers.by_strategy[sequential.NAME])
    asked = [task for task in tasks if task.family in families]
    figures = {"num_prompts": len(given), **quality(given, base), **speed(given, base), **clocks}
    if name not in EXACT_SEQUENTIAL:
        free = _of(families, timed, answers.unmasked.get(name, []))
        figures["well_formed_unmasked"] = share([answer.is_well_formed for answer in free])
        figures |= decisions(asked, given)
    return figures


def _of(
    families: Sequence[str], tasks: Sequence[Task], given: Sequence[Answered]
) -> list[Answered]:
    if not given:
        return []
    return [a for task, a in zip(tasks, given, strict=True) if task.family in families]
