"""The benchmark ``alpaca``: instructions whose answers a judge compares in pairs.

A run has a folder that holds everything its report is computed from::

    settings.json       the settings
    instructions.jsonl  the prompts
    reference.jsonl     answers from a file, if they are the baseline of quality
    difficulty.csv, gamed.csv, TEMPLATE.md    copies of the inputs
    answers.jsonl       every answer: a journal
    replies.jsonl       every raw reply of the judge: a journal

So the report can be computed again without a model and without a judge.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pasta_lab.evaluate.benchmark import Benchmark
from pasta_lm.engines.record import AnswerRecord
from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import Journal, Row, read_rows, write_rows
from pasta_lm.learn.chat.client import ChatClient
from pasta_lm.learn.judge.judge import FOLDER as TEMPLATES
from pasta_lm.learn.judge.judge import Comparison, both_orders, load_template
from pasta_lm.learn.judge.llm_judge import LLMJudge, Outcome
from pasta_lm.measure.answering import (
    TOO_LONG,
    Answerer,
    AnswerStore,
    Models,
    Progress,
    Prompt,
    System,
    answer_id,
    check_served,
)
from pasta_lm.measure.judgements import (
    Instruction,
    Reference,
    read_difficulty,
    read_gamed,
    read_instructions,
    read_reference,
)
from pasta_lm.measure.speed import ANSWERS
from pasta_lm.measure.win_rates import Calibration
from pasta_lm.models.shipped import BUILTIN
from pasta_lm.recipe import check_choice, check_same_settings
from pasta_lm.strategies import sequential
from pasta_lm.strategies.model import Servers, baseline_of
from pasta_lm.strategies.requests import STRATEGIES

SETTINGS, INSTRUCTIONS, REFERENCE = "settings.json", "instructions.jsonl", "reference.jsonl"
REPLIES, DIFFICULTY, GAMED = "replies.jsonl", "difficulty.csv", "gamed.csv"
BATCH_SIZE = 64
"""Prompts that are decoded together: a journal row is written only when its batch is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRecipe:
    """The judge's endpoint; without a model nothing is judged."""

    model: str | None = None
    url: str | None = None
    """Up to and including ``/v1``; ``local``: the model judges in this process."""
    key_env: str | None = None
    """The environment variable with the key."""
    input_price: float | None = None
    """US dollars for a million tokens."""
    output_price: float | None = None
    template: str = "stated-confidence-v1"
    """A built-in prompt (stated-confidence-v1, one-token-v1), or a file FILE.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaInputs:
    """The settings that a recipe and a stored run share."""

    instructions: str = "tatsu-lab/alpaca_eval"
    """A file with 'instruction', or owner/name or owner/name:file of the hub."""
    limit: int | None = None
    """The first so many instructions; None: all."""
    reference: str | None = None
    """A file of answers that are the baseline of quality, in AlpacaEval's form."""
    difficulty: str | None = None
    """AlpacaEval's table of the instructions' difficulty; None: not known."""
    gamed: str | None = None
    """AlpacaEval's verdicts on the gamed reference."""
    num_timed: int | None = None
    """The first so many instructions are decoded one at a time; None: all."""
    max_tokens: int = 2048
    """Of an answer, all threads together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaRecipe(AlpacaInputs):
    """The recipe of ``pasta evaluate alpaca``."""

    model: str | None = None
    baseline: str | None = None
    """Whose sequential answers are the baseline; None: the built-in one, or the model itself."""
    strategies: tuple[str, ...] = ("sequential", "pasta")
    systems: tuple[str, ...] = ()
    """More systems, each NAME=STRATEGY:MODEL."""
    judge: JudgeRecipe = JudgeRecipe()
    pool_tokens: int = 65_536
    """Cache entries of each model's engine."""
    dtype: str | None = None
    device: str | None = None
    servers: Servers | None = None
    """Stock servers that hold the model, which is then its own baseline; None: it is loaded."""

    def settings(self) -> AlpacaSettings:
        """Return the settings of the run; the sequential baseline is always its first system.

        Raises:
            UsageError: a system or a combination of settings is wrong.
        """
        ours, judge = self.model or BUILTIN, self.judge
        baseline = self.baseline or (baseline_of(ours) if self.servers is None else ours)
        systems = [System(sequential.NAME, sequential.NAME, baseline)]
        systems += [System(name, name, ours) for name in self.strategies if name != sequential.NAME]
        for given in self.systems:
            name, _, rest = given.partition("=")
            strategy, _, model = rest.partition(":")
            if not name or not strategy or not model:
                raise UsageError(f"--system {given!r} is not of the form NAME=STRATEGY:MODEL")
            systems.append(System(name, strategy, model))
        for one in systems:
            check_choice("strategies", one.strategy, STRATEGIES)
        check_served(self.servers, self.model, (one.model for one in systems))
        return AlpacaSettings(
            **{field.name: getattr(self, field.name) for field in fields(AlpacaInputs)},
            systems=tuple(systems),
            judge_model=judge.model,
            judge_url=judge.url,
            template=judge.template,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaSettings(AlpacaInputs):
    """The settings that a run's answers and judgements depend on; they are stored with it."""

    systems: tuple[System, ...]
    baseline: str = sequential.NAME
    """A system: the baseline of speed, and of quality if there is no reference."""
    judge_model: str | None = None
    """The judge, as its endpoint knows it; None: nothing is judged."""
    judge_url: str | None = None
    template: str = "stated-confidence-v1"

    def __post_init__(self) -> None:
        """Validate combinations of keys.

        Raises:
            UsageError: two systems have one name, the baseline is no system, or one of two
                settings that belong together is missing.
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
            raise UsageError("difficulty and gamed go together")
        if (self.judge_model is None) != (self.judge_url is None):
            raise UsageError("judge.model and judge.url go together")


@dataclass(frozen=True)
class AlpacaRun(Benchmark):
    """A run: its folder, the instructions, and the journal of the answers."""

    folder: Path
    settings: AlpacaSettings
    instructions: list[Instruction]
    reference: Reference | None
    answers: Journal
    id = "alpaca"

    @cached_property
    def prompts(self) -> list[Prompt]:  # type: ignore[override]
        """Return the instructions as prompts, in groups by their data set."""
        return [Prompt(one.id, one.text, one.dataset) for one in self.instructions]

    def score(self, prompt: Prompt, answer: AnswerRecord) -> None:
        """Return None: a judge compares answers in pairs, see ``comparisons``."""

    def calibration(self) -> Calibration:
        """Return what the length-controlled fit knows of the instructions."""
        if self.settings.difficulty is None:
            return Calibration()
        folder = self.folder
        return Calibration(read_difficulty(folder / DIFFICULTY), read_gamed(folder / GAMED))

    def judge(self, client: Callable[[], ChatClient] | None = None, **more: Any) -> LLMJudge | None:
        """Return the judge; None if nothing is judged.

        Args:
            client: Makes the client that asks; None: only stored replies are read.
            more: Prices, limit and progress of an ``LLMJudge``.
        """
        if self.settings.judge_model is None:
            return None
        template = load_template(str(self.folder / _template_file(self.settings.template)))
        journal = Journal(self.folder / REPLIES)
        return LLMJudge(self.settings.judge_model, template, journal, client, **more)

    def rows(self, system: str) -> dict[str, Row]:
        """Return the stored answers of a system by id of the instruction."""
        rows = self.answers.rows
        keys = {one.id: answer_id(system, one.id) for one in self.instructions}
        return {name: rows[key] for name, key in keys.items() if key in rows}

    def texts(self, system: str) -> dict[str, str]:
        """Return a system's answers by id of the instruction."""
        return {name: row["text"] for name, row in self.rows(system).items()}

    def failed(self, system: str) -> set[str]:
        """Return the instructions that did not fit a system's context."""
        rows = self.rows(system).items()
        return {name for name, row in rows if row.get("finish_reason") == TOO_LONG}

    def opponent(self) -> tuple[str, dict[str, str]]:
        """Return the baseline of quality: its name and its answers by id of the instruction."""
        if self.reference is None:
            return self.settings.baseline, self.texts(self.settings.baseline)
        outputs = self.reference.outputs
        return self.reference.name, {one.id: outputs[one.text] for one in self.instructions}

    def comparisons(self, system: str) -> dict[str, list[Comparison]]:
        """Return by id of the instruction what the judge compares, in both orders.

        Empty if the two answers are equal (a draw), one is missing, or ours failed (a loss).
        """
        ours, (_, theirs), failed = self.texts(system), self.opponent(), self.failed(system)
        return {
            one.id: both_orders(one.id, one.text, ours[one.id], theirs[one.id])
            if one.id in ours.keys() & theirs.keys() - failed and ours[one.id] != theirs[one.id]
            else []
            for one in self.instructions
        }

    def all_comparisons(self) -> list[Comparison]:
        """Return what the judge compares, of all systems."""
        by_system = (self.comparisons(system.name) for system in self.settings.systems)
        return [one for found in by_system for pair in found.values() for one in pair]


def answer_instructions(
    run: AlpacaRun,
    models: Models,
    progress: Progress,
    provenance: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Let all systems answer what has no row in the journal yet.

    Args:
        run: The run.
        models: The systems' models, by name.
        progress: Called after each prompt or batch.
        provenance: By model, what its rows say of hardware and software.

    Source: PASTA, section 5.1 (batch 1, greedy).
    """
    settings, by_id = run.settings, {one.id: one for one in run.instructions}

    def details(system: System, prompt: Prompt) -> Row:
        one = by_id[prompt.id]
        return {
            "instruction_id": one.id,
            "row": one.row,
            "dataset": one.dataset,
            "instruction": one.text,
            **(provenance or {}).get(system.model, {}),
        }

    store = AnswerStore(run.answers, details)
    answerer = Answerer(
        models=models,
        params=SamplingParams(max_tokens=settings.max_tokens),
        progress=progress,
        batch_size=BATCH_SIZE,
        keeps_traces=False,
    )
    answerer.answer_in_turn(run.prompts[: settings.num_timed], settings.systems, store)
    answerer.answer_together(run.prompts, settings.systems, store)


def outcomes_of(run: AlpacaRun, judge: LLMJudge, system: str) -> dict[str, list[Outcome]]:
    """Return the judge's stored outcomes by id of the instruction: ours first, theirs first.

    Raises:
        UsageError: the judge has a client; reading must not ask.
    """
    if judge.client is not None:
        raise UsageError("figures are computed from stored replies")
    return {name: judge.ask(pair) for name, pair in run.comparisons(system).items()}


def open_run(folder: Path) -> AlpacaRun:
    """Open the folder of a run.

    Raises:
        InputError: it is no folder of a run, or damaged.
    """
    try:
        data = json.loads((folder / SETTINGS).read_text("utf-8"))
        systems = tuple(System(*system) for system in data.pop("systems"))
        settings = AlpacaSettings(**data, systems=systems)
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
    """Create the folder of a run, or continue the run that it holds.

    Raises:
        UsageError: the folder holds a run with other settings.
        InputError: an input cannot be read.
    """
    if (folder / SETTINGS).exists():
        run = open_run(folder)
        check_same_settings(folder, asdict(run.settings), asdict(settings))
        return run
    _write_inputs(folder, settings)
    # Last, so that a folder with settings has all the rest.
    (folder / SETTINGS).write_text(json.dumps(asdict(settings), indent=1) + "\n", "utf-8")
    return open_run(folder)


def _write_inputs(folder: Path, settings: AlpacaSettings) -> None:
    instructions = read_instructions(settings.instructions, settings.limit)
    reference = read_reference(settings.reference) if settings.reference else None
    outputs = reference.outputs if reference else {}
    lacking = [one.id for one in instructions if reference and one.text not in outputs]
    if lacking:
        raise InputError(
            f"{settings.reference} has no answer to {len(lacking)} instructions, such as "
            f"{lacking[0]}"
        )
    load_template(settings.template)
    folder.mkdir(parents=True, exist_ok=True)
    copies = {DIFFICULTY: settings.difficulty, GAMED: settings.gamed}
    if settings.judge_model is not None:
        file = _template_file(settings.template)
        is_file = settings.template.endswith(".md")
        copies[file] = settings.template if is_file else str(TEMPLATES / file)
    for name, source in copies.items():
        if source is not None:
            _copy(Path(source), folder / name)
    if reference:
        rows = [
            {"id": one.id, "instruction": one.text, "output": outputs[one.text]}
            | {"generator": reference.name}
            for one in instructions
        ]
        write_rows(folder / REFERENCE, rows)
    prompts = [
        {"id": one.id, "row": one.row, "dataset": one.dataset, "instruction": one.text}
        for one in instructions
    ]
    write_rows(folder / INSTRUCTIONS, prompts)


def _copy(source: Path, target: Path) -> None:
    try:
        target.write_bytes(source.read_bytes())
    except OSError as exc:
        raise InputError(f"{source} cannot be copied to {target}: {exc}") from exc


def _template_file(template: str) -> str:
    """Return the name of a template's copy in the folder."""
    return Path(template).name if template.endswith(".md") else f"{template}.md"
