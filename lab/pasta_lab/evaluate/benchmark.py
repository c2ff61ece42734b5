"""The evaluator: a benchmark's prompts, answered by systems, scored, timed and reported.

A benchmark says which prompts there are and how an answer is scored; everything else is here and in
``answering``. Two are built in: ``tasks`` with graders, ``alpaca`` with a judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from pasta_lab.evaluate.quality import quality
from pasta_lab.evaluate.records import GradedAnswer
from pasta_lab.evaluate.structure import Structure
from pasta_lm.engines.record import AnswerRecord
from pasta_lm.journal import Journal
from pasta_lm.measure.answering import Answerer, AnswerStore, Decoded, Prompt, Replay, System
from pasta_lm.measure.speed import num_failed, realised, speed
from pasta_lm.measure.table import to_json

Figures = dict[str, Any]
Answers = Mapping[str, Sequence[AnswerRecord]]
"""By system, in the order of the prompts; graded if the benchmark has a grader."""


class Benchmark(Protocol):
    """Prompts, and how an answer to one is scored."""

    id: str
    prompts: Sequence[Prompt]
    """All prompts, those that are timed first."""

    def score(self, prompt: Prompt, answer: AnswerRecord) -> float | None:
        """Return the grade of an answer, from 0 to 1; None if a judge compares answers instead."""

    def structure(self, prompt: Prompt, answer: AnswerRecord, strategy: str) -> Structure:
        """Return the forks and syncs of an answer; empty if the prompt has no units."""
        return Structure()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The answers of all systems to a benchmark."""

    benchmark: Benchmark = field(compare=False)
    baseline: str
    """The system with which the others are compared."""
    scored: Answers
    timed: Answers
    """Answers to the first prompts, decoded one at a time; empty if nothing was timed."""


def evaluate(
    benchmark: Benchmark,
    systems: Sequence[System],
    answerer: Answerer,
    *,
    num_timed: int = 0,
    journal: Callable[[str], Journal] | None = None,
    known: Sequence[tuple[System, Prompt, Decoded]] = (),
    replays: Callable[[Answers], Mapping[str, Replay]] = lambda _: {},
) -> Evaluation:
    """Let all systems answer all prompts together, and the first prompts one at a time.

    Args:
        benchmark: The prompts and their scores.
        systems: Who answers; the first one is the baseline.
        answerer: The models.
        num_timed: How many prompts are decoded alone, too.
        journal: Opens the journal of a round ('scored' or 'timed'), so that a stopped evaluation
            goes on; None: answers are kept in memory.
        known: Answers that need not be decoded.
        replays: Returns by name what is decoded in turn with the timed answers, from the scored
            answers.
    """
    prompts, names = benchmark.prompts, [system.name for system in systems]
    store = AnswerStore(journal and journal("scored"))
    store.add(known)
    answerer.answer_together(prompts, systems, store)
    scored = grade_all(benchmark, prompts, names, store)
    store, beside = AnswerStore(journal and journal("timed")), replays(scored)
    answerer.answer_in_turn(prompts[:num_timed], systems, store, beside)
    timed = grade_all(benchmark, prompts[:num_timed], [*names, *beside], store)
    return Evaluation(benchmark, names[0], scored, timed if num_timed else {})


def grade_all(
    benchmark: Benchmark, prompts: Sequence[Prompt], names: Sequence[str], store: AnswerStore
) -> Answers:
    """Return by name the stored answers to prompts, with their grades."""
    return {name: grade(benchmark, prompts, name, store.answers(name, prompts)) for name in names}


def grade(
    benchmark: Benchmark, prompts: Sequence[Prompt], strategy: str, answers: Sequence[AnswerRecord]
) -> list[AnswerRecord]:
    """Return the answers with their grades; a failed answer has grade 0."""
    return [
        _graded(benchmark, prompt, strategy, answer)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def _graded(
    benchmark: Benchmark, prompt: Prompt, strategy: str, answer: AnswerRecord
) -> AnswerRecord:
    score = 0.0 if num_failed([answer]) else benchmark.score(prompt, answer)
    if score is None:
        return answer
    return GradedAnswer(
        **{field.name: getattr(answer, field.name) for field in fields(AnswerRecord)},
        task_id=prompt.id,
        family=prompt.group,
        strategy=strategy,
        grade=score,
        structure=benchmark.structure(prompt, answer, strategy),
    )


def report(evaluation: Evaluation) -> Figures:
    """Return the figures of every system, over all prompts and over each group."""
    prompts = evaluation.benchmark.prompts
    groups = list(dict.fromkeys(prompt.group for prompt in prompts))
    return {
        "benchmark": evaluation.benchmark.id,
        "num_prompts": len(prompts),
        "baseline": evaluation.baseline,
        "systems": {
            name: figures(evaluation, name, groups)
            | {"groups": {group: figures(evaluation, name, [group]) for group in groups}}
            for name in evaluation.scored
        },
    }


def figures(evaluation: Evaluation, system: str, groups: Sequence[str]) -> Figures:
    """Return the figures of one system over some groups of prompts."""
    names = (system, evaluation.baseline)
    ours, base = (_of(evaluation, evaluation.scored[name], groups) for name in names)
    timed = [_of(evaluation, evaluation.timed.get(name, ()), groups) for name in names]
    grades = [[one for one in side if isinstance(one, GradedAnswer)] for side in (ours, base)]
    return {
        "num_prompts": len(ours),
        "num_failed": num_failed(ours),
        **quality(*grades),
        **to_json(speed(ours, base)),
        **to_json(realised(*timed)),
    }


def _of(
    evaluation: Evaluation, answers: Sequence[AnswerRecord], groups: Sequence[str]
) -> list[AnswerRecord]:
    """Return the answers to the prompts of some groups; timed answers are to the first prompts."""
    prompts = evaluation.benchmark.prompts
    return [one for prompt, one in zip(prompts, answers, strict=False) if prompt.group in groups]
