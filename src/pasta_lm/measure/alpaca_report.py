"""The report of an ``alpaca`` run, computed from its folder alone.

A scripted judge has no win rate, because its verdicts follow from the script; the report has the
note "pipeline check" instead.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Row, write_whole
from pasta_lm.learn.judge.judge import same_winner
from pasta_lm.learn.judge.llm_judge import LLMJudge, Outcome, missing_to_json, missing_verdicts
from pasta_lm.measure.alpaca import AlpacaRun, outcomes_of
from pasta_lm.measure.intervals import Interval, mean
from pasta_lm.measure.judgements import Judgement, alpaca_eval_rows
from pasta_lm.measure.speed import Systems, SystemSpeed, answer_of, speed_rows, speed_table
from pasta_lm.measure.table import (
    FIGURE_HEADER,
    Cells,
    Table,
    fields_of,
    figure_row,
    markdown,
    to_json,
)
from pasta_lm.measure.win_rates import (
    WinRates,
    comparability,
    fitted_of,
    interval,
    plain_rates,
    refusal,
    win_rates,
)

TIE = 0.5
PROVENANCE = ("model", "strategy", "engine", "positions", "hardware", "dtype", "commit", "version")
REPORT, PAGE, JUDGEMENTS, OUTPUTS = "report.json", "report.md", "judgements.jsonl", "alpaca_eval"
MEANING = (
    "Speedups are over the speed baseline's own answer to the same prompt, decoded by the same "
    "engine on the same machine: geometric means, percentile bootstrap over prompts. A win rate is "
    "the mean preference over both orders; equal answers are a draw. The interval of the "
    "length-controlled one fits every draw again. Every number is computed from this folder: "
    "`pasta evaluate alpaca --out FOLDER --offline`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The judged figures of one system."""

    rates: WinRates | None = None
    pipeline_check: str | None = None
    """Instead of rates, if the judge is scripted."""
    problems: dict[str, Any] = field(default_factory=dict)
    """Comparisons without a verdict, by reason."""
    first_place_share: float | None = None
    """How often the answer that is read first wins; 0.5 is fair."""
    order_agreement: float | None = None
    win_rate_interval: Interval | None = None
    length_controlled_interval: Interval | None = None
    judgements: Sequence[Judgement] = ()
    predictions: Sequence[float] = ()
    """Of the length-controlled fit, by row."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        if self.rates is None:
            return {"pipeline_check": self.pipeline_check, "problems": self.problems}
        bounds = {
            "win_rate_interval": self.win_rate_interval,
            "length_controlled_interval": self.length_controlled_interval,
        }
        return {
            **self.rates.to_dict(),
            "problems": self.problems,
            "first_place_share": self.first_place_share,
            "order_agreement": self.order_agreement,
            **{key: to_json(one) for key, one in bounds.items() if one is not None},
        }

    def rows(self) -> list[Cells]:
        """Return the rows of a table."""
        rates = self.rates
        if rates is None or rates.win_rate is None:
            return []
        controlled = self.length_controlled_interval or rates.length_controlled_winrate
        rows = [
            figure_row("length-controlled win rate, %", controlled, rates.n_total),
            figure_row("win rate, %", self.win_rate_interval, rates.n_total),
        ]
        if rates.n_missing:
            num, lost = rates.n_total + rates.n_missing, rates.win_rate_missing_lost
            rows.append(figure_row("win rate, missing verdicts lost, %", lost, num))
        return rows

    def notes(self) -> list[str]:
        """Return the footnotes of a table."""
        notes = [self.pipeline_check, self.rates and self.rates.refused]
        for problem, found in self.problems.items():
            names = ", ".join(found["instructions"])
            notes.append(f"No verdict, {problem}: {found['count']} comparisons, of {names}")
        if self.order_agreement is not None:
            notes.append(
                f"Both orders agree on {self.order_agreement:.1%}; the first answer gets "
                f"{self.first_place_share:.1%}"
            )
        return [note for note in notes if note]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReport:
    """The figures of one system, over all instructions or those of one data set."""

    judged: Judged | None
    speed: SystemSpeed
    provenance: dict[str, str] = field(default_factory=dict)
    datasets: dict[str, SystemReport] = field(default_factory=dict)
    """Empty if there is one data set."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        return {
            **(self.judged.to_dict() if self.judged else {}),
            **fields_of(self.speed),
            "datasets": {name: one.to_dict() for name, one in self.datasets.items()},
            "provenance": self.provenance,
        }

    def table(self, title: str, facts: str, *, is_baseline: bool) -> Table:
        """Return the figures as a table."""
        rows = [*(self.judged.rows() if self.judged else ())]
        rows += speed_rows(self.speed, is_baseline=is_baseline)
        notes = [facts, self.speed.incomparable, *(self.judged.notes() if self.judged else ())]
        return Table(FIGURE_HEADER, rows, title, "\n\n".join(note for note in notes if note))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaReport:
    """The report of a run."""

    instructions: str
    num_instructions: int
    max_tokens: int
    baseline: str
    speed_baseline: str
    judge: dict[str, Any] | None
    is_comparable: bool | None
    """With AlpacaEval's leaderboard; None: nothing was judged."""
    comparability: str
    systems: dict[str, SystemReport]

    @property
    def refused(self) -> dict[str, str]:
        """Return why systems have no win rate."""
        rates = {name: one.judged and one.judged.rates for name, one in self.systems.items()}
        return {name: one.refused for name, one in rates.items() if one and one.refused}

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``pasta evaluate alpaca --json`` prints."""
        systems = {name: one.to_dict() for name, one in self.systems.items()}
        return fields_of(replace(self, systems={})) | {"systems": systems}

    def tables(self) -> list[Table]:
        """Return a table for each system, and for each of its data sets."""
        found = []
        for name, one in self.systems.items():
            is_baseline = name == self.speed_baseline
            found.append(one.table(name, self._facts(one), is_baseline=is_baseline))
            found += [
                own.table(f"{name}, {dataset}", "", is_baseline=is_baseline)
                for dataset, own in one.datasets.items()
            ]
        return found

    def _facts(self, one: SystemReport) -> str:
        judge = self.judge or {"model": "none", "template": "none"}
        facts = {
            "Judge": judge["model"],
            "template": judge["template"],
            "baseline": f"{self.baseline} (speed: {self.speed_baseline})",
            "kind": ", ".join(one.speed.kinds),
            **one.provenance,
        }
        return "; ".join(f"{key}: {value}" for key, value in facts.items()) + "."

    def markdown(self) -> str:
        """Return the report as a page."""
        facts = [
            self.comparability,
            f"instructions: {self.num_instructions} of {self.instructions}",
            f"answers: greedy, {self.max_tokens} tokens at most",
        ]
        if judge := self.judge:
            replied = ", ".join(f"{name} ({count})" for name, count in judge["replied_as"].items())
            facts += [
                f"judge: {judge['model']} at {judge['url']}, which replied as {replied or '-'}",
                f"template: {judge['template']}, {judge['template_sha256']}, {judge['method']}",
                f"stored replies: {judge['num_replies']}; {judge['usage']['prompt_tokens']} tokens "
                f"read, {judge['usage']['completion_tokens']} written",
            ]
        title = "Answers to instructions: quality and speed"
        return markdown(title, facts, self.tables(), MEANING)


def alpaca_report(run: AlpacaRun, *, allow_missing: bool = False) -> AlpacaReport:
    """Compute the report of a run.

    Args:
        run: An opened run.
        allow_missing: Whether win rates are given although verdicts are missing.

    Raises:
        InputError: a system has no answers yet.
    """
    settings, judge = run.settings, run.judge()
    answers = _answers(run)
    speeds = speed_table(answers, settings.baseline)
    systems = {}
    for name in (system.name for system in settings.systems):
        judged = _judged(run, judge, name, allow_missing) if judge else None
        systems[name] = SystemReport(
            judged=judged,
            speed=speeds[name],
            datasets=_datasets(run, answers, name, judged),
            provenance=_provenance([*run.rows(name).values()]),
        )
    is_comparable, label = _comparability(run, judge)
    return AlpacaReport(
        instructions=settings.instructions,
        num_instructions=len(run.instructions),
        max_tokens=settings.max_tokens,
        baseline=run.opponent()[0],
        speed_baseline=settings.baseline,
        judge=_judge_facts(run, judge) if judge else None,
        is_comparable=is_comparable,
        comparability=label,
        systems=systems,
    )


def _answers(run: AlpacaRun) -> Systems:
    found: Systems = {}
    for system in run.settings.systems:
        rows = run.rows(system.name)
        if not rows:
            raise InputError(
                f"{run.folder}: no answers of {system.name} yet",
                hint="run the same command again: it continues where it stopped",
            )
        found[system.name] = {name: answer_of(row) for name, row in rows.items()}
    return found


def judgements_of(run: AlpacaRun, judge: LLMJudge, system: str) -> list[Judgement]:
    """Return a system's verdicts in the order of the instructions, as preferences from 0 to 1.

    The mean over both orders. Equal answers are a draw, a failed answer is a loss; without a
    verdict in one order there is no preference.
    """
    ours, (baseline, theirs), failed = run.texts(system), run.opponent(), run.failed(system)
    outcomes = outcomes_of(run, judge, system)

    def preference(name: str) -> float | None:
        if name not in ours or name not in theirs:
            return None
        if ours[name] == theirs[name]:
            return TIE
        if name in failed:
            return 0.0
        first, second = (outcome.reading.first_wins for outcome in outcomes[name])
        return None if first is None or second is None else (first + 1 - second) / 2

    return [
        Judgement(
            model=system,
            row=one.row,
            preference=preference(one.id),
            len_1=len(theirs.get(one.id, "")),
            len_2=len(ours.get(one.id, "")),
            judge=judge.name,
            baseline=baseline,
        )
        for one in run.instructions
    ]


def _judged(run: AlpacaRun, judge: LLMJudge, system: str, allow_missing: bool) -> Judged:
    judgements = judgements_of(run, judge, system)
    outcomes = outcomes_of(run, judge, system)
    each = ((name, outcome) for name, pair in outcomes.items() for outcome in pair)
    problems = missing_to_json(missing_verdicts(each), "instructions")
    if judge.is_scripted:
        num = sum(one.preference is not None for one in judgements)
        return Judged(pipeline_check=f"pipeline check, n = {num}", problems=problems)
    calibration = run.calibration()
    rates = win_rates(judgements, calibration, allow_missing=allow_missing)
    share, agreement = _order_figures(outcomes)
    judged = Judged(
        rates=rates,
        problems=problems,
        first_place_share=share,
        order_agreement=agreement,
        judgements=judgements,
    )
    if rates.refused is not None:
        pairs = zip(run.instructions, judgements, strict=True)
        missing = [one.id for one, verdict in pairs if verdict.preference is None]
        return replace(judged, rates=replace(rates, refused=refusal(len(judgements), missing)))
    fitted = fitted_of(judgements, calibration)
    controlled = None
    if fitted is not None:
        bounds = interval(judgements, calibration.difficulty, calibration.gamed, fitted)
        controlled = Interval(fitted.win_rate, *bounds)
    return replace(
        judged,
        win_rate_interval=_mean_rate(judgements),
        length_controlled_interval=controlled,
        predictions=fitted.predictions if fitted else (),
    )


def _mean_rate(judgements: Sequence[Judgement]) -> Interval | None:
    return mean([100 * one.preference for one in judgements if one.preference is not None])


def _order_figures(
    outcomes: Mapping[str, Sequence[Outcome]],
) -> tuple[float | None, float | None]:
    """Return how often the first answer wins, and how often both orders agree."""
    pairs = [[outcome.reading.first_wins for outcome in pair] for pair in outcomes.values()]
    whole = [(a, b) for a, b in (pair for pair in pairs if pair) if a is not None and b is not None]
    if not whole:
        return None, None
    share = fmean((a + b) / 2 for a, b in whole)
    return round(share, 5), round(fmean(same_winner(a, b) for a, b in whole), 5)


def _comparability(run: AlpacaRun, judge: LLMJudge | None) -> tuple[bool | None, str]:
    if judge is None:
        return None, "nobody judged: no win rates"
    if judge.is_scripted:
        return False, "pipeline check: the judge is scripted, so there are no win rates"
    has_difficulty = run.settings.difficulty is not None
    num = len(run.instructions)
    return comparability(judge.name, run.opponent()[0], num, has_difficulty=has_difficulty)


def _judge_facts(run: AlpacaRun, judge: LLMJudge) -> dict[str, Any]:
    rows = judge.journal.rows.values()
    return {
        "name": judge.name,
        "model": judge.model,
        "url": run.settings.judge_url,
        "replied_as": dict(Counter(str(r["reply"].get("model") or "unnamed") for r in rows)),
        "template": judge.template.name,
        "template_sha256": judge.template.sha256,
        "method": judge.template.method.value,
        "is_scripted": judge.is_scripted,
        "num_replies": len(rows),
        "usage": judge.usage(),
    }


def _provenance(rows: Sequence[Row]) -> dict[str, str]:
    """Return where a system's answers were made; several places are all named."""
    return {
        key: " and ".join(dict.fromkeys(str(row.get(key) or "not recorded") for row in rows))
        for key in PROVENANCE
    }


def _datasets(
    run: AlpacaRun, answers: Systems, system: str, judged: Judged | None
) -> dict[str, SystemReport]:
    """Return the figures over the instructions of each data set, if there are several."""
    sources = dict.fromkeys(one.dataset for one in run.instructions)
    if len(sources) < 2:
        return {}
    baseline, found = run.settings.baseline, {}
    for source in sources:
        places = [place for place, one in enumerate(run.instructions) if one.dataset == source]
        names = {run.instructions[place].id for place in places}
        some = {
            name: {key: one for key, one in answers[name].items() if key in names}
            for name in (baseline, system)
        }
        speeds = speed_table(some, baseline)[system]
        own = _judged_places(judged, places) if judged else None
        found[source or "unnamed"] = SystemReport(judged=own, speed=speeds)
    return found


def _judged_places(judged: Judged, places: Sequence[int]) -> Judged | None:
    """Return the rates over some instructions; None if there are none."""
    if judged.rates is None or judged.rates.win_rate is None:
        return None
    some, predictions = [judged.judgements[place] for place in places], judged.predictions
    controlled = fmean(predictions[place] for place in places) if predictions else None
    plain = asdict(plain_rates(some))
    rates = WinRates(**plain, n_absent=None, length_controlled_winrate=controlled)
    return Judged(rates=rates, win_rate_interval=_mean_rate(some))


def write_outputs(run: AlpacaRun, report: AlpacaReport) -> None:
    """Write the report, its page and files for AlpacaEval into the run's folder.

    ``alpaca_eval/SYSTEM.json`` is what AlpacaEval reads as a model's outputs,
    ``judgements.jsonl`` what ``pasta evaluate lc-winrate`` reads; a scripted judge has none.

    Raises:
        PastaError: a file cannot be written.
    """
    systems, judge = [system.name for system in run.settings.systems], run.judge()
    texts = {REPORT: pretty(report.to_dict()), PAGE: report.markdown()}
    if judge and not judge.is_scripted:
        rows = [stored_row(one) for name in systems for one in judgements_of(run, judge, name)]
        texts[JUDGEMENTS] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for name in systems:
        answers = run.texts(name)
        asked = [one for one in run.instructions if one.id in answers]
        outputs = alpaca_eval_rows(asked, [answers[one.id] for one in asked], name)
        texts[f"{OUTPUTS}/{file_name(name)}.json"] = pretty(outputs)
    try:
        for file, text in texts.items():
            write_whole(run.folder / file, text.encode())
    except OSError as exc:
        raise PastaError(f"{run.folder} cannot be written: {cause(exc)}") from exc


def stored_row(judgement: Judgement) -> Row:
    """Return a verdict in the form that ``lc-winrate`` reads."""
    preference = judgement.preference
    return judgement._asdict() | {"preference": None if preference is None else 1 + preference}


def pretty(data: object) -> str:
    """Return JSON for files that people read."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def file_name(system: str) -> str:
    """Return a system's name as a file may be called."""
    return re.sub(r"[^\w.=-]+", "_", system)
