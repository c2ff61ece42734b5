"""The benchmark ``instructions``: a taught model and its sequential baseline on real instructions.

A run has a folder; every file of rows is a journal, so a stopped run goes on::

    settings.json       the settings
    prompts.jsonl       ids and labels of the prompts, never their texts
    scored.jsonl        every answer, decoded in batches
    timed.jsonl         answers to some prompts, decoded one at a time
    unmasked.jsonl      answers of the taught model without the mask of legal tags
    verdicts.jsonl      which of IFEval's instructions an answer follows
    references.jsonl    nats of given answers under both models (``cost``)

All figures are computed from these files, without a model and without the prompts: see
``instructions_report``.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path

from pasta_lm.errors import UsageError
from pasta_lm.journal import Row, write_rows
from pasta_lm.learn.data.annotated import Record
from pasta_lm.measure import answering
from pasta_lm.measure.answer_text import items_asked
from pasta_lm.measure.answering import SetPrompt, System, answer_id
from pasta_lm.measure.cost import measure, read_references, reading_systems
from pasta_lm.measure.prompt_sets import SetFiles, check_ifeval, checkers, read_sets
from pasta_lm.recipe import check_choice, check_positive
from pasta_lm.run_folder import RunFolder
from pasta_lm.strategies import pasta
from pasta_lm.strategies.model import SERVER_KEYS
from pasta_lm.strategies.requests import STRATEGIES

PROMPTS, VERDICTS, REFERENCES = "prompts", "verdicts", "references"
SCORED, TIMED, UNMASKED = "scored", "timed", "unmasked"
MAY_CHANGE = ("batch_size", "pool_tokens", "device", *SERVER_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSettings(answering.AnswerSettings):
    """The recipe of ``pasta evaluate instructions``; ``limit`` counts prompts of each set."""

    strategy: str = pasta.NAME
    """By which the taught model answers; its system is named ``pasta`` whatever it is."""
    untaught: str | None = None  # the model before any training, if it reads the references too
    sets: SetFiles = SetFiles()
    num_timed: int = 25  # prompts of each set that both models answer one at a time, too
    num_unmasked: int = 50  # prompts of each set that the taught model also answers unmasked
    references: str | None = None  # annotated answers for the cost of not seeing; None: none
    reference_ids: str | None = None  # a file with ids of those that no training read; None: all
    batch_size: int = 192
    pool_tokens: int = 40_960

    def __post_init__(self) -> None:
        """Validate values before a model is loaded."""
        answering.check_served(self.servers, self.model, (system.model for system in self.systems))
        check_choice("instructions.strategy", self.strategy, STRATEGIES)
        check_positive("instructions", self, "limit", "max_tokens", "batch_size", "pool_tokens")
        if min(self.num_timed, self.num_unmasked) < 0:
            raise UsageError("instructions: numbers of prompts must not be below 0")

    @property
    def systems(self) -> tuple[System, System]:
        """Return the sequential baseline and the taught model."""
        return self.sequential, System(pasta.NAME, self.strategy, self.taught)


@dataclass(frozen=True)
class InstructionRun:
    """A run: its folder, the settings and, while it is made, the prompts."""

    folder: RunFolder
    settings: InstructionSettings
    prompts: Sequence[SetPrompt] = ()  # with their texts; empty if the run is only read

    def workloads(self) -> list[answering.Workload]:
        """Return the workloads: one at a time for clocks, all, and without the mask."""
        own, both = self.settings, self.settings.systems
        timed, scored, unmasked = map(self.folder.journal, (TIMED, SCORED, UNMASKED))
        return [
            answering.Workload(timed, self._first(own.num_timed), both, is_timed=True),
            answering.Workload(scored, self.prompts, both),
            answering.Workload(unmasked, self._first(own.num_unmasked), both[1:], mask=False),
        ]

    def _first(self, count: int) -> list[SetPrompt]:
        sets = groupby(self.prompts, key=lambda item: item.group)
        return [item for _, prompts in sets for item in islice(prompts, count)]

    def check_answers(self) -> None:
        """Check the answers to IFEval's prompts that have no verdict yet."""
        journal, answers = self.folder.journal(VERDICTS), self.folder.journal(SCORED).rows
        rows = []
        for prompt in self.prompts:
            for key in (answer_id(system.name, prompt.id) for system in self.settings.systems):
                if prompt.checked is not None and key in answers and key not in journal.rows:
                    followed = check_ifeval(prompt.checked, answers[key]["text"])
                    rows.append({"id": key, **followed._asdict()})
        journal.append(rows)


def evaluate_instructions(
    out: Path,
    settings: InstructionSettings,
    show: answering.Progress,
    models: answering.Models | None = None,
) -> InstructionRun:
    """Answer, check and read what a run lacks; models are loaded if none are given."""
    prompts, references = read_sets(settings.sets, settings.limit), list[Record]()
    if settings.references is not None:
        ids = settings.reference_ids
        references = read_references(Path(settings.references), Path(ids) if ids else None)
    answering.require_models([settings.untaught])
    if any(item.checked for item in prompts):
        checkers()  # what would fail after hours of decoding fails now
    folder = RunFolder(out)
    folder.begin(asdict(settings), may_change=MAY_CHANGE)
    rows = [
        {"id": item.id, "set": item.group, "parts": item.parts, "items": items_asked(item.text)}
        for item in prompts
    ]
    write_rows(out / f"{PROMPTS}.jsonl", rows)
    run = InstructionRun(folder, settings, prompts)

    def columns(prompt: SetPrompt) -> Row:
        return {"prompt_id": prompt.id, "set": prompt.group}

    answering.answer_workloads(run.workloads(), settings, columns, show, models)
    gc.collect()  # before the models that read are loaded
    run.check_answers()
    if references and not folder.rows(REFERENCES):
        baseline, taught = settings.systems
        names = taught.model, baseline.model, settings.untaught
        systems = reading_systems(names, "float32", settings.device)
        write_rows(out / f"{REFERENCES}.jsonl", list(measure(references, systems)))
    return run


def open_run(folder: Path) -> InstructionRun:
    files = RunFolder(folder)
    return InstructionRun(files, files.settings_of(InstructionSettings))
