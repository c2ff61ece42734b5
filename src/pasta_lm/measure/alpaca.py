"""The benchmark ``alpaca``: instructions whose answers a judge compares in pairs.

A run's folder holds everything its report is computed from: the settings, copies of the inputs
(instructions, reference, difficulties, template), and two journals, ``answers.jsonl`` and
``replies.jsonl`` with the judge's raw replies. So the report can be computed again without a model
and without a judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pasta_lm.engines.request import SamplingParams
from pasta_lm.engines.servers.request_pace import without_password
from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import Journal, Row, read_rows, write_rows
from pasta_lm.learn.chat.client import ChatClient, Endpoint, Prices
from pasta_lm.learn.chat.pool import CostLimitError, Spending, require_prices
from pasta_lm.learn.judge.judge import FOLDER, Comparison, both_orders, load_template
from pasta_lm.learn.judge.llm_judge import LLMJudge
from pasta_lm.measure.answering import (
    TOO_LONG,
    Answerer,
    AnswerSettings,
    AnswerStore,
    Models,
    Provenance,
    SetPrompt,
    System,
    answer_id,
    check_served,
    load_models,
)
from pasta_lm.measure.length_control import Calibration
from pasta_lm.measure.prompt_sets import Reference, read_instructions, read_reference
from pasta_lm.measure.win_rates import read_difficulty, read_gamed
from pasta_lm.recipe import check_choice
from pasta_lm.run_folder import RunFolder
from pasta_lm.strategies import sequential
from pasta_lm.strategies.model import SERVER_KEYS
from pasta_lm.strategies.requests import STRATEGIES

ANSWERS, INSTRUCTIONS, REFERENCE = "answers.jsonl", "instructions.jsonl", "reference.jsonl"
REPLIES, DIFFICULTY, GAMED = "replies.jsonl", "difficulty.csv", "gamed.csv"
MAY_CHANGE = {"pool_tokens", "dtype", "device", *SERVER_KEYS}
MAY_CHANGE |= {"judge.api_key_env", "judge.input_price", "judge.output_price"}
"""Settings that no stored answer or reply depends on; rows record their dtype and device."""
BATCH_SIZE = 64
"""Prompts that are decoded together: a journal row is written only when its batch is done."""
MAX_IN_FLIGHT = 64  # requests to the judge

Show = Callable[..., None]
"""Shows the state of a task, for example ``show("prompts", 3, 10, note)``."""
Say = Callable[[str], None]  # prints a notice


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRecipe:
    """The judge's endpoint; without a model nothing is judged."""

    model: str | None = None
    base_url: str | None = None  # up to and including ``/v1``
    api_key_env: str | None = None  # the environment variable with the key
    input_price: float | None = None  # US dollars for a million tokens
    output_price: float | None = None
    template: str = "stated-confidence-v1"
    """A built-in prompt (stated-confidence-v1, one-token-v1), or a file FILE.md."""

    @property
    def file(self) -> str:
        """Return the name of the template's copy in the run's folder."""
        return f"{Path(self.template).name.removesuffix('.md')}.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaSettings(AnswerSettings):
    """The recipe of ``pasta evaluate alpaca``; a run stores it."""

    strategies: tuple[str, ...] = ("sequential", "pasta")
    systems: tuple[str, ...] = ()  # more systems, each NAME=STRATEGY:MODEL
    instructions: str = "tatsu-lab/alpaca_eval"
    """A file with 'instruction', or owner/name or owner/name:file of the hub."""
    reference: str | None = None
    """A file of answers that are the baseline of quality, in AlpacaEval's form."""
    difficulty: str | None = None
    """AlpacaEval's table of the instructions' difficulty; None: not known."""
    gamed: str | None = None  # AlpacaEval's verdicts on the gamed reference
    num_timed: int | None = None
    """The first so many instructions are decoded one at a time; None: all."""
    max_tokens: int = 2048  # of an answer, all threads together
    judge: JudgeRecipe = JudgeRecipe()

    def __post_init__(self) -> None:
        """Validate values before a model is loaded."""
        systems = self.all_systems
        for system in systems:
            check_choice("strategies", system.strategy, STRATEGIES)
        check_served(self.servers, self.model, (system.model for system in systems))
        if len({system.name for system in systems}) < len(systems):
            raise UsageError("a system is named twice", hint="--system NAME=STRATEGY:MODEL")
        if (self.difficulty is None) != (self.gamed is None):
            raise UsageError("difficulty and gamed go together")
        if (self.judge.model is None) != (self.judge.base_url is None):
            raise UsageError("judge.model and judge.base_url go together")

    @property
    def all_systems(self) -> list[System]:
        """Return all systems; the first is the baseline of speed, and of quality as a rule."""
        names = [name for name in self.strategies if name != sequential.NAME]
        systems = [self.sequential, *(System(name, name, self.taught) for name in names)]
        for spec in self.systems:
            name, _, rest = spec.partition("=")
            strategy, _, model = rest.partition(":")
            if not name or not strategy or not model:
                raise UsageError(f"--system {spec!r} is not of the form NAME=STRATEGY:MODEL")
            systems.append(System(name, strategy, model))
        return systems


@dataclass(frozen=True)
class AlpacaRun:
    """A run: its folder, the instructions, and the journal of the answers."""

    folder: Path
    settings: AlpacaSettings
    prompts: list[SetPrompt]  # their groups are data sets
    reference: Reference | None
    answers: Journal

    @property
    def is_answered(self) -> bool:
        """Return whether all systems have answered all instructions."""
        systems = self.settings.all_systems
        return all(len(self.rows(system.name)) == len(self.prompts) for system in systems)

    def calibration(self) -> Calibration:
        """Return the difficulties and gamed rows that the length-controlled fit needs."""
        if self.settings.difficulty is None:
            return Calibration()
        return Calibration(
            read_difficulty(self.folder / DIFFICULTY), read_gamed(self.folder / GAMED)
        )

    def judge(self, client: Callable[[], ChatClient] | None = None, **more: Any) -> LLMJudge | None:
        """Return the judge; None if nothing is judged.

        Args:
            client: Makes the client that asks; None: only stored replies are read.
            more: Prices, limit and progress of an ``LLMJudge``.
        """
        recipe = self.settings.judge
        if recipe.model is None:
            return None
        template = load_template(str(self.folder / recipe.file))
        return LLMJudge(recipe.model, template, Journal(self.folder / REPLIES), client, **more)

    def rows(self, system: str) -> dict[str, Row]:
        """Return the stored answers of a system by id of the instruction."""
        rows = self.answers.rows
        keys = {item.id: answer_id(system, item.id) for item in self.prompts}
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
            return sequential.NAME, self.texts(sequential.NAME)
        name, outputs = self.reference
        return name, {item.id: outputs[item.text] for item in self.prompts}

    def comparisons(self, system: str) -> dict[str, list[Comparison]]:
        """Return by id of the instruction the comparisons for the judge, in both orders.

        Empty if the two answers are equal (a draw), one is missing, or ours failed (a loss).
        """
        ours, (_, theirs), failed = self.texts(system), self.opponent(), self.failed(system)
        shared = ours.keys() & theirs.keys() - failed
        wanted = {name for name in shared if ours[name] != theirs[name]}
        return {
            name: both_orders(name, text, ours[name], theirs[name]) if name in wanted else []
            for name, text, *_ in self.prompts
        }

    def all_comparisons(self) -> list[Comparison]:
        """Return the comparisons of all systems."""
        by_system = (self.comparisons(system.name) for system in self.settings.all_systems)
        return [item for pairs in by_system for pair in pairs.values() for item in pair]


def evaluate_alpaca(
    out: Path, settings: AlpacaSettings, cost_limit: float | None, show: Show, say: Say
) -> tuple[AlpacaRun, bool]:
    """Answer and judge what a run lacks; return it, and whether the cost limit stopped it.

    ``cost_limit`` is in US dollars, over all replies of the judge.
    """
    judge = settings.judge
    prices = Prices(judge.input_price, judge.output_price)
    require_prices(prices, cost_limit)
    run = begin_run(out, settings)
    if not run.is_answered:
        models, made = load_models(settings, settings.all_systems)
        answer_instructions(run, models, show, made)
    if judge.model is None or judge.base_url is None:
        return run, False

    def progress(done: int, total: int, spent: Spending) -> None:
        show("comparisons judged", done, total, str(spent))

    endpoint = Endpoint(
        base_url=judge.base_url,
        model=judge.model,
        api_key_env=judge.api_key_env,
        max_in_flight=MAX_IN_FLIGHT,
    )
    client = partial(ChatClient, endpoint)
    llm_judge = run.judge(client, prices=prices, cost_limit_usd=cost_limit, progress=progress)
    assert llm_judge is not None
    return run, _ask(llm_judge, run.all_comparisons(), say)


def _ask(judge: LLMJudge, comparisons: list[Comparison], say: Say) -> bool:
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


def answer_instructions(
    run: AlpacaRun, models: Models, show: Show, made: Provenance | None = None
) -> None:
    """Let all systems answer what has no row in the journal yet.

    Source: PASTA, section 5.1 (batch 1, greedy).
    """

    def details(system: System, prompt: SetPrompt) -> Row:
        columns = {"instruction_id": prompt.id, "dataset": prompt.group, "instruction": prompt.text}
        return {**columns, **(made or {}).get(system.model, {})}

    settings, store = run.settings, AnswerStore(run.answers, details)
    answerer = Answerer(
        models=models,
        params=SamplingParams(max_tokens=settings.max_tokens),
        progress=show,
        batch_size=BATCH_SIZE,
    )
    answerer.answer_in_turn(run.prompts[: settings.num_timed], settings.all_systems, store)
    answerer.answer_together(run.prompts, settings.all_systems, store)


def open_run(folder: Path) -> AlpacaRun:
    """Open the folder of a run."""
    settings = RunFolder(folder).settings_of(AlpacaSettings)
    rows = read_rows(folder / INSTRUCTIONS)
    prompts = [SetPrompt(row["id"], row["instruction"], row["dataset"]) for row in rows]
    reference = read_reference(str(folder / REFERENCE)) if settings.reference else None
    return AlpacaRun(folder, settings, prompts, reference, Journal(folder / ANSWERS))


def begin_run(folder: Path, settings: AlpacaSettings) -> AlpacaRun:
    """Create the folder of a run, or continue the run that it holds."""
    stored = asdict(settings)
    stored["judge"]["base_url"] = without_password(settings.judge.base_url or "") or None
    prepare = partial(_write_inputs, folder, settings)
    RunFolder(folder).begin(stored, may_change=MAY_CHANGE, prepare=prepare)
    return open_run(folder)


def _write_inputs(folder: Path, settings: AlpacaSettings) -> None:
    prompts, judge = read_instructions(settings.instructions, settings.limit), settings.judge
    if settings.reference is not None:
        name, outputs = read_reference(settings.reference)
        lacking = [item.id for item in prompts if item.text not in outputs]
        if lacking:
            raise InputError(
                f"{settings.reference} has no answer to {len(lacking)} instructions, such as "
                f"{lacking[0]}"
            )
        rows = [
            {"id": item.id, "instruction": item.text, "output": outputs[item.text]}
            | {"generator": name}
            for item in prompts
        ]
        write_rows(folder / REFERENCE, rows)
    load_template(judge.template)
    is_file = judge.template.endswith(".md")
    copies = {DIFFICULTY: settings.difficulty, GAMED: settings.gamed}
    copies[judge.file] = judge.template if is_file else str(FOLDER / judge.file)
    for copy, source in copies.items():
        if source is not None:
            try:
                (folder / copy).write_bytes(Path(source).read_bytes())
            except OSError as exc:
                raise InputError(f"{source} cannot be copied to {folder / copy}: {exc}") from exc
    write_rows(
        folder / INSTRUCTIONS,
        [{"id": item.id, "dataset": item.group, "instruction": item.text} for item in prompts],
    )
