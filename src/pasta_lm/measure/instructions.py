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

Each of them is written gzipped beside it. All figures are computed from these files, without a
model and without the prompts: see ``instructions_report``.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.journal import Journal, Row, write_rows
from pasta_lm.measure.answer_text import items_asked
from pasta_lm.measure.answering import (
    Answerer,
    AnswerSettings,
    AnswerStore,
    Models,
    Progress,
    Provenance,
    SetPrompt,
    System,
    answer_id,
    check_served,
    load_models,
    require_models,
)
from pasta_lm.measure.cost import Read, Readers, measure, read_references, reading, reading_systems
from pasta_lm.measure.prompt_sets import SetFiles, check_ifeval, checkers, read_sets
from pasta_lm.models.annotated import Record
from pasta_lm.recipe import check_choice, check_positive
from pasta_lm.run_folder import RunFolder
from pasta_lm.strategies import pasta
from pasta_lm.strategies.model import SERVER_KEYS
from pasta_lm.strategies.requests import STRATEGIES

PROMPTS = "prompts"
SCORED, TIMED, UNMASKED = "scored", "timed", "unmasked"
VERDICTS, READ, REFERENCES = "verdicts", "read", "references"
JOURNALS = (SCORED, TIMED, UNMASKED, VERDICTS, READ, REFERENCES)
MAY_CHANGE = ("batch_size", "pool_tokens", "device", "reader", "num_read", *SERVER_KEYS)
READING_BATCH = 32  # answers that are read between two writes of the journal


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSettings(AnswerSettings):
    """The recipe of ``pasta evaluate instructions``; ``limit`` counts prompts of each set."""

    strategy: str = pasta.NAME
    """By which the taught model answers; its system is named ``pasta`` whatever it is."""
    untaught: str | None = None
    """The model before any training, for the nats of the references; None: left out."""
    sets: SetFiles = SetFiles()
    max_tokens: int = 512  # of an answer, all threads together and tags included
    num_timed: int = 25  # prompts of each set that both models answer one at a time, too
    num_unmasked: int = 50
    """Prompts of each set that the taught model answers without the mask, too."""
    num_read: int = 200  # prompts of each set whose answers another model reads
    reader: str | None = None  # the model that reads the answers; None: none does
    references: str | None = None
    """Annotated answers for the cost of not seeing; None: it is not measured."""
    reference_ids: str | None = None
    """A file with the ids of those that no training read; None: all."""
    batch_size: int = 192
    """Prompts that the engine gets together; their answers are written when all are done."""
    pool_tokens: int = 40_960

    def __post_init__(self) -> None:
        """Validate values before a model is loaded."""
        check_served(self.servers, self.model, (system.model for system in self.systems))
        check_choice("instructions.strategy", self.strategy, STRATEGIES)
        check_positive("instructions", self, "limit", "max_tokens", "batch_size", "pool_tokens")
        if min(self.num_timed, self.num_unmasked, self.num_read) < 0:
            raise UsageError("instructions: numbers of prompts must not be below 0")

    @property
    def reader_name(self) -> str | None:
        """Return the reader's name in the records: several readers may read one run in turn."""
        return Path(self.reader).name if self.reader else None

    @property
    def systems(self) -> tuple[System, System]:
        """Return the sequential baseline and the taught model."""
        return self.sequential, System(pasta.NAME, self.strategy, self.taught)

    def given_answers(self) -> list[Record]:
        """Read the given answers whose nats are measured; none if no file is named."""
        if self.references is None:
            return []
        ids = self.reference_ids
        return read_references(Path(self.references), Path(ids) if ids else None)


@dataclass(frozen=True)
class InstructionRun:
    """A run: its folder, the settings and, while it is made, the prompts."""

    folder: Path
    settings: InstructionSettings
    prompts: Sequence[SetPrompt] = ()  # with their texts; empty if the run is only read

    def journal(self, name: str) -> Journal:
        """Open one of the run's journals."""
        return RunFolder(self.folder).journal(name)

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a journal, or of its gzipped copy; none if there is neither."""
        return RunFolder(self.folder).rows(name)

    def rounds(self) -> dict[str, tuple[list[SetPrompt], list[System]]]:
        """Return the prompts and the systems of each round of answers."""
        own, both = self.settings, [*self.settings.systems]
        return {
            TIMED: (self.first(own.num_timed), both),
            SCORED: ([*self.prompts], both),
            UNMASKED: (self.first(own.num_unmasked), both[1:]),
        }

    def first(self, count: int) -> list[SetPrompt]:
        """Return the first so many prompts of each set."""
        seen, first = Counter[str](), []
        for item in self.prompts:
            seen[item.group] += 1
            if seen[item.group] <= count:
                first.append(item)
        return first

    @property
    def is_answered(self) -> bool:
        """Return whether all rounds have all answers."""
        for name, (prompts, systems) in self.rounds().items():
            keys = {answer_id(system.name, item.id) for system in systems for item in prompts}
            if keys - self.journal(name).rows.keys():
                return False
        return True


def evaluate_instructions(
    out: Path, settings: InstructionSettings, show: Progress
) -> InstructionRun:
    """Answer, check and read what a run lacks; write the gzipped records."""
    run, systems = begin_run(out, settings), settings.systems
    require_models([settings.untaught, settings.reader])
    if not run.is_answered:
        models, made = load_models(settings, systems)
        answer_prompts(run, models, show, made)
        del models
        gc.collect()  # before the models that read are loaded
    check_answers(run)
    records = settings.given_answers()
    if records and not run.rows(REFERENCES):
        names = Readers(systems[1].model, systems[0].model, settings.untaught)
        readers = reading_systems(names, "float32", settings.device)
        write_rows(out / f"{REFERENCES}.jsonl", list(measure(records, readers)))
    if settings.reader is not None and unread(run):
        _read_with(settings.reader, run, show)
    RunFolder(out).pack((*JOURNALS, PROMPTS))
    return run


def begin_run(folder: Path, settings: InstructionSettings) -> InstructionRun:
    """Begin a run in a folder, or continue the one that it holds."""
    prompts = read_sets(settings.sets, settings.limit)
    # What would fail after hours of decoding fails now.
    if any(item.checked for item in prompts):
        checkers()
    settings.given_answers()
    run = RunFolder(folder)
    run.begin(asdict(settings), may_change=MAY_CHANGE)
    run.unpack(JOURNALS)
    rows = [
        {"id": item.id, "set": item.group, "parts": item.parts, "items": items_asked(item.text)}
        for item in prompts
    ]
    write_rows(folder / f"{PROMPTS}.jsonl", rows)
    return InstructionRun(folder, settings, prompts)


def open_run(folder: Path) -> InstructionRun:
    """Open the folder of a run to read it."""
    return InstructionRun(folder, RunFolder(folder).settings_of(InstructionSettings))


def answer_prompts(
    run: InstructionRun, models: Models, progress: Progress, made: Provenance | None = None
) -> None:
    """Let both models answer what has no row yet: in batches, one at a time, without the mask."""

    def details(system: System, prompt: SetPrompt) -> Row:
        return {"prompt_id": prompt.id, "set": prompt.group, **(made or {}).get(system.model, {})}

    answerer = Answerer(
        models=models,
        params=SamplingParams(max_tokens=run.settings.max_tokens),
        progress=progress,
        batch_size=run.settings.batch_size,
    )
    free = replace(answerer, params=replace(answerer.params, mask=False))
    for name, (prompts, systems) in run.rounds().items():
        store = AnswerStore(run.journal(name), details)
        if name == TIMED:
            answerer.answer_in_turn(prompts, systems, store)
        else:
            (free if name == UNMASKED else answerer).answer_together(prompts, systems, store)


def check_answers(run: InstructionRun) -> None:
    """Check the answers to IFEval's prompts that have no verdict yet."""
    journal, answers = run.journal(VERDICTS), run.journal(SCORED).rows
    rows = []
    for item in run.prompts:
        for system in run.settings.systems:
            key = answer_id(system.name, item.id)
            if item.checked is not None and key in answers and key not in journal.rows:
                result = check_ifeval(item.checked, answers[key]["text"])
                rows.append({"id": key, **result._asdict()})
    journal.append(rows)


def unread(run: InstructionRun) -> list[tuple[str, str, str]]:
    """Return id, prompt and text of the answers that the reader has not read; no empty ones."""
    read, answers = run.journal(READ).rows, run.journal(SCORED).rows
    keys = [
        (answer_id(system.name, item.id), item.text)
        for item in run.first(run.settings.num_read)
        for system in run.settings.systems
    ]
    return [
        (key, prompt, answers[key]["text"])
        for key, prompt in keys
        if key in answers and f"{run.settings.reader_name}/{key}" not in read
        if answers[key]["text"].strip()
    ]


def _read_with(reader: str, run: InstructionRun, show: Progress) -> None:
    from pasta_lm.engines.local.loading import load  # imports torch
    from pasta_lm.learn.train.losses import token_nats

    loaded = load(reader, dtype="float32", device=run.settings.device)
    nats = partial(token_nats, loaded)
    read_answers(run, reading(loaded.vocabulary, min(loaded.eos_ids), nats), show)


def read_answers(run: InstructionRun, read: Read, progress: Progress) -> None:
    """Let another model read the answers that it has not read yet."""
    journal, wanted, reader = run.journal(READ), unread(run), run.settings.reader_name
    for first in range(0, len(wanted), READING_BATCH):
        batch = wanted[first : first + READING_BATCH]
        nats = read([(prompt, text) for _, prompt, text in batch])
        rows = [
            {
                "id": f"{reader}/{key}",
                "reader": reader,
                "answer_id": key,
                "nats": round(values, 4),
                "nats_alone": round(alone, 4),
                "tokens": count,
            }
            for (key, _, _), (values, alone, count) in zip(batch, nats, strict=True)
        ]
        journal.append(rows)
        progress("answers read", first + len(batch), len(wanted))
