"""The figures of a run of ``instructions``, computed from its folder alone.

Per set of prompts, and within it by what the prompts ask for: structure, speed, text, checked
instructions. A figure of text stands beside the baseline's and the difference, paired by prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from pasta_lab.evaluate.quality import share
from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError
from pasta_lm.journal import Row
from pasta_lm.language.document import Document, parse_program
from pasta_lm.learn.judge import answer_text
from pasta_lm.measure.answering import answer_id
from pasta_lm.measure.cost import cost_report
from pasta_lm.measure.ifeval import Verdict, ifeval_figures
from pasta_lm.measure.instructions import (
    READ,
    REFERENCES,
    SCORED,
    TIMED,
    UNMASKED,
    VERDICTS,
    InstructionRun,
    answers_of,
)
from pasta_lm.measure.intervals import as_dict, geometric_mean, mean
from pasta_lm.measure.prompt_sets import PARTS
from pasta_lm.measure.speed import num_failed, speed, speed_table
from pasta_lm.strategies import pasta, sequential

Figures = dict[str, Any]
SYSTEMS = (pasta.NAME, sequential.NAME)


class Aim(NamedTuple):
    """A bound for one figure, fixed before the first reported training.

    An aim is met if the estimate is on its side, and clearly met if the whole interval is.
    """

    title: str
    place: str
    """The keys that lead to the figure, with dots."""
    bound: float
    is_upper: bool = False
    """Whether the figure must not be above the bound; otherwise it must not be below."""


AIMS = (
    Aim("cost of not seeing, nats per token", "references.cost", 0.02, is_upper=True),
    Aim("IFEval, strict, less the baseline", "sets.ifeval.ifeval.prompt_strict_difference", -0.01),
    Aim(
        "all sets: repetition, less the baseline", "text.repetition.difference", 0.0, is_upper=True
    ),
    Aim(
        "all sets: repeated lines, less the baseline",
        "text.repeated_lines.difference",
        0.0,
        is_upper=True,
    ),
    Aim("all sets: coverage, less the baseline", "text.coverage.difference", 0.0),
    Aim("AlpacaEval: theoretical speedup", "sets.alpaca.theoretical_speedup", 1.5),
    Aim(
        "AlpacaEval, several parts: theoretical speedup",
        "sets.alpaca.parts.several.theoretical_speedup",
        2.0,
    ),
    Aim("AlpacaEval, several parts: answers that fork", "sets.alpaca.parts.several.forks", 0.9),
    Aim(
        "AlpacaEval, one part: answers that do not fork",
        "sets.alpaca.parts.one.stays_sequential",
        0.95,
    ),
    Aim(
        "held-out instructions, several parts: answers that fork",
        "sets.instructions.parts.several.forks",
        0.9,
    ),
    Aim(
        "held-out instructions, one part: answers that do not fork",
        "sets.instructions.parts.one.stays_sequential",
        0.95,
    ),
    Aim("AlpacaEval: only legal tags", "sets.alpaca.legal", 1.0),
    Aim("AlpacaEval: only legal tags, mask off", "sets.alpaca.legal_unmasked", 0.99),
)
"""The aims for a taught model, in the order of the report."""


def compare_with_aims(report: Figures) -> list[Figures]:
    """Return every aim with its figure; what was not measured is None."""
    return [_compared(aim, reduce(_entry, aim.place.split("."), report)) for aim in AIMS]


def _entry(report: Any, key: str) -> Any:
    return report.get(key) if isinstance(report, Mapping) else None


def _compared(aim: Aim, figure: Any) -> Figures:
    found: Figures = {"aim": aim.title, "bound": aim.bound, "is_upper": aim.is_upper}
    found |= {"figure": figure, "is_met": None, "is_clear": None}
    if figure is None:
        return found
    is_interval, sign = isinstance(figure, Mapping), -1 if aim.is_upper else 1
    mean = figure["mean"] if is_interval else figure
    worst = figure["high" if aim.is_upper else "low"] if is_interval else figure
    is_met, is_clear = (sign * value >= sign * aim.bound for value in (mean, worst))
    return found | {"is_met": is_met, "is_clear": is_clear}


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

    def answered(name: str, prompt: Row) -> Answered:
        key = answer_id(name, prompt["id"])
        return Answered(prompt, answers[name][prompt["id"]], verdicts.get(key), read.get(key, {}))

    ours, base = ([answered(name, one) for one in shared] for name in SYSTEMS)
    unmasked = answers_of(run.rows(UNMASKED), pasta.NAME)
    timed = run.rows(TIMED)
    baseline, taught = run.settings.systems
    found: Figures = {
        "kind": next((one.record.kind for one in ours), None),
        "model": taught.model,
        "strategy": taught.strategy,
        "baseline": baseline.model,
        "readers": sorted({name for one in read.values() for name in one}),
        "max_tokens": run.settings.max_tokens,
        "num_prompts": len(shared),
        "num_unanswered": len(prompts) - len(shared),
        **_provenance(scored),
        **_text(ours, base),
        "sets": {},
    }
    for group in dict.fromkeys(one["set"] for one in shared):
        sides = _where("set", group, ours), _where("set", group, base)
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


def _where(key: str, value: str, side: Sequence[Answered]) -> list[Answered]:
    return [one for one in side if one.prompt[key] == value]


def _set_figures(
    ours: Sequence[Answered],
    base: Sequence[Answered],
    unmasked: Mapping[str, AnswerRecord],
    timed: Sequence[Row],
) -> Figures:
    names = {one.prompt["id"] for one in ours}
    free = [record for name, record in unmasked.items() if name in names]
    clocks = {
        system: {k: v for k, v in answers_of(timed, system).items() if k in names}
        for system in SYSTEMS
    }
    found = {
        **_figures(ours, base),
        **_timed_figures(clocks),
        "num_unmasked": len(free),
        "legal_unmasked": share([not one.num_illegal for one in free]),
        "well_formed_unmasked": share([one.is_well_formed for one in free]),
        "parts": {
            name: _figures(some, _where("parts", name, base))
            for name in PARTS
            if (some := _where("parts", name, ours))
        },
    }
    pairs = [(a.verdict, b.verdict) for a, b in zip(ours, base, strict=True)]
    both = [[Verdict(row["strict"], row["loose"]) for row in (a, b)] for a, b in pairs if a and b]
    return found | {"ifeval": ifeval_figures(*zip(*both, strict=True)) if both else None}


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
