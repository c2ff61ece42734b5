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
from pasta_lm.measure import instructions as stored
from pasta_lm.measure.answering import answer_id
from pasta_lm.measure.cost import add_cost
from pasta_lm.measure.prompt_sets import PARTS, Followed, ifeval_figures
from pasta_lm.measure.speed import Answers, add_speed
from pasta_lm.measure.table import Figures, Place, Report, mean
from pasta_lm.strategies import pasta, sequential

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
    """A prompt with both answers to it, and IFEval's verdicts on them if it is checked."""

    prompt: Row
    ours: AnswerRecord
    base: AnswerRecord
    verdicts: tuple[Followed, Followed] | None


MEASURES: dict[str, Callable[[Row, AnswerRecord], float]] = {
    "repetition": lambda prompt, answer: answer_text.repetition(answer.text),
    "coverage": lambda prompt, answer: answer_text.coverage(prompt["items"], answer.text),
    "cut": lambda prompt, answer: answer.finish_reason == "length",
}
"""Measures of an answer's text by key; coverage only where a prompt asks for so many items."""


@cache
def _document(program: str) -> Document:
    return parse_program(program)


def instructions_report(run: stored.InstructionRun) -> Report:
    rows, (baseline, taught) = run.folder.rows, run.settings.systems
    prompts, scored, references = rows(stored.PROMPTS), rows(stored.SCORED), rows(stored.REFERENCES)
    answered = _answered(prompts, scored, {row["id"]: row for row in rows(stored.VERDICTS)})
    if not answered:
        raise InputError(f"{run.folder.path} has no prompt that both systems answered")
    head: Figures = {
        "kind": answered[0].ours.kind,
        "model": taught.model,
        "strategy": taught.strategy,
        "baseline": baseline.model,
        "max_tokens": run.settings.max_tokens,
        "num_prompts": len(answered),
        "num_unanswered": len(prompts) - len(answered),
        **{key: sorted({row[key] for row in scored if row.get(key)}) for key in PROVENANCE},
    }
    report = Report("A taught model and its sequential baseline on instructions", _facts(head))
    report.add((), head)
    clocks = rows(stored.TIMED)
    timed = (_answers_of(clocks, pasta.NAME), _answers_of(clocks, sequential.NAME))
    unmasked = _answers_of(rows(stored.UNMASKED), pasta.NAME)
    for group in dict.fromkeys(item.prompt["set"] for item in answered):
        place: Place = ("sets", group)
        own = [item for item in answered if item.prompt["set"] == group]
        _add_prompts(report, place, own, timed, unmasked)
        report.add(place, {"parts": {}})
        for parts in PARTS:
            if some := [item for item in own if item.prompt["parts"] == parts]:
                _add_prompts(report, (*place, "parts", parts), some, timed, unmasked)
        both = [item.verdicts for item in own if item.verdicts]
        checked = {"num_prompts": len(both), **ifeval_figures(both)} if both else None
        report.add(place, {"ifeval": checked}, {"ifeval": "IFEval"}, len(both))
    _add_text(report, (), answered)
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


def _answered(
    prompts: Sequence[Row], scored: Sequence[Row], verdicts: dict[str, Row]
) -> list[Answered]:
    names = pasta.NAME, sequential.NAME
    ours, base = (_answers_of(scored, name) for name in names)
    answered = []
    for prompt in prompts:
        key = prompt["id"]
        checked = [verdicts.get(answer_id(name, key)) for name in names]
        a, b = (Followed(row["strict"], row["loose"]) if row else None for row in checked)
        if key in ours and key in base:
            both = (a, b) if a and b else None
            answered.append(Answered(prompt, ours[key], base[key], both))
    return answered


def _add_prompts(
    report: Report,
    place: Place,
    answered: Sequence[Answered],
    timed: tuple[Answers, Answers],
    unmasked: Answers,
) -> None:
    ours = {item.prompt["id"]: item.ours for item in answered}
    add_speed(report, place, ours, {item.prompt["id"]: item.base for item in answered}, timed)
    documents = [_document(answer.program) for answer in ours.values()]
    structure = {
        "forks": mean([bool(document.blocks) for document in documents]),
        "syncs": mean([document.num_syncs > 0 for document in documents]),
    }
    free = [unmasked[name] for name in ours if name in unmasked]
    shares = _shares("_unmasked", free) | {"num_unmasked": len(free)}
    report.add(place, structure | _shares("", [*ours.values()]), TITLES, len(ours))
    report.add(place, shares, TITLES, len(free))
    _add_text(report, place, answered)


def _shares(ending: str, answers: Sequence[AnswerRecord]) -> Figures:
    flags = {
        "legal": [not answer.num_illegal for answer in answers],
        "well_formed": [answer.is_well_formed for answer in answers],
    }
    return {f"{k}{ending}": round(fmean(v), 5) if v else None for k, v in flags.items()}


def _add_text(report: Report, place: Place, answered: Sequence[Answered]) -> None:
    for key, measure in MEASURES.items():
        some = [item for item in answered if key != "coverage" or item.prompt["items"] is not None]
        ours = [measure(item.prompt, item.ours) for item in some]
        base = [measure(item.prompt, item.base) for item in some]
        differences = [a - b for a, b in zip(ours, base, strict=True)]
        compared = {
            "pasta": mean(ours),
            "sequential": mean(base),
            "difference": mean(differences),
            "num_pairs": len(some),
        }
        report.add((*place, "text"), {key: compared}, {key: key}, len(some))
