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

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import Journal, Row, read_rows, write_rows
from pasta_lm.learn.chat.client import ChatClient, Endpoint, Prices
from pasta_lm.learn.chat.pool import CostLimitError, Spending, require_prices
from pasta_lm.learn.judge.judge import FOLDER as TEMPLATES
from pasta_lm.learn.judge.judge import Comparison, both_orders, load_template
from pasta_lm.learn.judge.llm_judge import LLMJudge, Outcome
from pasta_lm.measure.alpaca_recipe import AlpacaRecipe, AlpacaSettings, JudgeRecipe
from pasta_lm.measure.answering import (
    TOO_LONG,
    Answerer,
    AnswerStore,
    Models,
    Progress,
    Prompt,
    Provenance,
    System,
    answer_id,
    load_models,
)
from pasta_lm.measure.judgements import (
    Instruction,
    Reference,
    read_instructions,
    read_reference,
)
from pasta_lm.measure.win_rates import Calibration
from pasta_lm.run_folder import RunFolder

ANSWERS, INSTRUCTIONS, REFERENCE = "answers.jsonl", "instructions.jsonl", "reference.jsonl"
REPLIES, DIFFICULTY, GAMED = "replies.jsonl", "difficulty.csv", "gamed.csv"
BATCH_SIZE = 64
"""Prompts that are decoded together: a journal row is written only when its batch is done."""

Say = Callable[[str], None]
"""Prints a notice."""


class Show(Protocol):
    """Shows how far a task is, for example ``show("prompts", 3, 10)``."""

    def __call__(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show the state of the task of this name."""


@dataclass(frozen=True)
class AlpacaRun:
    """A run: its folder, the instructions, and the journal of the answers."""

    folder: Path
    settings: AlpacaSettings
    instructions: list[Instruction]
    reference: Reference | None
    answers: Journal

    @property
    def prompts(self) -> list[Prompt]:
        """Return the instructions as prompts, in groups by their data set."""
        return [
            Prompt(instruction.id, instruction.text, instruction.dataset)
            for instruction in self.instructions
        ]

    @property
    def is_answered(self) -> bool:
        """Return whether all systems have answered all instructions."""
        systems = self.settings.systems
        return all(len(self.rows(system.name)) == len(self.instructions) for system in systems)

    def calibration(self) -> Calibration:
        """Return the difficulties and gamed rows that the length-controlled fit needs."""
        if self.settings.difficulty is None:
            return Calibration()
        return Calibration.read(self.folder / DIFFICULTY, self.folder / GAMED)

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
        keys = {
            instruction.id: answer_id(system, instruction.id) for instruction in self.instructions
        }
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
        return self.reference.name, {
            instruction.id: outputs[instruction.text] for instruction in self.instructions
        }

    def comparisons(self, system: str) -> dict[str, list[Comparison]]:
        """Return by id of the instruction the comparisons for the judge, in both orders.

        Empty if the two answers are equal (a draw), one is missing, or ours failed (a loss).
        """
        ours, (_, theirs), failed = self.texts(system), self.opponent(), self.failed(system)
        return {
            instruction.id: both_orders(
                instruction.id, instruction.text, ours[instruction.id], theirs[instruction.id]
            )
            if instruction.id in ours.keys() & theirs.keys() - failed
            and ours[instruction.id] != theirs[instruction.id]
            else []
            for instruction in self.instructions
        }

    def all_comparisons(self) -> list[Comparison]:
        """Return the comparisons of all systems."""
        by_system = (self.comparisons(system.name) for system in self.settings.systems)
        return [
            comparison
            for collected in by_system
            for pair in collected.values()
            for comparison in pair
        ]


def evaluate_alpaca(
    out: Path, recipe: AlpacaRecipe, cost_limit: float | None, show: Show, say: Say
) -> tuple[AlpacaRun, bool]:
    """Answer and judge what a run lacks; return it, and whether the cost limit stopped it.

    ``cost_limit`` is in US dollars, over all replies of the judge.

    Raises:
        UsageError: a setting is wrong, or the folder holds a run with other settings.
        InputError: an input cannot be read.
    """
    judge = recipe.judge
    prices = Prices(judge.input_price, judge.output_price)
    require_prices(prices, cost_limit)
    run = begin_run(out, recipe.settings())
    if not run.is_answered:
        models, made = load_models(
            run.settings.systems,
            dtype=recipe.dtype,
            device=recipe.device,
            pool_tokens=recipe.pool_tokens,
            servers=recipe.servers,
        )
        answer_instructions(run, models, show, made)
    return run, _ask_judge(run, judge, prices, cost_limit, show, say)


def answer_instructions(
    run: AlpacaRun, models: Models, progress: Progress, made: Provenance | None = None
) -> None:
    """Let all systems answer what has no row in the journal yet.

    Source: PASTA, section 5.1 (batch 1, greedy).
    """
    settings, by_id = (
        run.settings,
        {instruction.id: instruction for instruction in run.instructions},
    )

    def details(system: System, prompt: Prompt) -> Row:
        instruction = by_id[prompt.id]
        return {
            "instruction_id": instruction.id,
            "row": instruction.row,
            "dataset": instruction.dataset,
            "instruction": instruction.text,
            **(made or {}).get(system.model, {}),
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


def _ask_judge(
    run: AlpacaRun,
    recipe: JudgeRecipe,
    prices: Prices,
    cost_limit: float | None,
    show: Show,
    say: Say,
) -> bool:
    """Let the judge compare what it has not yet; return whether the cost limit stopped it."""
    if recipe.model is None or recipe.base_url is None:
        return False

    def progress(done: int, total: int, spent: Spending) -> None:
        show("comparisons judged", done, total, str(spent))

    endpoint = Endpoint(
        base_url=recipe.base_url,
        model=recipe.model,
        api_key_env=recipe.api_key_env,
        max_in_flight=64,
    )
    judge = run.judge(
        partial(ChatClient, endpoint), prices=prices, cost_limit_usd=cost_limit, progress=progress
    )
    assert judge is not None
    comparisons = run.all_comparisons()
    estimate = judge.estimate(comparisons)
    if not estimate.num_requests:
        return False
    say(f"the judge is to be asked: {estimate}")
    stopped: CostLimitError | None = None
    try:
        judge.ask(comparisons)
    except CostLimitError as exc:
        stopped = exc
    say(f"all replies of the judge: {judge.spending()}")
    if judge.failures:
        first = next(iter(judge.failures.values()))
        say(f"{len(judge.failures)} comparisons got no reply: {first}")
    if stopped is not None:
        say(str(stopped))
    return stopped is not None


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
        data = RunFolder(folder).settings()
        systems = tuple(System(*system) for system in data.pop("systems"))
        settings = AlpacaSettings(**data, systems=systems)
    except (InputError, KeyError, TypeError) as exc:
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
    RunFolder(folder).begin(asdict(settings), prepare=partial(_write_inputs, folder, settings))
    return open_run(folder)


def _write_inputs(folder: Path, settings: AlpacaSettings) -> None:
    instructions = read_instructions(settings.instructions, settings.limit)
    reference = read_reference(settings.reference) if settings.reference else None
    outputs = reference.outputs if reference else {}
    lacking = [
        instruction.id
        for instruction in instructions
        if reference and instruction.text not in outputs
    ]
    if lacking:
        raise InputError(
            f"{settings.reference} has no answer to {len(lacking)} instructions, such as "
            f"{lacking[0]}"
        )
    load_template(settings.template)
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
            {
                "id": instruction.id,
                "instruction": instruction.text,
                "output": outputs[instruction.text],
            }
            | {"generator": reference.name}
            for instruction in instructions
        ]
        write_rows(folder / REFERENCE, rows)
    prompts = [
        {
            "id": instruction.id,
            "row": instruction.row,
            "dataset": instruction.dataset,
            "instruction": instruction.text,
        }
        for instruction in instructions
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
