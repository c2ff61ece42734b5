"""The figures of a run of ``instructions``, computed from its folder alone.

Per set of prompts, and within it by the parts that the prompts ask for: structure, speed, text,
checked instructions. A figure of text stands beside the baseline's and the difference, paired by
prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import fmean
from typing import NamedTuple

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError
from pasta_lm.journal import Row
from pasta_lm.language.document import Document, parse_program
from pasta_lm.measure import answer_text
from pasta_lm.measure.answering import answer_id
from pasta_lm.measure.cost import add_cost
from pasta_lm.measure.instructions import (
    PROMPTS,
    REFERENCES,
    SCORED,
    TIMED,
    UNMASKED,
    VERDICTS,
    InstructionRun,
)
from pasta_lm.measure.prompt_sets import PARTS, Followed, ifeval_figures
from pasta_lm.measure.speed import Answers, add_speed
from pasta_lm.measure.table import Compared, Figures, Place, Report, mean
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
    """One answer with its prompt and its verdict."""

    prompt: Row
    record: AnswerRecord
    verdict: Row | None = None  # of IFEval's checkers


Pairs = Sequence[tuple[Answered, Answered]]
"""The taught model's answers and the baseline's, in the order of the prompts."""


@cache
def _document(program: str) -> Document:
    return parse_program(program)


def _coverage(answer: Answered) -> float | None:
    items = answer.prompt["items"]
    return None if items is None else answer_text.coverage(items, answer.record.text)


MEASURES: dict[str, Callable[[Answered], float | None]] = {
    "repetition": lambda answer: answer_text.repetition(answer.record.text),
    "coverage": _coverage,
    "cut": lambda answer: answer.record.finish_reason == "length",
}
"""Measures of an answer's text by key; None where an answer has no value."""


def instructions_report(run: InstructionRun) -> Report:
    rows = run.folder.rows
    prompts, scored, references = rows(PROMPTS), rows(SCORED), rows(REFERENCES)
    pairs = _pairs(prompts, scored, {row["id"]: row for row in rows(VERDICTS)})
    if not pairs:
        raise InputError(f"{run.folder.path} has no prompt that both systems answered")
    baseline, taught = run.settings.systems
    head: Figures = {
        "kind": pairs[0][0].record.kind,
        "model": taught.model,
        "strategy": taught.strategy,
        "baseline": baseline.model,
        "max_tokens": run.settings.max_tokens,
        "num_prompts": len(pairs),
        "num_unanswered": len(prompts) - len(pairs),
        **{key: sorted({row[key] for row in scored if row.get(key)}) for key in PROVENANCE},
    }
    report = Report("A taught model and its sequential baseline on instructions", _facts(head))
    report.add((), head)
    clocks = rows(TIMED)
    timed = (_answers_of(clocks, pasta.NAME), _answers_of(clocks, sequential.NAME))
    unmasked = _answers_of(rows(UNMASKED), pasta.NAME)
    for group in dict.fromkeys(ours.prompt["set"] for ours, _ in pairs):
        place: Place = ("sets", group)
        own = [pair for pair in pairs if pair[0].prompt["set"] == group]
        _add_prompts(report, place, own, timed, unmasked)
        report.add(place, {"parts": {}})
        for parts in PARTS:
            some = [pair for pair in own if pair[0].prompt["parts"] == parts]
            if some:
                _add_prompts(report, (*place, "parts", parts), some, timed, unmasked)
        _add_ifeval(report, place, own)
    _add_text(report, (), pairs)
    if references:
        add_cost(report, references, ("references",))
    else:
        report.add((), {"references": None})
    return report


def _facts(head: Figures) -> list[str]:
    unanswered = f"{head['num_unanswered']} prompts are not answered yet"
    return [
        f"model: {head['model']}, strategy `{head['strategy']}`",
        f"baseline: {head['baseline']}, sequential",
        f"answers: {head['kind']}, greedy, at most {head['max_tokens']} tokens of all threads "
        "together, tags included",
        *(f"{key}: {', '.join(head[key])}" for key in PROVENANCE),
        "intervals: 95 %, bootstrap over prompts; differences are paired by prompt",
        *([unanswered] if head["num_unanswered"] else []),
    ]


def _answers_of(rows: Iterable[Row], system: str) -> dict[str, AnswerRecord]:
    return {row["prompt_id"]: AnswerRecord.from_row(row) for row in rows if row["system"] == system}


def _pairs(prompts: Sequence[Row], scored: Sequence[Row], verdicts: dict[str, Row]) -> Pairs:
    answers = {name: _answers_of(scored, name) for name in SYSTEMS}

    def answered(name: str, prompt: Row) -> Answered:
        key = prompt["id"]
        return Answered(prompt, answers[name][key], verdicts.get(answer_id(name, key)))

    return [
        (answered(pasta.NAME, row), answered(sequential.NAME, row))
        for row in prompts
        if all(row["id"] in own for own in answers.values())
    ]


def _add_prompts(
    report: Report, place: Place, pairs: Pairs, timed: tuple[Answers, Answers], unmasked: Answers
) -> None:
    ours, base = (
        {side.prompt["id"]: side.record for side in own} for own in zip(*pairs, strict=True)
    )
    add_speed(report, place, ours, base, timed)
    documents = [_document(answer.program) for answer in ours.values()]
    free = [unmasked[name] for name in ours if name in unmasked]
    structure = {
        "forks": mean([bool(document.blocks) for document in documents]),
        "syncs": mean([document.num_syncs > 0 for document in documents]),
        **_shares("", [*ours.values()]),
    }
    report.add(place, structure, TITLES, len(ours))
    report.add(place, _shares("_unmasked", free) | {"num_unmasked": len(free)}, TITLES, len(free))
    _add_text(report, place, pairs)


def _shares(ending: str, answers: Sequence[AnswerRecord]) -> dict[str, float | None]:
    flags = {
        "legal": [not answer.num_illegal for answer in answers],
        "well_formed": [answer.is_well_formed for answer in answers],
    }
    return {f"{k}{ending}": round(fmean(v), 5) if v else None for k, v in flags.items()}


def _add_text(report: Report, place: Place, pairs: Pairs) -> None:
    for key, of in MEASURES.items():
        values = [(of(ours), of(base)) for ours, base in pairs]
        differences = [a - b for a, b in values if a is not None and b is not None]
        compared = Compared(
            pasta=mean([a for a, _ in values if a is not None]),
            sequential=mean([b for _, b in values if b is not None]),
            difference=mean(differences),
            num_pairs=len(differences),
        )
        report.add((*place, "text"), {key: compared}, {key: key})


def _add_ifeval(report: Report, place: Place, pairs: Pairs) -> None:
    def followed(row: Row) -> Followed:
        return Followed(row["strict"], row["loose"])

    both = [
        (followed(ours.verdict), followed(base.verdict))
        for ours, base in pairs
        if ours.verdict and base.verdict
    ]
    if not both:
        report.add(place, {"ifeval": None})
        return
    figures = ifeval_figures(both)
    report.add((*place, "ifeval"), {"num_prompts": len(both)})
    report.add((*place, "ifeval"), figures, {key: key for key in figures}, len(both))
