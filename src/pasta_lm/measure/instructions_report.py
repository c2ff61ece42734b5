"""The figures of a run of ``instructions``, computed from its folder alone.

Per set of prompts, and within it by the parts that the prompts ask for: structure, speed, text,
checked instructions. A figure of text stands beside the baseline's and the difference, paired by
prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError
from pasta_lm.journal import Row
from pasta_lm.language.document import Document, parse_program
from pasta_lm.measure import answer_text
from pasta_lm.measure.answering import answer_id
from pasta_lm.measure.cost import cost_rows
from pasta_lm.measure.instructions import (
    PROMPTS,
    READ,
    REFERENCES,
    SCORED,
    TIMED,
    UNMASKED,
    VERDICTS,
    InstructionRun,
)
from pasta_lm.measure.prompt_sets import PARTS, Followed, ifeval_figures
from pasta_lm.measure.speed import Answers, speed_rows
from pasta_lm.measure.table import Compared, Metric, Place, Report, mean
from pasta_lm.strategies import pasta, sequential

SYSTEMS = (pasta.NAME, sequential.NAME)
PROVENANCE = ("hardware", "dtype", "commit", "version", "positions")
TITLES = {
    "forks": "answers that fork",
    "syncs": "answers with a sync",
    "legal": "legal tags",
    "well_formed": "well formed",
    "legal_unmasked": "legal tags, without the mask",
    "well_formed_unmasked": "well formed, without the mask",
}


class Answered(NamedTuple):
    """One answer with its prompt, its verdict and its readings."""

    prompt: Row
    record: AnswerRecord
    verdict: Row | None = None  # of IFEval's checkers
    read: Mapping[str, Row] = MappingProxyType({})  # by the name of the model that read it


Measure = Callable[[Answered], float | None]
Pairs = Sequence[tuple[Answered, Answered]]
"""The taught model's answers and the baseline's, in the order of the prompts."""


@cache
def _document(program: str) -> Document:
    return parse_program(program)


def _coverage(answer: Answered) -> float | None:
    items = answer.prompt["items"]
    return None if items is None else answer_text.coverage(items, answer.record.text)


MEASURES: dict[str, Measure] = {
    "repetition": lambda answer: answer_text.repetition(answer.record.text),
    "repeated_topics": lambda answer: answer_text.has_repeated_topic(
        _document(answer.record.program)
    ),
    "coverage": _coverage,
    "cut": lambda answer: answer.record.finish_reason == "length",
}
"""Measures of an answer's text by key; None where an answer has no value."""


def _nats_under(reader: str, key: str) -> Measure:
    def share(answer: Answered) -> float | None:
        row = answer.read.get(reader)
        return float(row[key] / row["tokens"]) if row and row["tokens"] else None

    return share


def instructions_report(run: InstructionRun) -> Report:
    """Compute the report of a run."""
    prompts, scored, references = run.rows(PROMPTS), run.rows(SCORED), run.rows(REFERENCES)
    pairs, timed_rows = _pairs(run, prompts, scored), run.rows(TIMED)
    if not pairs:
        raise InputError(f"{run.folder} has no prompt that both systems answered")
    baseline, taught = run.settings.systems
    head: dict[str, Any] = {
        "kind": pairs[0][0].record.kind,
        "model": taught.model,
        "strategy": taught.strategy,
        "baseline": baseline.model,
        "readers": sorted({name for pair in pairs for side in pair for name in side.read}),
        "max_tokens": run.settings.max_tokens,
        "num_prompts": len(pairs),
        "num_unanswered": len(prompts) - len(pairs),
        **{key: sorted({row[key] for row in scored if row.get(key)}) for key in PROVENANCE},
    }
    metrics, notes = [Metric((), *item) for item in head.items()], dict[Place, list[str]]()
    timed = (_answers_of(timed_rows, pasta.NAME), _answers_of(timed_rows, sequential.NAME))
    unmasked = _answers_of(run.rows(UNMASKED), pasta.NAME)
    for group in dict.fromkeys(ours.prompt["set"] for ours, _ in pairs):
        place: Place = ("sets", group)
        own = [pair for pair in pairs if pair[0].prompt["set"] == group]
        metrics.append(Metric(place, "parts", {}))
        sides: dict[Place, list[tuple[Answered, Answered]]] = {place: own}
        for parts in PARTS:
            some = [pair for pair in own if pair[0].prompt["parts"] == parts]
            sides |= {(*place, "parts", parts): some} if some else {}
        for inner, some in sides.items():
            rows, note = _of_prompts(inner, some, timed, unmasked)
            metrics += rows
            notes[inner] = [note]
        metrics += _of_ifeval(place, own)
    cost = cost_rows(references, ("references",)) if references else None
    return Report(
        title="A taught model and its sequential baseline on instructions",
        rows=[*metrics, *_text((), pairs), *(cost or [Metric((), "references", None)])],
        facts=_facts(head),
        notes=notes,
    )


def _facts(head: Mapping[str, Any]) -> list[str]:
    unanswered = f"{head['num_unanswered']} prompts are not answered yet"
    return [
        f"model: {head['model']}, strategy `{head['strategy']}`",
        f"baseline: {head['baseline']}, sequential",
        f"answers: {head['kind']}, greedy, at most {head['max_tokens']} tokens of all threads "
        "together, tags included",
        f"read by: {', '.join(head['readers']) or 'no other model'}",
        *(f"{key}: {', '.join(head[key])}" for key in PROVENANCE),
        "intervals: 95 %, bootstrap over prompts; differences are paired by prompt",
        *([unanswered] if head["num_unanswered"] else []),
    ]


def _answers_of(rows: Iterable[Row], system: str) -> dict[str, AnswerRecord]:
    return {row["prompt_id"]: AnswerRecord.from_row(row) for row in rows if row["system"] == system}


def _pairs(run: InstructionRun, prompts: Sequence[Row], scored: Sequence[Row]) -> Pairs:
    verdicts = {row["id"]: row for row in run.rows(VERDICTS)}
    read: dict[str, dict[str, Row]] = {}
    for row in run.rows(READ):
        read.setdefault(row["answer_id"], {})[row["reader"]] = row
    answers = {name: _answers_of(scored, name) for name in SYSTEMS}

    def answered(name: str, prompt: Row) -> Answered:
        key = answer_id(name, prompt["id"])
        record = answers[name][prompt["id"]]
        return Answered(prompt, record, verdicts.get(key), read.get(key, {}))

    return [
        (answered(pasta.NAME, row), answered(sequential.NAME, row))
        for row in prompts
        if all(row["id"] in own for own in answers.values())
    ]


def _of_ifeval(place: Place, pairs: Pairs) -> list[Metric]:
    verdicts = [(a.verdict, b.verdict) for a, b in pairs]
    both = [
        [Followed(row["strict"], row["loose"]) for row in (a, b)] for a, b in verdicts if a and b
    ]
    if not both:
        return [Metric(place, "ifeval", None)]
    figures = ifeval_figures(*zip(*both, strict=True))
    return [
        Metric((*place, "ifeval"), key, value, "" if key == "num_prompts" else key, len(both))
        for key, value in figures.items()
    ]


def _of_prompts(
    place: Place,
    pairs: Pairs,
    timed: tuple[Answers, Answers],
    unmasked: Answers,
) -> tuple[list[Metric], str]:
    ours, base = (
        {side.prompt["id"]: side.record for side in own} for own in zip(*pairs, strict=True)
    )
    speeds, note = speed_rows(place, ours, base, timed)
    documents = [_document(answer.program) for answer in ours.values()]
    free = [unmasked[name] for name in ours if name in unmasked]
    figures = {
        "forks": mean([bool(document.blocks) for document in documents]),
        "syncs": mean([document.num_syncs > 0 for document in documents]),
        **_shares("", [*ours.values()]),
        **_shares("_unmasked", free),
    }
    nums = {key: len(free if key.endswith("_unmasked") else ours) for key in figures}
    structure = [
        Metric(place, k, v, TITLES[k] if nums[k] else "", nums[k]) for k, v in figures.items()
    ]
    return [
        *speeds,
        *structure,
        Metric(place, "num_unmasked", len(free)),
        *_text(place, pairs),
    ], note


def _shares(ending: str, answers: Sequence[AnswerRecord]) -> dict[str, float | None]:
    flags = {
        "legal": [not answer.num_illegal for answer in answers],
        "well_formed": [answer.is_well_formed for answer in answers],
    }
    return {f"{k}{ending}": round(fmean(v), 5) if v else None for k, v in flags.items()}


def _text(place: Place, pairs: Pairs) -> list[Metric]:
    metrics = [_compared((*place, "text"), key, of, pairs) for key, of in MEASURES.items()]
    metrics.append(Metric(place, "read_by", {}))
    for name in sorted({name for ours, _ in pairs for name in ours.read}):
        for key in ("nats", "nats_alone"):
            inner = (*place, "read_by", name)
            metrics.append(_compared(inner, key, _nats_under(name, key), pairs))
    return metrics


def _compared(place: Place, key: str, of: Measure, pairs: Pairs) -> Metric:
    values = [(of(ours), of(base)) for ours, base in pairs]
    both = [(a, b) for a, b in values if a is not None and b is not None]
    compared = Compared(
        pasta=mean([a for a, _ in values if a is not None]),
        sequential=mean([b for _, b in values if b is not None]),
        difference=mean([float(a) - float(b) for a, b in both]),
        num_pairs=len(both),
    )
    return Metric(place, key, compared, key if compared.pasta is not None else "")
