"""The figures of a run of ``instructions``, computed from its folder alone.

Per set of prompts, and within it by what the prompts ask for: structure, speed, text, checked
instructions. A figure of text stands beside the baseline's and the difference, paired by prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError
from pasta_lm.evaluate import answer_text
from pasta_lm.evaluate.aims import compare_with_aims
from pasta_lm.evaluate.answering import answer_id
from pasta_lm.evaluate.cost import cost_report
from pasta_lm.evaluate.ifeval import Verdict, ifeval_figures
from pasta_lm.evaluate.instructions import (
    READ,
    REFERENCES,
    SCORED,
    TIMED,
    UNMASKED,
    VERDICTS,
    InstructionRun,
    answers_of,
)
from pasta_lm.evaluate.intervals import as_dict, geometric_mean, mean
from pasta_lm.evaluate.prompt_sets import PARTS
from pasta_lm.evaluate.quality import share
from pasta_lm.evaluate.speed import num_failed, speed, speed_table
from pasta_lm.journal import Row
from pasta_lm.language.document import Document, parse_program
from pasta_lm.strategies import pasta, sequential

Figures = dict[str, Any]
SYSTEMS = (pasta.NAME, sequential.NAME)


class Answered(NamedTuple):
    """One answer and what is known of it."""

    prompt: Row
    record: AnswerRecord
    verdict: Row | None = None
    """Of IFEval's checkers."""
    read: Mapping[str, Row] = MappingProxyType({})
    """By the name of the model that read it."""


@cache
def _document(program: str) -> Document:
    return parse_program(program)


def _blocks(one: Answered, name: str) -> float | None:
    found = answer_text.blocks_repetition(_document(one.record.program))
    return found and getattr(found, name)


def _coverage(one: Answered) -> float | None:
    items = one.prompt["items"]
    return None if items is None else answer_text.coverage(items, one.record.text)


def _lines(one: Answered) -> answer_text.Repetition:
    return answer_text.repetition(one.record.text.splitlines())


MEASURES: dict[str, Callable[[Answered], float | None]] = {
    "repetition": lambda one: answer_text.repetition([one.record.text]).within,
    "repetition_within_lines": lambda one: _lines(one).within,
    "repetition_between_lines": lambda one: _lines(one).between,
    "repetition_within_blocks": lambda one: _blocks(one, "within"),
    "repetition_between_blocks": lambda one: _blocks(one, "between"),
    "repeated_lines": lambda one: answer_text.has_repeated_line(one.record.text),
    "repeated_topics": lambda one: answer_text.has_repeated_topic(_document(one.record.program)),
    "items": lambda one: answer_text.items_given(one.record.text),
    "coverage": _coverage,
    "cut": lambda one: one.record.finish_reason == "length",
    "empty": lambda one: not one.record.text.strip(),
}
"""Measures of an answer's text by key; None where an answer has no value."""


def _reader_measures(reader: str) -> dict[str, Callable[[Answered], float | None]]:
    """Return what one model's reading says of an answer: nats a token."""

    def share(one: Answered, count: Callable[[Row], float]) -> float | None:
        row = one.read.get(reader)
        return count(row) / row["tokens"] if row and row["tokens"] else None

    return {
        "nats": lambda one: share(one, lambda row: row["nats"]),
        "nats_alone": lambda one: share(one, lambda row: row["nats_alone"]),
        "prompt_gain": lambda one: share(one, lambda row: row["nats_alone"] - row["nats"]),
    }


def instructions_report(run: InstructionRun) -> Figures:
    """Return the object that ``pasta evaluate instructions --json`` prints.

    Raises:
        InputError: the folder has no answers of both systems.
    """
    prompts = run.rows("prompts")
    scored = run.rows(SCORED)
    answers = {name: answers_of(scored, name) for name in SYSTEMS}
    shared = [one for one in prompts if all(one["id"] in answers[name] for name in SYSTEMS)]
    if not shared:
        raise InputError(f"{run.folder} has no prompt that both systems answered")
    verdicts = {row["id"]: row for row in run.rows(VERDICTS)}
    read: dict[str, dict[str, Row]] = {}
    for row in run.rows(READ):
        read.setdefault(row["answer_id"], {})[row["reader"]] = row

    def answered(name: str) -> list[Answered]:
        keys = {one["id"]: answer_id(name, one["id"]) for one in shared}
        return [
            Answered(one, answers[name][one["id"]], verdicts.get(key), read.get(key, {}))
            for one in shared
            if (key := keys[one["id"]])
        ]

    ours, base = (answered(name) for name in SYSTEMS)
    unmasked = answers_of(run.rows(UNMASKED), pasta.NAME)
    timed = run.rows(TIMED)
    settings = run.settings
    baseline, taught = settings.systems
    found: Figures = {
        "kind": next((one.record.kind for one in ours), None),
        "model": taught.model,
        "baseline": baseline.model,
        "readers": sorted({name for one in read.values() for name in one}),
        "max_tokens": settings.max_tokens,
        "num_prompts": len(shared),
        "num_unanswered": len(prompts) - len(shared),
        **_provenance(scored),
        **_text(ours, base),
        "sets": {},
    }
    for group in dict.fromkeys(one["set"] for one in shared):
        inside = [one.prompt["set"] == group for one in ours]
        sides = _kept(ours, inside), _kept(base, inside)
        found["sets"][group] = _set_figures(*sides, unmasked, timed)
    references = run.rows(REFERENCES)
    found["references"] = cost_report(references) if references else None
    return found | {"aims": compare_with_aims(found)}


def _provenance(rows: Sequence[Row]) -> Figures:
    """Return what the answers say of hardware and code; several are all named."""
    return {
        key: sorted({row[key] for row in rows if row.get(key)})
        for key in ("hardware", "dtype", "commit", "version", "positions")
    }


def _kept(side: Sequence[Answered], flags: Sequence[bool]) -> list[Answered]:
    return [one for one, is_kept in zip(side, flags, strict=True) if is_kept]


def _set_figures(
    ours: Sequence[Answered],
    base: Sequence[Answered],
    unmasked: Mapping[str, AnswerRecord],
    timed: Sequence[Row],
) -> Figures:
    parts = {
        name: [one.prompt["parts"] == name for one in ours]
        for name in PARTS
        if any(one.prompt["parts"] == name for one in ours)
    }
    names = {one.prompt["id"] for one in ours}
    free = [record for name, record in unmasked.items() if name in names]
    clocks = {
        system: {k: v for k, v in answers_of(timed, system).items() if k in names}
        for system in (sequential.NAME, pasta.NAME)
    }
    found = {
        **_figures(ours, base),
        **_timed_figures(clocks),
        "num_unmasked": len(free),
        "legal_unmasked": share([not one.num_illegal for one in free]),
        "well_formed_unmasked": share([one.is_well_formed for one in free]),
        "parts": {
            name: _figures(_kept(ours, flags), _kept(base, flags)) for name, flags in parts.items()
        },
    }
    checked = [(a.verdict, b.verdict) for a, b in zip(ours, base, strict=True)]
    both = [(_verdict(a), _verdict(b)) for a, b in checked if a and b]
    sides = [a for a, _ in both], [b for _, b in both]
    return found | {"ifeval": ifeval_figures(*sides) if both else None}


def _verdict(row: Row) -> Verdict:
    return Verdict(row["strict"], row["loose"])


def _timed_figures(clocks: Mapping[str, Mapping[str, AnswerRecord]]) -> Figures:
    """Return what the clocks say, over the prompts that were answered one at a time."""
    keys = ("realised_speedup", "efficiency", "num_timed")
    if not all(clocks.values()):
        return {**dict.fromkeys(keys), "num_timed": 0, "timed_theoretical_speedup": None}
    table = speed_table({name: dict(found) for name, found in clocks.items()}, sequential.NAME)
    ours = table[pasta.NAME]
    found = {key: ours[key] for key in keys}
    return found | {"timed_theoretical_speedup": ours["theoretical_speedup"]}


def _figures(ours: Sequence[Answered], base: Sequence[Answered]) -> Figures:
    """Return the figures over some prompts, in the same order on both sides."""
    sides = [[one.record for one in side] for side in (ours, base)]
    taught = sides[0]
    documents = [_document(one.program) for one in taught]
    forking = [
        (one, other)
        for one, other, document in zip(*sides, documents, strict=True)
        if document.blocks
    ]
    return {
        "num_prompts": len(taught),
        "num_failed": num_failed(taught),
        **speed(*sides),
        "theoretical_speedup_of_forking": as_dict(
            geometric_mean([one.theoretical_speedup(other) for one, other in forking])
        ),
        "forks": as_dict(mean([bool(document.blocks) for document in documents])),
        "stays_sequential": as_dict(mean([not document.blocks for document in documents])),
        "syncs": as_dict(mean([document.num_syncs > 0 for document in documents])),
        "blocks_of_forking": _mean_of([len(d.blocks) for d in documents if d.blocks]),
        "legal": share([not one.num_illegal for one in taught]),
        "well_formed": share([one.is_well_formed for one in taught]),
        "finish_reasons": dict(Counter(one.finish_reason for one in taught)),
        "finish_reasons_baseline": dict(Counter(one.finish_reason for one in sides[1])),
        "content_tokens": _mean_of([one.num_content_tokens for one in taught]),
        "content_tokens_baseline": _mean_of([one.num_content_tokens for one in sides[1]]),
        **_text(ours, base),
    }


def _mean_of(values: Sequence[float]) -> float | None:
    return round(fmean(values), 2) if values else None


def _text(ours: Sequence[Answered], base: Sequence[Answered]) -> Figures:
    readers = sorted({name for one in ours for name in one.read})
    return {
        "text": {key: _measured(of, ours, base) for key, of in MEASURES.items()},
        "read_by": {
            name: {key: _measured(of, ours, base) for key, of in _reader_measures(name).items()}
            for name in readers
        },
    }


def _measured(
    of: Callable[[Answered], float | None], ours: Sequence[Answered], base: Sequence[Answered]
) -> Figures:
    """Return a measure of both systems, and their difference where both have a value."""
    values, others = ([of(one) for one in side] for side in (ours, base))
    pairs = [(a, b) for a, b in zip(values, others, strict=True) if a is not None and b is not None]
    return {
        "pasta": as_dict(mean([float(one) for one in values if one is not None])),
        "sequential": as_dict(mean([float(one) for one in others if one is not None])),
        "difference": as_dict(mean([float(a) - float(b) for a, b in pairs])),
        "num_pairs": len(pairs),
    }
