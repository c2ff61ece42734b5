"""The benchmark ``tasks``: verifiable tasks with graders and known dependencies.

The sequential strategies are answered by the baseline model, which was trained on the same data
without tags. Headlines are over the families that training sees, each family as often as the
others; held-out families are reported apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pasta_lab.evaluate.quality import decisions, quality, share
from pasta_lab.evaluate.records import PERFECT, UNMASKED, GradedAnswer
from pasta_lab.evaluate.structure import structure
from pasta_lab.tasks.gold import gold
from pasta_lab.tasks.referee import referee_grade
from pasta_lab.tasks.registry import held_out_families, make, prompts_hash, training_families
from pasta_lab.tasks.task import Split, Task
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.journal import Journal
from pasta_lm.language.document import parse_program
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.measure.answering import (
    Answerer,
    Progress,
    Replay,
    SetPrompt,
    System,
    Workload,
    answer_id,
    check_served,
    machine_of,
)
from pasta_lm.measure.speed import num_failed, realised, speed
from pasta_lm.measure.table import to_json
from pasta_lm.models.names import BUILTIN
from pasta_lm.recipe import check_choice, check_positive
from pasta_lm.strategies import APAR, PASTA, SEQUENTIAL
from pasta_lm.strategies.model import Pasta, Servers, baseline_of
from pasta_lm.strategies.requests import EXACT_SEQUENTIAL, STRATEGIES

Figures = dict[str, Any]

POOL_TOKENS = 65_536
"""Cache entries: about fifty prompts of the tasks at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """The recipe of ``pasta-lab evaluate tasks``."""

    model: str | None = None
    """A folder, a hub id or a built-in model; None: the built-in one."""
    baseline: str | None = None
    """The sequential baseline; None: the built-in one, or the model itself."""
    strategies: tuple[str, ...] = (SEQUENTIAL, PASTA)
    num_prompts: int = 420
    """Of the families that training sees, together; each held-out family has as many as one."""
    num_timed: int = 3
    """Prompts of each family that are decoded alone, for clocks and with the mask off."""
    split: str = "test"
    wordings: str | None = None
    """Another split whose wordings are used instead."""
    seed: int = 0
    """Of the first prompts."""
    max_tokens: int = 1024
    """Of an answer, all threads together."""
    positions: str | None = None
    """The position strategy of pasta; None: the one that the model was trained with."""
    threads: int | None = None
    """CPU threads of torch."""
    dtype: str | None = None
    device: str | None = None
    servers: Servers | None = None
    """Stock servers that hold the model, which is then its own baseline; None: it is loaded."""

    def __post_init__(self) -> None:
        """Validate values before a model is loaded."""
        for name in self.strategies:
            check_choice("strategies", name, STRATEGIES)
        for key, value in (("split", self.split), ("wordings", self.wordings or self.split)):
            check_choice(key, value, [split.value for split in Split])
        check_positive("tasks", self, "num_prompts", "max_tokens", "threads")
        check_served(self.servers, self.model, self.model_names.values())

    @property
    def model_names(self) -> dict[str, str]:
        """Return the names of the model and of the sequential baseline."""
        model = self.model or BUILTIN
        baseline = baseline_of(model) if self.servers is None else model
        return {"model": model, "baseline": self.baseline or baseline}

    def load_models(self) -> dict[str, Pasta]:
        """Load the model and the sequential baseline."""
        if self.servers is not None:
            assert self.model is not None
            served = self.servers.holding(self.model)
            return {"model": served, "baseline": served}
        load = partial(
            Pasta.from_pretrained, dtype=self.dtype, device=self.device, pool_tokens=POOL_TOKENS
        )
        names = self.model_names
        baseline = load(names["baseline"])
        model = baseline if names["model"] == names["baseline"] else load(names["model"])
        return {"model": model, "baseline": baseline}


Answers = Mapping[str, Sequence[GradedAnswer]]
"""By system, in the order of the prompts."""


@dataclass(frozen=True, slots=True)
class TaskEvaluation:
    """The answers of all systems to one set of tasks; the sequential strategy is the baseline."""

    tasks: Sequence[Task]
    num_timed: int
    """The first so many tasks were decoded alone, too."""
    scored: Answers
    timed: Answers
    """Answers to the first tasks, decoded one at a time; empty if nothing was timed."""
    unmasked: Answers
    """By strategy, answers to the timed tasks with every tag allowed."""

    def records(self) -> list[GradedAnswer]:
        """Return every answer, in the order of the record file."""
        rounds = (self.scored, self.timed, self.unmasked)
        return [answer for by_name in rounds for some in by_name.values() for answer in some]


def graded(
    tasks: Sequence[Task], strategy: str, answers: Sequence[AnswerRecord]
) -> list[GradedAnswer]:
    """Return answers with the referee's grade and their forks; a failed answer has grade 0."""
    return [_graded(task, strategy, answer) for task, answer in zip(tasks, answers, strict=True)]


def _graded(task: Task, strategy: str, answer: AnswerRecord) -> GradedAnswer:
    by_details = strategy in (APAR, UNMASKED[APAR])
    document = parse_program(answer.program)
    return GradedAnswer(
        **{field.name: getattr(answer, field.name) for field in fields(AnswerRecord)},
        task_id=task.id,
        family=task.family,
        strategy=strategy,
        grade=0.0 if num_failed([answer]) else referee_grade(task, answer.text),
        structure=structure(task, document, by_details=by_details),
    )


def choose_tasks(settings: TaskSettings) -> tuple[list[Task], int]:
    """Return all tasks, families in turn, and how many of the first are timed."""
    trained = training_families()
    names = (*trained, *held_out_families())
    per_family = max(1, -(-settings.num_prompts // len(trained)))
    in_turn = [
        make(name, settings.split, seed, wordings=settings.wordings)
        for seed in range(settings.seed, settings.seed + per_family)
        for name in names
    ]
    surplus = per_family * len(trained) - settings.num_prompts
    kept, last = in_turn[: -len(names)], in_turn[-len(names) :]
    kept += last[: len(trained) - surplus] + last[len(trained) :]
    return kept, min(len(kept), min(settings.num_timed, per_family) * len(names))


def evaluate_tasks(
    settings: TaskSettings, model: Pasta, baseline: Pasta, progress: Progress
) -> TaskEvaluation:
    """Let the model answer by each strategy, and the baseline by those with sequential tokens."""
    tasks, num_timed = choose_tasks(settings)
    prompts = [SetPrompt(task.id, task.prompt, task.family) for task in tasks]
    answerer = Answerer(
        models={"model": model, "baseline": baseline},
        params=SamplingParams(max_tokens=settings.max_tokens),
        penalty=1.0, positions=settings.positions, progress=progress,
    )  # fmt: skip
    systems = [
        System(name, name, "baseline" if name in EXACT_SEQUENTIAL else "model")
        for name in dict.fromkeys((SEQUENTIAL, *settings.strategies))
    ]
    replays: dict[str, Replay] = {}
    if num_timed and model.has_tag_pieces and not model.engine.is_remote:
        replays[PERFECT] = partial(_perfect_forks, model, {task.id: task for task in tasks})
    masked = [
        system._replace(name=UNMASKED[system.strategy])
        for system in systems
        if system.strategy in UNMASKED and model.supports(system.strategy)
    ]
    first, names = prompts[:num_timed], [system.name for system in systems]
    with TemporaryDirectory() as folder:
        journals = [Journal(Path(folder) / f"{n}.jsonl") for n in range(3)]
        answerer.answer(Workload(journals[0], prompts, systems))
        answerer.answer(Workload(journals[1], first, systems, is_timed=True), replays)
        answerer.answer(Workload(journals[2], first, masked, mask=False))
    scored, timed = _grade_all(tasks, names, journals[0]), tasks[:num_timed]
    clocks = _grade_all(timed, [*names, *replays] if timed else [], journals[1])
    free = _grade_all(timed, [system.name for system in masked] if timed else [], journals[2])
    return TaskEvaluation(tasks, num_timed, scored, clocks, free)


def _perfect_forks(
    model: Pasta, tasks: Mapping[str, Task], prompt: SetPrompt
) -> tuple[Pasta, Request]:
    """Return how the reference is decoded with its true forks."""
    document = gold(tasks[prompt.id]).with_spaces_after_tags()
    return model, model.replay_request(prompt.text, document)


def _grade_all(tasks: Sequence[Task], names: Sequence[str], journal: Journal) -> Answers:
    def record(name: str, task: Task) -> AnswerRecord:
        return AnswerRecord.from_row(journal.rows[answer_id(name, task.id)])

    return {name: graded(tasks, name, [record(name, task) for task in tasks]) for name in names}


def report(settings: TaskSettings, run: TaskEvaluation, model: Pasta, baseline: Pasta) -> Figures:
    """Return the object that ``pasta-lab evaluate tasks --json`` prints."""
    loaded = model.engine.loaded
    trained, held_out = training_families(), held_out_families()
    order = (*trained, *held_out)
    names = [*dict.fromkeys(settings.strategies), *([PERFECT] if PERFECT in run.timed else [])]

    def by_family(name: str, families: Sequence[str]) -> Figures:
        each = {family: _figures(run, name, [family]) for family in families}
        return _figures(run, name, families) | {"families": each}

    return {
        "kind": loaded.kind.value,
        "num_prompts": sum(task.family in trained for task in run.tasks),
        "model": loaded.name,
        "baseline": baseline.engine.loaded.name,
        "device": str(loaded.device),
        "machine": machine_of(model),
        "dtype": loaded.dtype_name,
        "positions": settings.positions or loaded.positions.value,
        "split": settings.split,
        "wordings": settings.wordings or settings.split,
        "first_seed": settings.seed,
        "max_tokens": settings.max_tokens,
        "prompts_sha256": prompts_hash(sorted(run.tasks, key=lambda t: order.index(t.family))),
        "strategies": {
            name: by_family(name, trained) | {"held_out": by_family(name, held_out)}
            for name in names
        },
    }


def _figures(run: TaskEvaluation, name: str, families: Sequence[str]) -> Figures:
    """Return every figure of one strategy over some families."""

    def of(answers: Sequence[GradedAnswer]) -> list[GradedAnswer]:
        return [answer for answer in answers if answer.family in families]

    tasks = [task for task in run.tasks if task.family in families]
    ours, base = of(run.timed.get(name, ())), of(run.timed.get(SEQUENTIAL, ()))
    clocks = to_json(realised(ours, base))
    if name == PERFECT:
        timed = [task for task in run.tasks[: run.num_timed] if task.family in families]
        head = {"num_prompts": len(ours), "kind": "replayed", **to_json(speed(ours, base))}
        return {**head, **clocks, **decisions(timed, ours)}
    ours, base = of(run.scored[name]), of(run.scored[SEQUENTIAL])
    head = {"num_prompts": len(ours), "num_failed": num_failed(ours), **quality(ours, base)}
    figures = {**head, **to_json(speed(ours, base)), **clocks}
    if name not in EXACT_SEQUENTIAL:
        flags = [a.is_well_formed for a in of(run.unmasked.get(UNMASKED.get(name, ""), ()))]
        figures |= {"well_formed_unmasked": share(flags), **decisions(tasks, ours)}
    return figures
