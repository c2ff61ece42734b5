"""The figures of a run of ``instructions``, computed from its folder alone.

Per set of prompts, and within it by the parts that the prompts ask for: structure, speed, text,
checked instructions. A figure of text stands beside the baseline's and the difference, paired by
prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from pasta_lm.measure.cost import CostReport, cost_report
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
from pasta_lm.measure.intervals import Interval, geometric_mean, mean
from pasta_lm.measure.prompt_sets import OWN, PARTS
from pasta_lm.measure.speed import num_failed, speed, speed_table
from pasta_lm.measure.table import (
    FIGURE_HEADER,
    Cells,
    Figure,
    Table,
    fields_of,
    figure_row,
    markdown,
)
from pasta_lm.strategies import pasta, sequential

SYSTEMS = (pasta.NAME, sequential.NAME)
PROVENANCE = ("hardware", "dtype", "commit", "version", "positions")
TEXT_HEADER = ("measure", "pasta", "sequential", "difference", "low", "high", "pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A measure of both systems, and their difference where both have a value."""

    pasta: Interval | None
    sequential: Interval | None
    difference: Interval | None
    num_pairs: int

    def row(self, title: str) -> Cells:
        """Return the row of a table."""
        _, *difference = figure_row("", self.difference, self.num_pairs)
        return title, self.pasta, self.sequential, *difference


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFigures:
    """The figures over some prompts."""

    num_prompts: int
    num_failed: int
    theoretical_speedup: Interval | None
    parallelism: Interval | None
    length_ratio: Interval | None
    theoretical_speedup_of_forking: Interval | None
    forks: Interval | None
    stays_sequential: Interval | None
    syncs: Interval | None
    blocks_of_forking: float | None
    legal: float | None
    well_formed: float | None
    finish_reasons: dict[str, int]
    finish_reasons_baseline: dict[str, int]
    content_tokens: float | None
    content_tokens_baseline: float | None
    text: dict[str, Compared]
    read_by: dict[str, dict[str, Compared]]
    """By the name of the model that read the answers."""

    def rows(self) -> list[Cells]:
        """Return the rows of speed and structure."""
        figures: dict[str, Figure] = {
            "theoretical speedup": self.theoretical_speedup,
            "theoretical speedup of answers that fork": self.theoretical_speedup_of_forking,
            "parallelism": self.parallelism,
            "length ratio, characters": self.length_ratio,
            "answers that fork": self.forks,
            "answers that stay sequential": self.stays_sequential,
            "answers with a sync": self.syncs,
            "legal tags": self.legal,
            "well formed": self.well_formed,
        }
        return [figure_row(title, one, self.num_prompts) for title, one in figures.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFigures(PromptFigures):
    """The figures over one set of prompts."""

    realised_speedup: Interval | None = None
    efficiency: Interval | None = None
    num_timed: int = 0
    timed_theoretical_speedup: Interval | None = None
    num_unmasked: int = 0
    legal_unmasked: float | None = None
    well_formed_unmasked: float | None = None
    parts: dict[str, PromptFigures] = field(default_factory=dict)
    ifeval: dict[str, Interval | int | None] | None = None

    def rows(self) -> list[Cells]:
        """Return the rows of speed and structure, clocks and answers without the mask included."""
        timed: dict[str, Figure] = {
            "theoretical speedup, timed": self.timed_theoretical_speedup,
            "realised speedup": self.realised_speedup,
            "realised / theoretical": self.efficiency,
        }
        free = {"legal": self.legal_unmasked, "well formed": self.well_formed_unmasked}
        return [
            *PromptFigures.rows(self),
            *(figure_row(title, one, self.num_timed) for title, one in timed.items()),
            *(figure_row(f"{k}, without the mask", v, self.num_unmasked) for k, v in free.items()),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionReport:
    """The report of a run."""

    kind: str | None
    model: str
    strategy: str
    baseline: str
    readers: list[str]
    max_tokens: int
    num_prompts: int
    num_unanswered: int
    provenance: dict[str, list[str]]
    text: dict[str, Compared]
    read_by: dict[str, dict[str, Compared]]
    sets: dict[str, SetFigures]
    references: CostReport | None

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``pasta evaluate instructions --json`` prints."""
        found = fields_of(self)
        found |= found.pop("provenance")
        return found | {"references": self.references.to_dict() if self.references else None}

    def tables(self) -> list[Table]:
        """Return the tables: speed, structure and text of each set, and the cost of not seeing."""
        found = []
        for name, one in self.sets.items():
            found.append(Table(FIGURE_HEADER, one.rows(), title=f"{name}: speed and structure"))
            for parts, own in one.parts.items():
                found.append(Table(FIGURE_HEADER, own.rows(), title=f"{name}, {parts}"))
            rows = [*_text_rows(one.text, one.read_by), *_ifeval_rows(one.ifeval)]
            found.append(Table(TEXT_HEADER, rows, title=f"{name}: text"))
        rows = _text_rows(self.text, self.read_by)
        found.append(Table(TEXT_HEADER, rows, title="all sets: text"))
        return [*found, *([self.references.table()] if self.references else ())]

    def facts(self) -> list[str]:
        """Return the conditions of the run."""
        unanswered = f"{self.num_unanswered} prompts are not answered yet"
        return [
            f"model: {self.model}, strategy `{self.strategy}`",
            f"baseline: {self.baseline}, sequential",
            f"answers: {self.kind}, greedy, at most {self.max_tokens} tokens of all threads "
            "together, tags included",
            f"read by: {', '.join(self.readers) or 'no other model'}",
            *(f"{key}: {', '.join(values)}" for key, values in self.provenance.items()),
            "intervals: 95 %, bootstrap over prompts; differences are paired by prompt",
            *([unanswered] if self.num_unanswered else []),
        ]

    def markdown(self) -> str:
        """Return the report as a page."""
        title = "A taught model and its sequential baseline on instructions"
        return markdown(title, self.facts(), self.tables())


def _text_rows(
    text: Mapping[str, Compared], read_by: Mapping[str, Mapping[str, Compared]]
) -> list[Cells]:
    rows = [one.row(title) for title, one in text.items() if one.pasta is not None]
    for reader, found in read_by.items():
        rows += [one.row(f"{title}, {reader}") for title, one in found.items()]
    return rows


def _ifeval_rows(found: Mapping[str, Interval | int | None] | None) -> list[Cells]:
    if found is None:
        return []
    names = ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose")
    return [
        (
            f"IFEval, {name}",
            found[name],
            found[f"{name}_baseline"],
            *figure_row("", found[f"{name}_difference"], None)[1:4],
            found["num_prompts"],
        )
        for name in names
    ]


def write_report(run: InstructionRun, page: Path | None = None) -> InstructionReport:
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


def _blocks(one: Answered) -> answer_text.Repetition | None:
    return answer_text.blocks_repetition(_document(one.record.program))


def _coverage(one: Answered) -> float | None:
    items = one.prompt["items"]
    return None if items is None else answer_text.coverage(items, one.record.text)


def _lines(one: Answered) -> answer_text.Repetition:
    return answer_text.repetition(one.record.text.splitlines())


Measure = Callable[[Answered], float | None]
MEASURES: dict[str, Measure] = {
    "repetition": lambda one: answer_text.repetition([one.record.text]).within,
    "repetition_within_lines": lambda one: _lines(one).within,
    "repetition_between_lines": lambda one: _lines(one).between,
    "repetition_within_blocks": lambda one: (found := _blocks(one)) and found.within,
    "repetition_between_blocks": lambda one: (found := _blocks(one)) and found.between,
    "repeated_lines": lambda one: answer_text.has_repeated_line(one.record.text),
    "repeated_topics": lambda one: answer_text.has_repeated_topic(_document(one.record.program)),
    "items": lambda one: answer_text.items_given(one.record.text),
    "coverage": _coverage,
    "cut": lambda one: one.record.finish_reason == "length",
    "empty": lambda one: not one.record.text.strip(),
}
"""Measures of an answer's text by key; None where an answer has no value."""


def _reader_measures(reader: str) -> dict[str, Measure]:
    """Return the measures of one model's reading: nats a token."""

    def share(one: Answered, count: Callable[[Row], float]) -> float | None:
        row = one.read.get(reader)
        return count(row) / row["tokens"] if row and row["tokens"] else None

    return {
        "nats": lambda one: share(one, lambda row: row["nats"]),
        "nats_alone": lambda one: share(one, lambda row: row["nats_alone"]),
        "prompt_gain": lambda one: share(one, lambda row: row["nats_alone"] - row["nats"]),
    }


def instructions_report(run: InstructionRun) -> InstructionReport:
    """Compute the report of a run.

    Raises:
        InputError: the folder has no answers of both systems.
    """
    prompts, scored = run.rows(PROMPTS), run.rows(SCORED)
    answers = {name: answers_of(scored, name) for name in SYSTEMS}
    shared = [one for one in prompts if all(one["id"] in answers[name] for name in SYSTEMS)]
    if not shared:
        raise InputError(f"{run.folder} has no prompt that both systems answered")
    ours, base = (_answered(run, name, shared, answers[name]) for name in SYSTEMS)
    unmasked, timed = answers_of(run.rows(UNMASKED), pasta.NAME), run.rows(TIMED)
    baseline, taught = run.settings.systems
    text, read_by = _text(ours, base)
    references = run.rows(REFERENCES)
    return InstructionReport(
        kind=ours[0].record.kind,
        model=taught.model,
        strategy=taught.strategy,
        baseline=baseline.model,
        readers=sorted({name for one in (*ours, *base) for name in one.read}),
        max_tokens=run.settings.max_tokens,
        num_prompts=len(shared),
        num_unanswered=len(prompts) - len(shared),
        provenance={
            key: sorted({row[key] for row in scored if row.get(key)}) for key in PROVENANCE
        },
        text=text,
        read_by=read_by,
        sets={
            group: _set_figures(
                _where("set", group, ours), _where("set", group, base), unmasked, timed
            )
            for group in dict.fromkeys(one["set"] for one in shared)
        },
        references=cost_report(references) if references else None,
    )


def _answered(
    run: InstructionRun, name: str, prompts: Sequence[Row], answers: Mapping[str, AnswerRecord]
) -> list[Answered]:
    verdicts = {row["id"]: row for row in run.rows(VERDICTS)}
    read: dict[str, dict[str, Row]] = {}
    for row in run.rows(READ):
        read.setdefault(row["answer_id"], {})[row["reader"]] = row
    keys = [answer_id(name, one["id"]) for one in prompts]
    return [
        Answered(one, answers[one["id"]], verdicts.get(key), read.get(key, {}))
        for one, key in zip(prompts, keys, strict=True)
    ]


def _where(key: str, value: str, side: Sequence[Answered]) -> list[Answered]:
    return [one for one in side if one.prompt[key] == value]


def _set_figures(
    ours: Sequence[Answered],
    base: Sequence[Answered],
    unmasked: Mapping[str, AnswerRecord],
    timed: Sequence[Row],
) -> SetFigures:
    names = {one.prompt["id"] for one in ours}
    free = [record for name, record in unmasked.items() if name in names]
    pairs = [(a.verdict, b.verdict) for a, b in zip(ours, base, strict=True)]
    both = [[Verdict(row["strict"], row["loose"]) for row in (a, b)] for a, b in pairs if a and b]
    clocks = {
        system: {k: v for k, v in answers_of(timed, system).items() if k in names}
        for system in SYSTEMS
    }
    clocked: dict[str, Any] = {}
    if all(clocks.values()):
        table = speed_table(clocks, sequential.NAME)[pasta.NAME]
        clocked = {
            "realised_speedup": table.realised_speedup,
            "efficiency": table.efficiency,
            "num_timed": table.num_timed,
            "timed_theoretical_speedup": table.theoretical_speedup,
        }
    return SetFigures(
        **_figures(ours, base),
        **clocked,
        num_unmasked=len(free),
        legal_unmasked=_share([not one.num_illegal for one in free]),
        well_formed_unmasked=_share([one.is_well_formed for one in free]),
        parts={
            name: PromptFigures(**_figures(some, _where("parts", name, base)))
            for name in PARTS
            if (some := _where("parts", name, ours))
        },
        ifeval=ifeval_figures(*zip(*both, strict=True)) if both else None,
    )


def _figures(ours: Sequence[Answered], base: Sequence[Answered]) -> dict[str, Any]:
    """Return the fields of ``PromptFigures``; both sides have the same prompts in order."""
    taught, others = ([one.record for one in side] for side in (ours, base))
    documents = [_document(one.program) for one in taught]
    forking = [
        one.theoretical_speedup(other)
        for one, other, document in zip(taught, others, documents, strict=True)
        if document.blocks
    ]
    text, read_by = _text(ours, base)
    plain = speed(taught, others)
    return {
        "num_prompts": len(taught),
        "num_failed": num_failed(taught),
        "theoretical_speedup": plain.theoretical_speedup,
        "parallelism": plain.parallelism,
        "length_ratio": plain.length_ratio,
        "theoretical_speedup_of_forking": geometric_mean(forking),
        "forks": mean([bool(document.blocks) for document in documents]),
        "stays_sequential": mean([not document.blocks for document in documents]),
        "syncs": mean([document.num_syncs > 0 for document in documents]),
        "blocks_of_forking": _mean_of([len(d.blocks) for d in documents if d.blocks]),
        "legal": _share([not one.num_illegal for one in taught]),
        "well_formed": _share([one.is_well_formed for one in taught]),
        "finish_reasons": dict(Counter(one.finish_reason for one in taught)),
        "finish_reasons_baseline": dict(Counter(one.finish_reason for one in others)),
        "content_tokens": _mean_of([one.num_content_tokens for one in taught]),
        "content_tokens_baseline": _mean_of([one.num_content_tokens for one in others]),
        "text": text,
        "read_by": read_by,
    }


def _mean_of(values: Sequence[float]) -> float | None:
    return round(fmean(values), 2) if values else None


def _share(flags: Sequence[bool]) -> float | None:
    return round(fmean(flags), 5) if flags else None


def _text(
    ours: Sequence[Answered], base: Sequence[Answered]
) -> tuple[dict[str, Compared], dict[str, dict[str, Compared]]]:
    readers = sorted({name for one in ours for name in one.read})
    return (
        {key: _compared(of, ours, base) for key, of in MEASURES.items()},
        {
            name: {key: _compared(of, ours, base) for key, of in _reader_measures(name).items()}
            for name in readers
        },
    )


def _compared(of: Measure, ours: Sequence[Answered], base: Sequence[Answered]) -> Compared:
    values, others = ([of(one) for one in side] for side in (ours, base))
    pairs = [(a, b) for a, b in zip(values, others, strict=True) if a is not None and b is not None]
    return Compared(
        pasta=mean([float(one) for one in values if one is not None]),
        sequential=mean([float(one) for one in others if one is not None]),
        difference=mean([float(a) - float(b) for a, b in pairs]),
        num_pairs=len(pairs),
    )
