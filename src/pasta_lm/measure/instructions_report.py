"""The figures of a run of ``instructions``, computed from its folder alone.

Per set of prompts, and within it by the parts that the prompts ask for: structure, speed, text,
checked instructions. A figure of text stands beside the baseline's and the difference, paired by
prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError
from pasta_lm.journal import Row, write_whole
from pasta_lm.language.document import Document, parse_program
from pasta_lm.learn.judge import answer_text
from pasta_lm.measure.alpaca_report import pretty
from pasta_lm.measure.answering import answer_id
from pasta_lm.measure.answers_page import answers_page
from pasta_lm.measure.cost import cost_rows
from pasta_lm.measure.ifeval import Verdict, ifeval_figures
from pasta_lm.measure.instructions import (
    PROMPTS,
    READ,
    REFERENCES,
    SCORED,
    TIMED,
    UNMASKED,
    VERDICTS,
    InstructionRun,
    answers_of,
)
from pasta_lm.measure.intervals import geometric_mean, mean
from pasta_lm.measure.prompt_sets import OWN, PARTS
from pasta_lm.measure.speed import num_failed, speed, speed_rows
from pasta_lm.measure.table import Compared, Metric, Place, Report
from pasta_lm.strategies import pasta, sequential

SYSTEMS = (pasta.NAME, sequential.NAME)
PROVENANCE = ("hardware", "dtype", "commit", "version", "positions")
TITLES = {
    "theoretical_speedup": "theoretical speedup",
    "theoretical_speedup_of_forking": "theoretical speedup of answers that fork",
    "parallelism": "parallelism",
    "length_ratio": "length ratio, characters",
    "forks": "answers that fork",
    "stays_sequential": "answers that stay sequential",
    "syncs": "answers with a sync",
    "legal": "legal tags",
    "well_formed": "well formed",
}
TIMED_TITLES = {
    "timed_theoretical_speedup": "theoretical speedup, timed",
    "realised_speedup": "realised speedup",
    "efficiency": "realised / theoretical",
}
UNMASKED_TITLES = {
    "legal_unmasked": "legal tags, without the mask",
    "well_formed_unmasked": "well formed, without the mask",
}


class Answered(NamedTuple):
    """One answer with its prompt, its verdict and its readings."""

    prompt: Row
    record: AnswerRecord
    verdict: Row | None = None
    """Of IFEval's checkers."""
    read: Mapping[str, Row] = MappingProxyType({})
    """By the name of the model that read it."""


@cache
def _document(program: str) -> Document:
    return parse_program(program)


def _blocks(answer: Answered) -> answer_text.Repetition | None:
    return answer_text.blocks_repetition(_document(answer.record.program))


def _coverage(answer: Answered) -> float | None:
    items = answer.prompt["items"]
    return None if items is None else answer_text.coverage(items, answer.record.text)


def _lines(answer: Answered) -> answer_text.Repetition:
    return answer_text.repetition(answer.record.text.splitlines())


Measure = Callable[[Answered], float | None]
MEASURES: dict[str, Measure] = {
    "repetition": lambda answer: answer_text.repetition([answer.record.text]).within,
    "repetition_within_lines": lambda answer: _lines(answer).within,
    "repetition_between_lines": lambda answer: _lines(answer).between,
    "repetition_within_blocks": lambda answer: (result := _blocks(answer)) and result.within,
    "repetition_between_blocks": lambda answer: (result := _blocks(answer)) and result.between,
    "repeated_lines": lambda answer: answer_text.has_repeated_line(answer.record.text),
    "repeated_topics": lambda answer: answer_text.has_repeated_topic(
        _document(answer.record.program)
    ),
    "items": lambda answer: answer_text.items_given(answer.record.text),
    "coverage": _coverage,
    "cut": lambda answer: answer.record.finish_reason == "length",
    "empty": lambda answer: not answer.record.text.strip(),
}
"""Measures of an answer's text by key; None where an answer has no value."""


def _reader_measures(reader: str) -> dict[str, Measure]:
    """Return the measures of one model's reading: nats a token."""

    def share(answer: Answered, count: Callable[[Row], float]) -> float | None:
        row = answer.read.get(reader)
        return count(row) / row["tokens"] if row and row["tokens"] else None

    return {
        "nats": lambda answer: share(answer, lambda row: row["nats"]),
        "nats_alone": lambda answer: share(answer, lambda row: row["nats_alone"]),
        "prompt_gain": lambda answer: share(answer, lambda row: row["nats_alone"] - row["nats"]),
    }


def write_report(run: InstructionRun, page: Path | None = None) -> Report:
    """Write the report as JSON and Markdown, and pages of answers; return it.

    The page in the folder shows our own prompts alone; ``page`` shows all that can be read.
    """
    report, out = instructions_report(run), run.folder
    write_whole(out / "report.json", pretty(report.to_dict()).encode())
    write_whole(out / "report.md", report.markdown().encode())
    write_whole(out / "answers.html", answers_page(run, OWN).encode())
    if page is not None:
        write_whole(page, answers_page(run).encode())
    return report


def instructions_report(run: InstructionRun) -> Report:
    """Compute the report of a run.

    Raises:
        InputError: the folder has no answers of both systems.
    """
    prompts, scored = run.rows(PROMPTS), run.rows(SCORED)
    answers = {name: answers_of(scored, name) for name in SYSTEMS}
    shared = [
        answer for answer in prompts if all(answer["id"] in answers[name] for name in SYSTEMS)
    ]
    if not shared:
        raise InputError(f"{run.folder} has no prompt that both systems answered")
    ours, base = (_answered(run, name, shared, answers[name]) for name in SYSTEMS)
    unmasked, timed = answers_of(run.rows(UNMASKED), pasta.NAME), run.rows(TIMED)
    baseline, taught = run.settings.systems
    head = {
        "kind": ours[0].record.kind,
        "model": taught.model,
        "strategy": taught.strategy,
        "baseline": baseline.model,
        "readers": sorted({name for answer in (*ours, *base) for name in answer.read}),
        "max_tokens": run.settings.max_tokens,
        "num_prompts": len(shared),
        "num_unanswered": len(prompts) - len(shared),
        **{key: sorted({row[key] for row in scored if row.get(key)}) for key in PROVENANCE},
    }
    metrics = [Metric((), *item) for item in head.items()]
    for group in dict.fromkeys(answer["set"] for answer in shared):
        sides = _where("set", group, ours), _where("set", group, base)
        metrics += _of_set(("sets", group), *sides, unmasked, timed)
    references = run.rows(REFERENCES)
    cost = cost_rows(references, ("references",)) if references else None
    return Report(
        title="A taught model and its sequential baseline on instructions",
        rows=[*metrics, *_text((), ours, base), *(cost or [Metric((), "references", None)])],
        facts=_facts(head),
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


def _answered(
    run: InstructionRun, name: str, prompts: Sequence[Row], answers: Mapping[str, AnswerRecord]
) -> list[Answered]:
    verdicts = {row["id"]: row for row in run.rows(VERDICTS)}
    read: dict[str, dict[str, Row]] = {}
    for row in run.rows(READ):
        read.setdefault(row["answer_id"], {})[row["reader"]] = row
    keys = [answer_id(name, answer["id"]) for answer in prompts]
    return [
        Answered(answer, answers[answer["id"]], verdicts.get(key), read.get(key, {}))
        for answer, key in zip(prompts, keys, strict=True)
    ]


def _where(key: str, value: str, side: Sequence[Answered]) -> list[Answered]:
    return [answer for answer in side if answer.prompt[key] == value]


def _of_set(
    place: Place,
    ours: Sequence[Answered],
    base: Sequence[Answered],
    unmasked: Mapping[str, AnswerRecord],
    timed: Sequence[Row],
) -> list[Metric]:
    """Return the figures of one set of prompts, and of its prompts for one and several parts."""
    names = {answer.prompt["id"] for answer in ours}
    free = [record for name, record in unmasked.items() if name in names]
    legal, formed = (
        [not answer.num_illegal for answer in free],
        [answer.is_well_formed for answer in free],
    )
    shares = {"legal_unmasked": _share(legal), "well_formed_unmasked": _share(formed)}
    metrics = [*_of_prompts(place, ours, base), *_of_clocks(place, names, timed)]
    metrics.append(Metric(place, "num_unmasked", len(free)))
    metrics += [Metric(place, k, v, UNMASKED_TITLES[k], len(free)) for k, v in shares.items()]
    metrics.append(Metric(place, "parts", {}))
    for parts in PARTS:
        if some := _where("parts", parts, ours):
            metrics += _of_prompts((*place, "parts", parts), some, _where("parts", parts, base))
    return [*metrics, *_of_ifeval(place, ours, base)]


def _of_clocks(place: Place, names: Collection[str], timed: Sequence[Row]) -> list[Metric]:
    clocks = {
        system: {k: v for k, v in answers_of(timed, system).items() if k in names}
        for system in SYSTEMS
    }
    figures: dict[str, Any] = {}
    if all(clocks.values()):
        rows, _ = speed_rows((), clocks[pasta.NAME], clocks[sequential.NAME])
        figures = {row.key: row.value for row in rows}
        figures["timed_theoretical_speedup"] = figures["theoretical_speedup"]
    num = figures.get("num_timed", 0)
    result = [
        Metric(place, key, figures.get(key), title, num) for key, title in TIMED_TITLES.items()
    ]
    return [Metric(place, "num_timed", num), *result]


def _of_ifeval(place: Place, ours: Sequence[Answered], base: Sequence[Answered]) -> list[Metric]:
    pairs = [(a.verdict, b.verdict) for a, b in zip(ours, base, strict=True)]
    both = [[Verdict(row["strict"], row["loose"]) for row in (a, b)] for a, b in pairs if a and b]
    if not both:
        return [Metric(place, "ifeval", None)]
    figures = ifeval_figures(*zip(*both, strict=True))
    num = len(both)
    return [
        Metric((*place, "ifeval"), key, value, "" if key == "num_prompts" else key, num)
        for key, value in figures.items()
    ]


def _of_prompts(place: Place, ours: Sequence[Answered], base: Sequence[Answered]) -> list[Metric]:
    """Return the figures over some prompts; both sides have them in the same order."""
    taught, others = ([answer.record for answer in side] for side in (ours, base))
    documents = [_document(answer.program) for answer in taught]
    forking = [
        answer.theoretical_speedup(other)
        for answer, other, document in zip(taught, others, documents, strict=True)
        if document.blocks
    ]
    figures = {
        "num_prompts": len(taught),
        "num_failed": num_failed(taught),
        **speed(taught, others),
        "theoretical_speedup_of_forking": geometric_mean(forking),
        "forks": mean([bool(document.blocks) for document in documents]),
        "stays_sequential": mean([not document.blocks for document in documents]),
        "syncs": mean([document.num_syncs > 0 for document in documents]),
        "blocks_of_forking": _mean_of([len(d.blocks) for d in documents if d.blocks]),
        "legal": _share([not answer.num_illegal for answer in taught]),
        "well_formed": _share([answer.is_well_formed for answer in taught]),
        "finish_reasons": dict(Counter(answer.finish_reason for answer in taught)),
        "finish_reasons_baseline": dict(Counter(answer.finish_reason for answer in others)),
        "content_tokens": _mean_of([answer.num_content_tokens for answer in taught]),
        "content_tokens_baseline": _mean_of([answer.num_content_tokens for answer in others]),
    }
    num = len(taught)
    rows = [Metric(place, key, answer, TITLES.get(key, ""), num) for key, answer in figures.items()]
    return [*rows, *_text(place, ours, base)]


def _mean_of(values: Sequence[float]) -> float | None:
    return round(fmean(values), 2) if values else None


def _share(flags: Sequence[bool]) -> float | None:
    return round(fmean(flags), 5) if flags else None


def _text(place: Place, ours: Sequence[Answered], base: Sequence[Answered]) -> list[Metric]:
    readers = sorted({name for answer in ours for name in answer.read})
    inner = (*place, "text")
    result = [_compared(inner, key, of, ours, base) for key, of in MEASURES.items()]
    result.append(Metric(place, "read_by", {}))
    for name in readers:
        for key, of in _reader_measures(name).items():
            result.append(_compared((*place, "read_by", name), key, of, ours, base))
    return result


def _compared(
    place: Place, key: str, of: Measure, ours: Sequence[Answered], base: Sequence[Answered]
) -> Metric:
    values, others = ([of(answer) for answer in side] for side in (ours, base))
    pairs = [(a, b) for a, b in zip(values, others, strict=True) if a is not None and b is not None]
    compared = Compared(
        pasta=mean([float(answer) for answer in values if answer is not None]),
        sequential=mean([float(answer) for answer in others if answer is not None]),
        difference=mean([float(a) - float(b) for a, b in pairs]),
        num_pairs=len(pairs),
    )
    return Metric(place, key, compared, key if compared.pasta is not None else "")
