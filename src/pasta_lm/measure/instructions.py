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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import Journal, Row, write_rows
from pasta_lm.measure import ifeval
from pasta_lm.measure.answering import (
    Answerer,
    AnswerStore,
    Models,
    Progress,
    Prompt,
    Provenance,
    System,
    answer_id,
    check_served,
    load_models,
    require_models,
)
from pasta_lm.measure.cost import Read, Readers, measure, read_references, reading, reading_systems
from pasta_lm.measure.prompt_sets import SetFiles, SetPrompt, read_sets
from pasta_lm.models.annotated import Record
from pasta_lm.models.names import BUILTIN
from pasta_lm.recipe import check_choice, check_positive
from pasta_lm.run_folder import RunFolder
from pasta_lm.strategies import pasta, sequential
from pasta_lm.strategies.model import SERVER_KEYS, Servers, baseline_of
from pasta_lm.strategies.requests import STRATEGIES

PROMPTS = "prompts"
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
        check_served(self.servers, self.model, (system.model for system in self.systems))
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
        return RunFolder(self.folder).journal(name)

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a journal, or of its gzipped copy; none if there is neither."""
        return RunFolder(self.folder).rows(name)

    def first(self, count: int) -> list[SetPrompt]:
        """Return the first so many prompts of each set."""
        seen: dict[str, int] = {}
        result = []
        for item in self.prompts:
            seen[item.group] = seen.get(item.group, 0) + 1
            if seen[item.group] <= count:
                result.append(item)
        return result

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
            keys = (answer_id(system.name, item.id) for system in systems for item in prompts)
            yield from (key for key in keys if key not in there)


def evaluate_instructions(
    out: Path, settings: InstructionSettings, show: Progress
) -> InstructionRun:
    """Answer, check and read what a run lacks; write the gzipped records.

    Raises:
        UsageError: the folder holds a run with other settings, or there is no such model.
        InputError: a set of prompts cannot be read, or IFEval's checkers are not installed.
    """
    run = begin_run(out, settings)
    systems = settings.systems
    require_models([settings.untaught, settings.reader])
    if not run.is_answered:
        models, made = load_models(
            systems,
            dtype=settings.dtype,
            device=settings.device,
            pool_tokens=settings.pool_tokens,
            servers=settings.servers,
        )
        answer_prompts(run, models, show, made)
        del models
        gc.collect()  # before the models that read are loaded
    check_answers(run)
    values = references_of(settings)
    if values and not run.rows(REFERENCES):
        baseline, taught = systems
        names = Readers(taught.model, baseline.model, settings.untaught)
        readers = reading_systems(names, "float32", settings.device)
        write_rows(out / f"{REFERENCES}.jsonl", list(measure(values, readers)))
    _read_with_reader(run, show)
    RunFolder(out).pack((*JOURNALS, PROMPTS))
    return run


def begin_run(folder: Path, settings: InstructionSettings) -> InstructionRun:
    """Begin a run in a folder, or continue the one that it holds.

    Raises:
        UsageError: the folder holds a run with other settings.
        InputError: a set of prompts cannot be read, or IFEval's checkers are not installed.
    """
    prompts = read_sets(settings.sets, settings.limit)
    # What would fail after hours of decoding fails now.
    if any(item.checked for item in prompts):
        ifeval.check_available()
    references_of(settings)
    own = ("batch_size", "pool_tokens", "device", "reader", "num_read")
    run = RunFolder(folder)
    run.begin(asdict(settings), defaults={"strategy": pasta.NAME}, may_change=(*own, *SERVER_KEYS))
    run.unpack(JOURNALS)
    rows = [
        {
            "id": item.id,
            "set": item.group,
            "parts": item.parts,
            "items": item.items,
        }
        for item in prompts
    ]
    write_rows(folder / f"{PROMPTS}.jsonl", rows)
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
    data = RunFolder(folder).settings()
    try:
        sets, servers = SetFiles(**data.pop("sets")), data.pop("servers", None)
        result = Servers(**servers) if servers else None
        return InstructionRun(folder, InstructionSettings(**data, sets=sets, servers=result))
    except (KeyError, TypeError) as exc:
        raise InputError(f"{folder} has other settings than a run of instructions: {exc}") from exc


def answer_prompts(
    run: InstructionRun, models: Models, progress: Progress, made: Provenance | None = None
) -> None:
    """Let both models answer what has no row yet: in batches, one at a time, without the mask."""
    settings = run.settings
    baseline, taught = settings.systems

    def details(system: System, prompt: Prompt) -> Row:
        return {"prompt_id": prompt.id, "set": prompt.group, **(made or {}).get(system.model, {})}

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
    return [Prompt(item.id, item.text, item.group) for item in prompts]


def check_answers(run: InstructionRun) -> None:
    """Check the answers to IFEval's prompts that have no verdict yet."""
    journal, answers = run.journal(VERDICTS), run.journal(SCORED).rows
    rows = []
    for item in run.prompts:
        for system in run.settings.systems:
            key = answer_id(system.name, item.id)
            if item.checked is not None and key in answers and key not in journal.rows:
                result = ifeval.check(item.checked, answers[key]["text"])
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


def _read_with_reader(run: InstructionRun, show: Progress) -> None:
    """Let the reader read the answers, if one is named."""
    settings = run.settings
    if settings.reader is None or not unread(run):
        return
    from pasta_lm.engines.local.loading import load  # imports torch
    from pasta_lm.learn.train.losses import token_nats

    loaded = load(settings.reader, dtype="float32", device=settings.device)
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


def answers_of(rows: Iterable[Row], system: str) -> dict[str, AnswerRecord]:
    """Return a system's answers by id of the prompt."""
    return {row["prompt_id"]: AnswerRecord.from_row(row) for row in rows if row["system"] == system}
