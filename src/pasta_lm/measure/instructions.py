"""The benchmark ``instructions``: a taught model and its sequential baseline on real instructions.

A run has a folder; every file of rows is a journal, so a stopped run goes on::

    settings.json       the settings
    prompts.jsonl       ids and labels of the prompts, never their texts
    scored.jsonl        every answer, decoded in batches
    timed.jsonl         answers to some prompts, decoded one at a time
    unmasked.jsonl      answers of the taught model without the mask of legal tags
    verdicts.jsonl      which of IFEval's instructions an answer follows
    read.jsonl          nats of the answers under another model
    references.jsonl    nats of given answers under both models (``cost``)

``pack`` writes each of them gzipped beside it. All figures are computed from these files, without a
model and without the prompts: see ``instructions_report``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError, UsageError, cause
from pasta_lm.journal import Journal, Row, read_rows, write_rows, write_whole
from pasta_lm.measure import ifeval
from pasta_lm.measure.answering import (
    Answerer,
    AnswerStore,
    Models,
    Progress,
    Prompt,
    System,
    answer_id,
    check_served,
)
from pasta_lm.measure.cost import Read, read_references
from pasta_lm.measure.judgements import json_lines
from pasta_lm.measure.prompt_sets import SetFiles, SetPrompt, read_sets
from pasta_lm.models.annotated import Record
from pasta_lm.models.shipped import BUILTIN
from pasta_lm.recipe import check_choice, check_positive, check_same_settings
from pasta_lm.strategies import pasta, sequential
from pasta_lm.strategies.model import SERVER_KEYS, Servers, baseline_of
from pasta_lm.strategies.requests import STRATEGIES

SETTINGS, PROMPTS = "settings.json", "prompts.jsonl"
SCORED, TIMED, UNMASKED = ROUNDS = ("scored", "timed", "unmasked")
VERDICTS, READ, REFERENCES = "verdicts", "read", "references"
JOURNALS = (*ROUNDS, VERDICTS, READ, REFERENCES)
READING_BATCH = 32
"""Answers that are read between two writes of the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSettings:
    """The recipe of ``pasta evaluate instructions``."""

    model: str | None = None
    """The taught model: a folder, a hub id or a built-in name; None: the built-in one."""
    baseline: str | None = None
    """Its sequential baseline; None: the built-in one, or the model itself."""
    strategy: str = pasta.NAME
    """By which the taught model answers; its system is named ``pasta`` whatever it is."""
    untaught: str | None = None
    """The model before any training, for the nats of the references; None: left out."""
    sets: SetFiles = SetFiles()
    limit: int | None = None
    """The first so many prompts of each set, for a try; None: all."""
    max_tokens: int = 512
    """Of an answer, all threads together and tags included."""
    num_timed: int = 25
    """Prompts of each set that both models answer one at a time, too."""
    num_unmasked: int = 50
    """Prompts of each set that the taught model answers without the mask, too."""
    num_read: int = 200
    """Prompts of each set whose answers another model reads."""
    reader: str | None = None
    """The model that reads the answers; None: none does."""
    references: str | None = None
    """Annotated answers for the cost of not seeing; None: it is not measured."""
    reference_ids: str | None = None
    """A file with the ids of those that no training read; None: all."""
    batch_size: int = 192
    """Prompts that the engine gets together; their answers are written when all are done."""
    pool_tokens: int = 40_960
    """Cache entries of each model's engine."""
    dtype: str | None = None
    """Of the models that answer; the references are read in float32."""
    device: str | None = None
    servers: Servers | None = None
    """Stock servers that hold the model, which is then its own baseline; None: it is loaded."""

    def __post_init__(self) -> None:
        """Validate values before a model is loaded."""
        check_served(self.servers, self.model, (one.model for one in self.systems))
        check_choice("instructions.strategy", self.strategy, STRATEGIES)
        check_positive("instructions", self, "limit", "max_tokens", "batch_size", "pool_tokens")
        for key in ("num_timed", "num_unmasked", "num_read"):
            if getattr(self, key) < 0:
                raise UsageError(f"instructions.{key} must not be below 0")

    @property
    def reader_name(self) -> str | None:
        """Return the reader's name in the records: several readers may read one run in turn."""
        return Path(self.reader).name if self.reader else None

    @property
    def systems(self) -> tuple[System, System]:
        """Return the sequential baseline and the taught model."""
        model = self.model or BUILTIN
        baseline = baseline_of(model) if self.servers is None else model
        return (
            System(sequential.NAME, sequential.NAME, self.baseline or baseline),
            System(pasta.NAME, self.strategy, model),
        )


@dataclass(frozen=True)
class InstructionRun:
    """A run: its folder, the settings and, while it is made, the prompts."""

    folder: Path
    settings: InstructionSettings
    prompts: Sequence[SetPrompt] = ()
    """With their texts; empty if the run is only read."""

    def journal(self, name: str) -> Journal:
        """Open one of the run's journals."""
        return Journal(self.folder / f"{name}.jsonl")

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a journal, or of its gzipped copy; none if there is neither."""
        path = self.folder / f"{name}.jsonl"
        return read_rows(path) if path.exists() else read_packed(path.with_suffix(".jsonl.gz"))

    def first(self, count: int) -> list[SetPrompt]:
        """Return the first so many prompts of each set."""
        seen: dict[str, int] = {}
        found = []
        for one in self.prompts:
            seen[one.group] = seen.get(one.group, 0) + 1
            if seen[one.group] <= count:
                found.append(one)
        return found

    @property
    def is_answered(self) -> bool:
        """Return whether all rounds have all answers."""
        return not any(self._lacking())

    def _lacking(self) -> Iterator[str]:
        baseline, taught = self.settings.systems
        rounds = {
            SCORED: (self.prompts, (baseline, taught)),
            TIMED: (self.first(self.settings.num_timed), (baseline, taught)),
            UNMASKED: (self.first(self.settings.num_unmasked), (taught,)),
        }
        for name, (prompts, systems) in rounds.items():
            there = self.journal(name).rows
            keys = (answer_id(system.name, one.id) for system in systems for one in prompts)
            yield from (key for key in keys if key not in there)


def begin_run(folder: Path, settings: InstructionSettings) -> InstructionRun:
    """Begin a run in a folder, or go on with the one that it holds.

    Raises:
        UsageError: the folder holds a run with other settings.
        InputError: a set of prompts cannot be read, or IFEval's checkers are not installed.
    """
    prompts = read_sets(settings.sets, settings.limit)
    # What would fail after hours of decoding fails now.
    if any(one.checked for one in prompts):
        ifeval.check_available()
    references_of(settings)
    path = folder / SETTINGS
    if path.exists():
        begun = {"strategy": pasta.NAME, **_read_settings(folder)}
        own = ("batch_size", "pool_tokens", "device", "reader", "num_read")
        may_change = (*own, *SERVER_KEYS)
        check_same_settings(folder, begun, asdict(settings), may_change=may_change)
    folder.mkdir(parents=True, exist_ok=True)
    unpack(folder)
    rows = [
        {"id": one.id, "set": one.group, "parts": one.parts, "items": one.items} for one in prompts
    ]
    write_rows(folder / PROMPTS, rows)
    write_whole(path, (json.dumps(asdict(settings), indent=1) + "\n").encode())
    return InstructionRun(folder, settings, prompts)


def references_of(settings: InstructionSettings) -> list[Record]:
    """Return the given answers whose nats are measured; none if no file is named."""
    if settings.references is None:
        return []
    ids = settings.reference_ids
    return read_references(Path(settings.references), Path(ids) if ids else None)


def open_run(folder: Path) -> InstructionRun:
    """Open the folder of a run to read it.

    Raises:
        InputError: it is no folder of a run, or damaged.
    """
    data = _read_settings(folder)
    try:
        sets, servers = SetFiles(**data.pop("sets")), data.pop("servers", None)
        found = Servers(**servers) if servers else None
        return InstructionRun(folder, InstructionSettings(**data, sets=sets, servers=found))
    except (KeyError, TypeError) as exc:
        raise InputError(f"{folder / SETTINGS} has other settings: {exc}") from exc


def _read_settings(folder: Path) -> Row:
    try:
        data = json.loads((folder / SETTINGS).read_text("utf-8"))
    except (OSError, ValueError) as exc:
        raise InputError(
            f"{folder} is not the folder of a run of instructions: {cause(exc)}"
        ) from exc
    return dict(data)


def answer_prompts(
    run: InstructionRun,
    models: Models,
    progress: Progress,
    provenance: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Let both models answer what has no row yet: in batches, one at a time, without the mask."""
    settings = run.settings
    baseline, taught = settings.systems

    def details(system: System, prompt: Prompt) -> Row:
        made = (provenance or {}).get(system.model, {})
        return {"prompt_id": prompt.id, "set": prompt.group, **made}

    def store(name: str) -> AnswerStore:
        return AnswerStore(run.journal(name), details)

    answerer = Answerer(
        models=models,
        params=SamplingParams(max_tokens=settings.max_tokens),
        progress=progress,
        batch_size=settings.batch_size,
        keeps_traces=False,
    )
    timed = _as_prompts(run.first(settings.num_timed))
    answerer.answer_in_turn(timed, (baseline, taught), store(TIMED))
    answerer.answer_together(_as_prompts(run.prompts), (baseline, taught), store(SCORED))
    free = replace(answerer, params=replace(answerer.params, mask=False))
    unmasked = _as_prompts(run.first(settings.num_unmasked))
    free.answer_together(unmasked, (taught,), store(UNMASKED))


def _as_prompts(prompts: Iterable[SetPrompt]) -> list[Prompt]:
    return [Prompt(one.id, one.text, one.group) for one in prompts]


def check_answers(run: InstructionRun) -> None:
    """Check the answers to IFEval's prompts that have no verdict yet."""
    journal, answers = run.journal(VERDICTS), run.journal(SCORED).rows
    rows = []
    for one in run.prompts:
        for system in run.settings.systems:
            key = answer_id(system.name, one.id)
            if one.checked is not None and key in answers and key not in journal.rows:
                found = ifeval.check(one.checked, answers[key]["text"])
                rows.append({"id": key, **found._asdict()})
    journal.append(rows)


def unread(run: InstructionRun) -> list[tuple[str, str, str]]:
    """Return id, prompt and text of the answers that the reader has not read; no empty ones."""
    read, answers = run.journal(READ).rows, run.journal(SCORED).rows
    keys = [
        (answer_id(system.name, one.id), one.text)
        for one in run.first(run.settings.num_read)
        for system in run.settings.systems
    ]
    return [
        (key, prompt, answers[key]["text"])
        for key, prompt in keys
        if key in answers and f"{run.settings.reader_name}/{key}" not in read
        if answers[key]["text"].strip()
    ]


def read_answers(run: InstructionRun, read: Read, progress: Progress) -> None:
    """Let another model read the answers that it has not read yet."""
    journal, wanted, reader = run.journal(READ), unread(run), run.settings.reader_name
    for first in range(0, len(wanted), READING_BATCH):
        batch = wanted[first : first + READING_BATCH]
        nats = read([(prompt, text) for _, prompt, text in batch])
        rows = [
            {"nats": round(given, 4), "nats_alone": round(alone, 4), "tokens": count}
            for given, alone, count in nats
        ]
        named = [
            {"id": f"{reader}/{key}", "reader": reader, "answer_id": key, **row}
            for (key, _, _), row in zip(batch, rows, strict=True)
        ]
        journal.append(named)
        progress("answers read", first + len(batch), len(wanted))


def pack(run: InstructionRun) -> list[Path]:
    """Write every journal gzipped beside it; the same rows give the same bytes."""
    written = []
    for name in (*JOURNALS, PROMPTS.removesuffix(".jsonl")):
        source = run.folder / f"{name}.jsonl"
        if source.exists():
            target = source.with_name(f"{source.name}.gz")
            target.write_bytes(gzip.compress(source.read_bytes(), mtime=0))
            written.append(target)
    return written


def unpack(folder: Path) -> None:
    """Write the journals of which a folder has only the gzipped copy, as a clone does."""
    for name in JOURNALS:
        packed, journal = folder / f"{name}.jsonl.gz", folder / f"{name}.jsonl"
        if packed.exists() and not journal.exists():
            write_rows(journal, read_packed(packed))


def read_packed(path: Path) -> list[Row]:
    """Return the rows of a gzipped journal; none if there is no such file.

    Raises:
        InputError: it is damaged.
    """
    return [row for _, row in json_lines(path)] if path.exists() else []


def answers_of(rows: Iterable[Row], system: str) -> dict[str, AnswerRecord]:
    """Return a system's answers by id of the prompt."""
    return {row["prompt_id"]: AnswerRecord.from_row(row) for row in rows if row["system"] == system}
