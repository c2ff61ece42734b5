"""The folder of an evaluation on instructions: all that its figures are computed from.

::

    settings.json       what is asked of whom, and who judges
    instructions.jsonl  what is asked
    reference.jsonl     answers that were there before, if they are the yardstick
    difficulty.csv, gamed.csv, TEMPLATE.md    copies of what was given
    answers.jsonl       every answer: a journal
    replies.jsonl       every raw reply of the judge: a journal

Whoever has the folder can compute everything again, without a model and without asking anybody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError, UsageError
from pasta_lm.evaluate.instruction_answers import System, answer_id
from pasta_lm.evaluate.instructions import (
    Instruction,
    Reference,
    read_instructions,
    read_reference,
)
from pasta_lm.evaluate.judgements import read_difficulty, read_gamed
from pasta_lm.evaluate.timings import ANSWERS
from pasta_lm.evaluate.win_rates import Calibration
from pasta_lm.journal import Journal, read_rows, write_rows
from pasta_lm.judging.judge import Comparison, both_orders
from pasta_lm.judging.llm_judge import LLMJudge, Outcome
from pasta_lm.judging.template import load_template
from pasta_lm.remote.client import ChatClient

SETTINGS, INSTRUCTIONS, REFERENCE = "settings.json", "instructions.jsonl", "reference.jsonl"
REPLIES, DIFFICULTY, GAMED = "replies.jsonl", "difficulty.csv", "gamed.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaSettings:
    """What is asked of whom, and who judges.

    Attributes:
        instructions: A file or a data set of the hub.
        limit: The first so many instructions; None: all.
        systems: Who answers; the first of the baseline's name is the yardstick of speed.
        baseline: A system's name: the yardstick of speed, and of quality if no reference is named.
        reference: A file of answers that are the yardstick of quality.
        judge_model: As its endpoint knows it; None: nobody judges.
        judge_url: Where it is.
        template: What it is told.
        difficulty: A table of AlpacaEval; None: not known.
        gamed: The other one.
        num_timed: Instructions that are decoded alone; None: all.
        max_tokens: Of an answer, all threads.
    """

    instructions: str
    limit: int | None = None
    systems: tuple[System, ...]
    baseline: str = "sequential"
    reference: str | None = None
    judge_model: str | None = None
    judge_url: str | None = None
    template: str = "stated-confidence-v1"
    difficulty: str | None = None
    gamed: str | None = None
    num_timed: int | None = None
    max_tokens: int = 2048

    def __post_init__(self) -> None:
        """Check what would be found out late.

        Raises:
            UsageError: a system is named twice, or a part lacks its other half.
        """
        names = [system.name for system in self.systems]
        if len({*names}) < len(names):
            raise UsageError("a system is named twice", hint="--system NAME=STRATEGY:MODEL")
        if self.baseline not in names:
            raise UsageError(
                f"no system answers as the baseline {self.baseline!r}",
                hint=f"the systems are {', '.join(names)}",
            )
        if (self.difficulty is None) != (self.gamed is None):
            raise UsageError("--difficulty and --gamed go together")
        if (self.judge_model is None) != (self.judge_url is None):
            raise UsageError("--judge-model and --judge-url go together")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AlpacaSettings:
        """Read what ``asdict`` gave."""
        systems = tuple(System(*system) for system in data["systems"])
        return cls(**(data | {"systems": systems}))


@dataclass(frozen=True, slots=True)
class AlpacaRun:
    """One run: its folder, and what was asked."""

    folder: Path
    settings: AlpacaSettings
    instructions: list[Instruction]
    reference: Reference | None
    answers: Journal

    def calibration(self) -> Calibration:
        """Return what the length-controlled fit knows of the instructions."""
        if self.settings.difficulty is None:
            return Calibration()
        return Calibration(
            read_difficulty(self.folder / DIFFICULTY), read_gamed(self.folder / GAMED)
        )

    def judge(
        self,
        client: Callable[[], ChatClient] | None = None,
        **more: Any,
    ) -> LLMJudge | None:
        """Return the judge; without a client it reads stored replies alone; None: nobody judges.

        Args:
            client: Makes what asks.
            more: Prices, limit and progress of an ``LLMJudge``.
        """
        if self.settings.judge_model is None:
            return None
        template = load_template(str(self.folder / f"{_stem(self.settings.template)}.md"))
        journal = Journal(self.folder / REPLIES)
        return LLMJudge(self.settings.judge_model, template, journal, client, **more)

    def texts(self, system: str) -> dict[str, str]:
        """Return a system's answers by id of the instruction; what is not there is left out."""
        rows = self.answers.rows
        keys = {one.id: answer_id(system, one.id) for one in self.instructions}
        return {name: rows[key]["text"] for name, key in keys.items() if key in rows}

    def opponent(self) -> tuple[str, dict[str, str]]:
        """Return the yardstick of quality: its name, and its answers by id of the instruction."""
        if self.reference is None:
            return self.settings.baseline, self.texts(self.settings.baseline)
        outputs = self.reference.outputs
        return self.reference.name, {one.id: outputs[one.text] for one in self.instructions}

    def comparisons(self, system: str) -> dict[str, list[Comparison]]:
        """Return what the judge is asked of a system, by id of the instruction, in both orders.

        Equal answers are a draw, and answers that are not there cannot be judged: both have none.
        """
        ours, (_, theirs) = self.texts(system), self.opponent()
        return {
            one.id: both_orders(one.id, one.text, ours[one.id], theirs[one.id])
            if one.id in ours and one.id in theirs and ours[one.id] != theirs[one.id]
            else []
            for one in self.instructions
        }


def all_comparisons(run: AlpacaRun) -> list[Comparison]:
    """Return what the judge is asked of all systems."""
    return [
        comparison
        for system in run.settings.systems
        for pair in run.comparisons(system.name).values()
        for comparison in pair
    ]


def judge_answers(run: AlpacaRun, judge: LLMJudge) -> None:
    """Ask the judge about all systems at once; what is stored is not asked again.

    Raises:
        PastaError: it cannot be asked, or may not: see ``LLMJudge.ask``.
    """
    judge.ask(all_comparisons(run))


def outcomes_of(run: AlpacaRun, judge: LLMJudge, system: str) -> dict[str, list[Outcome]]:
    """Return what the judge said of a system, by id of the instruction, ours first, theirs first.

    Raises:
        UsageError: the judge has a client; reading must not ask.
    """
    if judge.client is not None:
        raise UsageError("figures are computed from what is stored")
    return {name: judge.ask(pair) for name, pair in run.comparisons(system).items()}


def open_run(folder: Path) -> AlpacaRun:
    """Open the folder of a run.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = folder / SETTINGS
    try:
        settings = AlpacaSettings.from_dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InputError(f"{folder} is not the folder of an alpaca run: {exc}") from exc
    rows = read_rows(folder / INSTRUCTIONS)
    instructions = [
        Instruction(row["id"], row["row"], row["dataset"], row["instruction"]) for row in rows
    ]
    has_reference = settings.reference is not None
    reference = read_reference(str(folder / REFERENCE)) if has_reference else None
    return AlpacaRun(folder, settings, instructions, reference, Journal(folder / ANSWERS))


def begin_run(folder: Path, settings: AlpacaSettings) -> AlpacaRun:
    """Make the folder of a run, or go on with the one that is there.

    Raises:
        UsageError: the folder holds a run with other settings.
        InputError: something that the settings name cannot be read.
    """
    stored = json.loads(json.dumps(asdict(settings)))
    if (folder / SETTINGS).exists():
        run = open_run(folder)
        before = json.loads(json.dumps(asdict(run.settings)))
        for key, value in stored.items():
            if before[key] != value:
                raise UsageError(
                    f"{folder} holds a run with {key} {before[key]!r}, not {value!r}",
                    hint="go on with the same settings, or name another --out",
                )
        return run
    _write_inputs(folder, settings)
    # Last, so that a folder with settings has all the rest.
    (folder / SETTINGS).write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
    return open_run(folder)


def _write_inputs(folder: Path, settings: AlpacaSettings) -> None:
    instructions = read_instructions(settings.instructions, settings.limit)
    reference = read_reference(settings.reference) if settings.reference else None
    lacking = [one.id for one in instructions if reference and one.text not in reference.outputs]
    if lacking:
        raise InputError(
            f"{settings.reference} has no answer to {len(lacking)} instructions, such as "
            f"{lacking[0]}"
        )
    load_template(settings.template)
    folder.mkdir(parents=True, exist_ok=True)
    copies = {DIFFICULTY: settings.difficulty, GAMED: settings.gamed}
    for name, source in copies.items():
        if source is not None:
            _copy(Path(source), folder / name)
    if settings.judge_model is not None:
        _copy(_template_path(settings.template), folder / f"{_stem(settings.template)}.md")
    if reference:
        # Rows of a journal have ids; the texts themselves are what is looked up.
        rows: Sequence[dict[str, Any]] = [
            {
                "id": one.id,
                "instruction": one.text,
                "output": reference.outputs[one.text],
                "generator": reference.name,
            }
            for one in instructions
        ]
        write_rows(folder / REFERENCE, rows)
    write_rows(
        folder / INSTRUCTIONS,
        [
            {"id": one.id, "row": one.row, "dataset": one.dataset, "instruction": one.text}
            for one in instructions
        ],
    )


def _copy(source: Path, target: Path) -> None:
    try:
        target.write_bytes(source.read_bytes())
    except OSError as exc:
        raise InputError(f"{source} cannot be copied to {target}: {exc}") from exc


def _template_path(name: str) -> Path:
    from pasta_lm.judging.template import FOLDER

    return Path(name) if name.endswith(".md") else FOLDER / f"{name}.md"


def _stem(template: str) -> str:
    return Path(template).stem if template.endswith(".md") else template
