"""The benchmark ``alpaca``: instructions whose answers a judge compares in pairs.

A run's folder holds everything its report is computed from: the settings, copies of the inputs
(instructions with reference answers, difficulties, template, the verdicts of a file), and two
journals, ``answers.jsonl`` and ``replies.jsonl`` with the judge's raw replies. So the report can be
computed again without a model and without a judge. A scripted judge has no win rate, because its
verdicts follow from the script; the report has the note "pipeline check" instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pasta_lm.errors import InputError, UsageError, cause
from pasta_lm.journal import Journal, Row, line_of, read_lines, read_rows, write_whole
from pasta_lm.learn import judge as judging
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from pasta_lm.learn.judge.verdicts import VerdictFile, reader_of, stored_verdicts
from pasta_lm.measure import answering, win_rates
from pasta_lm.measure.answering import SetPrompt, System
from pasta_lm.measure.prompt_sets import read_instructions, read_reference
from pasta_lm.measure.speed import add_speed, systems_of
from pasta_lm.measure.table import Figures, KeyPath, Report, mean
from pasta_lm.measure.win_rates import Judgement
from pasta_lm.recipe import check_choice, check_not_ignored
from pasta_lm.run_folder import RunFolder
from pasta_lm.strategies import SEQUENTIAL
from pasta_lm.strategies.model import SERVER_KEYS
from pasta_lm.strategies.requests import STRATEGIES

ANSWERS, INSTRUCTIONS, VERDICTS = "answers.jsonl", "instructions.jsonl", "verdicts_read.jsonl"
REPLIES, DIFFICULTY, GAMED = "replies.jsonl", "difficulty.csv", "gamed.csv"
MAY_CHANGE = {"batch_size", "pool_tokens", "dtype", "device", *SERVER_KEYS}
MAY_CHANGE |= {"judge.api_key_env", "judge.file"}
"""Settings that no stored answer or reply depends on; rows record their dtype and device."""
PROVENANCE = ("model", "strategy", "engine", "positions", "hardware", "dtype", "commit", "version")
TITLES = {
    "length_controlled_interval": "length-controlled win rate, %",
    "win_rate_interval": "win rate, %",
    "win_rate_missing_lost": "win rate, missing verdicts lost, %",
}
MEANING = (
    "answers: greedy, each model's own repetition penalty if the settings have none",
    "speedups: over the speed baseline's own answer to the same prompt, decoded by the same engine "
    "on the same machine",
    "win rate: the mean preference over both orders; equal answers are a draw; the interval of the "
    "length-controlled one fits every draw again",
)
BothOrders = Sequence[judging.Reading]
Show = Callable[..., None]  # shows the state of a task: ``show("prompts", 3, 10, note)``
Say = Callable[[str], None]  # prints a notice


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRecipe:
    """The judge's endpoint, or its file; without a model and a file nothing is judged."""

    file: str | None = None  # verdicts on what ``--write-pairs`` wrote; no model is asked
    model: str | None = None
    base_url: str | None = None  # up to and including ``/v1``
    api_key_env: str | None = None  # the environment variable with the key
    template: str = "stated-confidence-v1"
    """A built-in prompt (stated-confidence-v1, one-token-v1), or a file FILE.md."""

    @property
    def page(self) -> str:
        return f"{Path(self.template).name.removesuffix('.md')}.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaSettings(answering.AnswerSettings):
    """The recipe of ``pasta evaluate alpaca``; a run stores it."""

    strategies: tuple[str, ...] = ("sequential", "pasta")
    system: str | None = None  # one more system, NAME=STRATEGY:MODEL
    instructions: str = "tatsu-lab/alpaca_eval"
    """A file with 'instruction', or owner/name or owner/name:file of the hub."""
    reference: str | None = None  # answers that are the baseline of quality, in AlpacaEval's form
    difficulty: str | None = None  # AlpacaEval's table of difficulties; None: not known
    gamed: str | None = None  # AlpacaEval's verdicts on the gamed reference
    num_timed: int | None = None  # the first so many are decoded one at a time; None: all
    max_tokens: int = 2048  # an answer's, all threads together
    judge: JudgeRecipe = JudgeRecipe()

    def __post_init__(self) -> None:
        systems = self.all_systems
        for system in systems:
            check_choice("strategies", system.strategy, STRATEGIES)
        answering.check_served(self.servers, self.model, (system.model for system in systems))
        if len({system.name for system in systems}) < len(systems):
            raise UsageError("a system is named twice", hint="--system NAME=STRATEGY:MODEL")
        if (self.difficulty is None) != (self.gamed is None):
            raise UsageError("difficulty and gamed go together")
        for key, value in asdict(self.judge).items() if self.judge.file is not None else ():
            is_ignored = key != "file" and value != getattr(JudgeRecipe(), key)
            check_not_ignored(f"judge.{key}", is_ignored, "judge.file has the verdicts")
        if (self.judge.model is None) != (self.judge.base_url is None):
            raise UsageError("judge.model and judge.base_url go together")

    @property
    def all_systems(self) -> list[System]:
        """Return all systems; the first is the baseline of speed, and of quality as a rule."""
        names = [name for name in self.strategies if name != SEQUENTIAL]
        systems = [self.sequential, *(System(name, name, self.taught) for name in names)]
        if self.system is not None:
            if (parts := re.fullmatch(r"([^=]+)=([^:]+):(.+)", self.system)) is None:
                raise UsageError(f"--system {self.system!r} is not of the form NAME=STRATEGY:MODEL")
            systems.append(System(parts[1], parts[2], parts[3]))
        return systems


class JudgedPair(NamedTuple):
    """A system's answer to an instruction beside the baseline's."""

    lengths: tuple[int, int]  # characters of the baseline's answer and of ours
    preference: float | None = None  # known without a judge
    comparisons: Sequence[judging.Comparison] = ()  # for the judge, in both orders


@dataclass(frozen=True)
class AlpacaAnswers:
    """Instructions with the answers of all systems, and the baseline of their quality."""

    prompts: Sequence[SetPrompt]  # their groups are data sets
    rows: Mapping[str, Row]  # by id of the answer
    baseline: str
    theirs: Mapping[str, str]  # the baseline's answers by id of the instruction

    def of(self, system: str) -> dict[str, Row]:
        keys = {item.id: answering.answer_id(system, item.id) for item in self.prompts}
        return {name: self.rows[key] for name, key in keys.items() if key in self.rows}

    def pairs(self, system: str) -> list[JudgedPair]:
        """Return a system's answers beside the baseline's, in the order of the instructions.

        Equal answers are a draw; one that did not fit the context is lost. An answer that is not
        there yet, of either side, has no preference.
        """
        ours = self.of(system)
        return [_pair(item, ours.get(item.id), self.theirs.get(item.id)) for item in self.prompts]


class Readings(NamedTuple):
    """The stored readings of a judge."""

    judge: Figures  # its name, model, template and spending, as JSON has them
    pairs: Mapping[str, Sequence[BothOrders]]
    """The readings of both orders by system, in the order of the instructions."""
    calibration: win_rates.Calibration


AlpacaRun = tuple[AlpacaAnswers, Readings | None, AlpacaSettings]
"""All that the report of a run is computed from; without readings nothing is judged."""


def _pair(prompt: SetPrompt, row: Row | None, theirs: str | None) -> JudgedPair:
    ours = None if row is None else row["text"]
    lengths = len(theirs or ""), len(ours or "")
    if row is None or theirs is None:
        return JudgedPair(lengths)
    if ours == theirs:
        return JudgedPair(lengths, 0.5)
    if row.get("finish_reason") == answering.TOO_LONG:
        return JudgedPair(lengths, 0.0)
    both = judging.both_orders(prompt.id, prompt.text, row["text"], theirs)
    return JudgedPair(lengths, comparisons=both)


def evaluate_alpaca(
    out: Path, settings: AlpacaSettings, show: Show, say: Say, to_read: Path | None = None
) -> Path | None:
    """Answer and judge what a run lacks; return ``to_read`` if it is to be read first."""
    reader = reader_of(settings.judge.file, to_read, is_new=False)
    begin_run(out, settings)
    prompts, answers = read_prompts(read_rows(out / INSTRUCTIONS)), Journal(out / ANSWERS)

    def columns(prompt: SetPrompt) -> Row:
        return {"instruction_id": prompt.id, "dataset": prompt.group, "instruction": prompt.text}

    systems, first = settings.all_systems, prompts[: settings.num_timed]
    timed = answering.Workload(answers, first, systems, is_timed=True)
    untimed = answering.Workload(answers, prompts, systems)
    answering.answer_workloads([timed, untimed], settings, columns, show)
    recipe, judge = settings.judge, stored_judge(out, settings.judge)
    comparisons = all_comparisons(open_run(out))
    if reader is not None:
        has_file = reader.path.exists()  # else the copy holds what was read
        reader = reader if has_file else replace(reader, first_wins=stored_verdicts(out / VERDICTS))
        reader.missing(comparisons)  # unknown ids are refused
        if has_file:
            write_whole(out / VERDICTS, "".join(read_lines(reader.path)).encode())
        return reader.write_unread(comparisons, settings.instructions)
    if not isinstance(judge, judging.LLMJudge) or recipe.base_url is None:
        return None
    estimate = judge.estimate(comparisons)
    if not estimate.num_requests:
        return None
    say(f"the judge is to be asked: {estimate}")
    url, key = recipe.base_url, recipe.api_key_env
    endpoint = Endpoint(base_url=url, model=judge.model, api_key_env=key, max_in_flight=64)
    progress = lambda done, total, spent: show("comparisons judged", done, total, str(spent))  # noqa: E731
    judge = replace(judge, client=partial(ChatClient, endpoint), progress=progress)
    judge.ask(comparisons)
    say(f"all replies of the judge: {judge.spending()}")
    for failure in [*judge.failures.values()][:1]:
        say(f"{len(judge.failures)} comparisons got no reply: {failure}")
    return None


def all_comparisons(run: AlpacaRun) -> list[judging.Comparison]:
    answers, _, settings = run
    pairs = (pair for system in settings.all_systems for pair in answers.pairs(system.name))
    return [comparison for pair in pairs for comparison in pair.comparisons]


def stored_judge(folder: Path, recipe: JudgeRecipe) -> judging.LLMJudge | VerdictFile | None:
    if recipe.file is not None:
        return VerdictFile(Path(recipe.file), stored_verdicts(folder / VERDICTS))
    if recipe.model is None:
        return None
    template = judging.load_template(str(folder / recipe.page))
    return judging.LLMJudge(recipe.model, template, Journal(folder / REPLIES))


def read_prompts(rows: Iterable[Row]) -> list[SetPrompt]:
    return [SetPrompt(row["id"], row["instruction"], row["dataset"]) for row in rows]


def open_run(folder: Path) -> AlpacaRun:
    settings = RunFolder(folder).settings_of(AlpacaSettings)
    rows, stored = read_rows(folder / INSTRUCTIONS), Journal(folder / ANSWERS).rows
    first = [row for row in stored.values() if row["system"] == SEQUENTIAL]
    baseline, theirs = SEQUENTIAL, {row["instruction_id"]: row["text"] for row in first}
    if settings.reference is not None and rows:
        baseline, theirs = rows[0]["generator"], {row["id"]: row["output"] for row in rows}
    answers = AlpacaAnswers(read_prompts(rows), stored, baseline, theirs)
    names = [system.name for system in settings.all_systems]
    if lacking := [name for name in names if not answers.of(name)]:
        hint = "run the same command again: it continues where it stopped"
        raise InputError(f"{folder}: no answers of {lacking[0]} yet", hint=hint)
    if (judge := stored_judge(folder, settings.judge)) is None:
        return answers, None, settings
    pairs = {name: [judge.ask(item.comparisons) for item in answers.pairs(name)] for name in names}
    calibration = win_rates.Calibration()
    if settings.difficulty is not None:
        calibration = win_rates.read_calibration(folder / DIFFICULTY, folder / GAMED)
    if isinstance(judge, VerdictFile):
        facts = judge.facts(all_comparisons((answers, None, settings)))
        return answers, Readings(facts, pairs, calibration), settings
    replies, template = judge.journal.rows.values(), judge.template
    facts = {
        "name": judge.name, "model": judge.model, "url": settings.judge.base_url,
        "replied_as": Counter(str(row["reply"].get("model") or "unnamed") for row in replies),
        "template": template.name, "template_sha256": template.sha256,
        "method": template.method.value, "is_scripted": judge.is_scripted,
        "num_replies": len(replies), "tokens": judge.spending().tokens._asdict(),
    }  # fmt: skip
    return answers, Readings(facts, pairs, calibration), settings


def begin_run(folder: Path, settings: AlpacaSettings) -> None:
    files = RunFolder(folder)
    inputs = {} if files.has_begun else _inputs(settings)

    def prepare() -> None:
        for name, data in inputs.items():
            write_whole(folder / name, data)

    hashes = settings.hashes(settings.all_systems)
    files.begin(asdict(settings), may_change=MAY_CHANGE, inputs=hashes, prepare=prepare)


def _inputs(settings: AlpacaSettings) -> dict[str, bytes]:
    prompts, judge = read_instructions(settings.instructions, settings.limit), settings.judge
    rows = [{"id": item.id, "dataset": item.group, "instruction": item.text} for item in prompts]
    if settings.reference is not None:
        name, outputs = read_reference(settings.reference)
        if lacking := [item.id for item in prompts if item.text not in outputs]:
            answers = f"{len(lacking)} instructions, such as {lacking[0]}"
            raise InputError(f"{settings.reference} has no answer to {answers}")
        for row, item in zip(rows, prompts, strict=True):
            row |= {"output": outputs[item.text], "generator": name}
    files = {INSTRUCTIONS: b"".join(map(line_of, rows))}
    judging.load_template(judge.template)
    is_file = judge.template.endswith(".md")
    template = judge.template if is_file else str(judging.FOLDER / judge.page)
    copies = {DIFFICULTY: settings.difficulty, GAMED: settings.gamed, judge.page: template}
    for copy, source in copies.items():
        try:
            files |= {copy: Path(source).read_bytes()} if source else {}
        except OSError as exc:
            raise InputError(f"{source} cannot be read: {cause(exc)}") from exc
    return files


# --- the report


def judgements_of(answers: AlpacaAnswers, readings: Readings, system: str) -> list[Judgement]:
    """Return the verdicts on a system's answers by instruction.

    A preference, from 0 to 1, is the mean over both orders; without a verdict in one of them there
    is none.
    """
    names, judgements = (readings.judge["name"], answers.baseline), list[Judgement]()
    rows = zip(answers.pairs(system), readings.pairs[system], strict=True)
    for row, (pair, both) in enumerate(rows):
        wins = _both_wins(both)
        preference = (wins[0] + 1 - wins[1]) / 2 if wins else pair.preference
        judgements.append(Judgement(system, row, preference, *pair.lengths, *names))
    return judgements


def _both_wins(both: BothOrders) -> tuple[float, float] | None:
    first, second = (reading.first_wins for reading in both) if both else (None, None)
    return None if first is None or second is None else (first, second)


def alpaca_report(
    answers: AlpacaAnswers, readings: Readings | None, settings: AlpacaSettings, *,
    allow_missing: bool = False,
) -> Report:  # fmt: skip
    systems = systems_of(answers.rows.items())
    report = Report("Answers to instructions: quality and speed", [*MEANING])
    report.add((), _head(answers, readings, settings))
    for name in (system.name for system in settings.all_systems):
        path: KeyPath = ("systems", name)
        if readings is not None:
            judgements = judgements_of(answers, readings, name)
            rates = win_rates.Rates(judgements, readings.calibration, allow_missing)
            ids = [prompt.id for prompt in answers.prompts]
            pairs = zip(ids, readings.pairs[name], strict=True)
            named = ((key, reading) for key, both in pairs for reading in both)
            problems = judging.missing_to_json(judging.missing_verdicts(named), "instructions")
            report.add(path, {"problems": problems})
            for problem, missing in problems.items():
                of = f"{missing['count']} comparisons, of {', '.join(missing['instructions'])}"
                report.note(path, f"No verdict, {problem}: {of}")
            if readings.judge["is_scripted"]:
                label = f"pipeline check, n = {len(rates.wins)}"
                report.add(path, {"pipeline_check": label})
                report.note(path, label)
            else:
                _add_rates(report, path, rates, ids)
                _add_orders(report, path, readings.pairs[name])
        add_speed(report, path, systems[name], systems[SEQUENTIAL])
        rows, made = answers.of(name).values(), dict[str, str]()
        for key in PROVENANCE:
            values = (str(row.get(key) or "not recorded") for row in rows)
            made[key] = " and ".join(dict.fromkeys(values))
        report.add(path, {"provenance": made})
        report.note(path, "; ".join(f"{key}: {value}" for key, value in made.items()))
    return report


def _head(answers: AlpacaAnswers, readings: Readings | None, settings: AlpacaSettings) -> Figures:
    judge, num = None if readings is None else readings.judge, len(answers.prompts)
    is_comparable, label = None, "nobody judged: no win rates"
    if judge and judge["is_scripted"]:
        is_comparable = False
        label = "pipeline check: the judge is scripted, so there are no win rates"
    elif judge:
        known, names = settings.difficulty is not None, (judge["name"], answers.baseline)
        is_comparable, label = win_rates.comparability(*names, num, has_difficulty=known)
    return {
        "instructions": settings.instructions, "num_instructions": num,
        "max_tokens": settings.max_tokens, "baseline": answers.baseline,
        "speed_baseline": SEQUENTIAL, "judge": judge, "is_comparable": is_comparable,
        "comparability": label,
    }  # fmt: skip


def _add_rates(report: Report, path: KeyPath, rates: win_rates.Rates, ids: Sequence[str]) -> None:
    figures, wins = rates.figures(ids), rates.wins
    if (bounds := rates.interval()) is not None:
        figures["length_controlled_interval"] = bounds
    if not rates.is_refused:
        figures["win_rate_interval"] = mean([*wins])
    nums = {"win_rate_missing_lost": len(rates.judgements)}
    report.add(path, figures, TITLES, len(wins), nums)
    report.note(path, figures.get("refused", ""))


def _add_orders(report: Report, path: KeyPath, readings: Sequence[BothOrders]) -> None:
    """Add how far both orders agree: they reveal a judge that favours the first answer."""
    whole = [both for both in map(_both_wins, readings) if both]
    share = round(fmean((a + b) / 2 for a, b in whole), 5) if whole else None
    agreed = round(fmean(judging.same_winner(a, b) for a, b in whole), 5) if whole else None
    report.add(path, {"first_place_share": share, "order_agreement": agreed})
    if whole:
        report.note(path, f"Both orders agree on {agreed:.1%}; the first answer gets {share:.1%}")
