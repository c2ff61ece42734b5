"""The report of an ``alpaca`` run, computed from its folder alone.

A scripted judge has no win rate, because its verdicts follow from the script; the report has the
note "pipeline check" instead.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Row
from pasta_lm.learn.judge.judge import same_winner
from pasta_lm.learn.judge.llm_judge import LLMJudge, Outcome, missing_to_json, missing_verdicts
from pasta_lm.measure.alpaca import AlpacaRun, outcomes_of
from pasta_lm.measure.intervals import as_dict, mean
from pasta_lm.measure.judgements import Judgement, alpaca_eval_rows
from pasta_lm.measure.pages import alpaca_page
from pasta_lm.measure.speed import Systems, answer_of, speed_table
from pasta_lm.measure.win_rates import (
    comparability,
    fitted_of,
    interval,
    plain_figures,
    refusal,
    win_rate_figures,
)

Figures = dict[str, Any]
TIE = 0.5
PROVENANCE = ("model", "strategy", "engine", "positions", "hardware", "dtype", "commit", "version")
REPORT, PAGE, JUDGEMENTS, OUTPUTS = "report.json", "report.md", "judgements.jsonl", "alpaca_eval"


class Judged(NamedTuple):
    """The judged figures of one system, and what its data sets' figures are computed from."""

    figures: Figures
    judgements: Sequence[Judgement] = ()
    predictions: Sequence[float] = ()
    """Of the length-controlled fit, by row."""


def alpaca_report(run: AlpacaRun, *, allow_missing: bool = False) -> Figures:
    """Return the object that ``pasta evaluate alpaca --json`` prints.

    Args:
        run: An opened run.
        allow_missing: Whether win rates are given although verdicts are missing.

    Raises:
        InputError: a system has no answers yet.
    """
    settings, judge = run.settings, run.judge()
    timed = _answers(run)
    speeds = speed_table(timed, settings.baseline)
    systems = {}
    for name in (system.name for system in settings.systems):
        judged = _judged(run, judge, name, allow_missing)
        systems[name] = {
            **judged.figures,
            **speeds[name],
            "datasets": _datasets(run, timed, name, judged),
            "provenance": _provenance(run.rows(name).values()),
        }
    return {
        "instructions": settings.instructions,
        "num_instructions": len(run.instructions),
        "max_tokens": settings.max_tokens,
        "baseline": run.opponent()[0],
        "speed_baseline": settings.baseline,
        **_judge_figures(run, judge),
        "systems": systems,
    }


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


def stored_row(judgement: Judgement) -> Row:
    """Return a verdict in the form that ``lc-winrate`` reads."""
    preference = judgement.preference
    return judgement._asdict() | {"preference": None if preference is None else 1 + preference}


def _judged(run: AlpacaRun, judge: LLMJudge | None, system: str, allow_missing: bool) -> Judged:
    if judge is None:
        return Judged({})
    judgements = judgements_of(run, judge, system)
    outcomes = outcomes_of(run, judge, system)
    each = ((name, outcome) for name, pair in outcomes.items() for outcome in pair)
    problems = missing_to_json(missing_verdicts(each), "instructions")
    given = [100 * one.preference for one in judgements if one.preference is not None]
    if judge.is_scripted:
        check = f"pipeline check, n = {len(given)}"
        return Judged({"pipeline_check": check, "problems": problems})
    calibration = run.calibration()
    figures = win_rate_figures(judgements, calibration, allow_missing=allow_missing)
    figures |= {"problems": problems, **_order_figures(outcomes)}
    if "refused" in figures:
        pairs = zip(run.instructions, judgements, strict=True)
        missing = [one.id for one, judged in pairs if judged.preference is None]
        figures["refused"] = refusal(len(judgements), missing)
        return Judged(figures, judgements)
    figures["win_rate_interval"] = as_dict(mean(given))
    fitted = fitted_of(judgements, calibration)
    if fitted is None:
        return Judged(figures, judgements)
    low, high = interval(judgements, calibration.difficulty, calibration.gamed, fitted)
    bounds = {"mean": fitted.win_rate, "low": low, "high": high}
    figures["length_controlled_interval"] = {key: round(one, 5) for key, one in bounds.items()}
    return Judged(figures, judgements, fitted.predictions)


def _order_figures(outcomes: Mapping[str, Sequence[Outcome]]) -> Figures:
    """Return how far the judge favours the answer that it reads first."""
    pairs = [[outcome.reading.first_wins for outcome in pair] for pair in outcomes.values()]
    whole = [(a, b) for a, b in (pair for pair in pairs if pair) if a is not None and b is not None]
    if not whole:
        return {"first_place_share": None, "order_agreement": None}
    return {
        "first_place_share": round(fmean((a + b) / 2 for a, b in whole), 5),
        "order_agreement": round(fmean(same_winner(a, b) for a, b in whole), 5),
    }


def _judge_figures(run: AlpacaRun, judge: LLMJudge | None) -> Figures:
    """Return who judged, and whether the result is comparable with the leaderboard."""
    if judge is None:
        return {"judge": None, "comparability": "nobody judged: no win rates"}
    has_difficulty = run.settings.difficulty is not None
    verdict = comparability(
        judge.name, run.opponent()[0], len(run.instructions), has_difficulty=has_difficulty
    )
    if judge.is_scripted:
        said = "pipeline check: the judge is scripted, so there are no win rates"
        verdict = verdict._replace(is_comparable=False, label=said)
    rows = judge.journal.rows.values()
    return {
        "judge": {
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
        },
        "is_comparable": verdict.is_comparable,
        "comparability": verdict.label,
    }


def _provenance(rows: Any) -> dict[str, str]:
    """Return where a system's answers were made; several places are all named."""
    return {
        key: " and ".join(dict.fromkeys(str(row.get(key) or "not recorded") for row in rows))
        for key in PROVENANCE
    }


def _datasets(run: AlpacaRun, timed: Systems, system: str, judged: Judged) -> Figures:
    """Return the main figures over the instructions of each data set, if there are several."""
    sources = dict.fromkeys(one.dataset for one in run.instructions)
    if len(sources) < 2:
        return {}
    return {name or "unnamed": _dataset(run, timed, system, judged, name) for name in sources}


def _dataset(run: AlpacaRun, timed: Systems, system: str, judged: Judged, dataset: str) -> Figures:
    places = [place for place, one in enumerate(run.instructions) if one.dataset == dataset]
    names = {run.instructions[place].id for place in places}
    baseline = run.settings.baseline
    some = {
        name: {key: one for key, one in timed[name].items() if key in names}
        for name in (baseline, system)
    }
    found = speed_table(some, baseline)[system]
    if judged.figures.get("win_rate") is not None:
        judgements = [judged.judgements[place] for place in places]
        given = [100 * one.preference for one in judgements if one.preference is not None]
        found |= plain_figures(judgements) | {"win_rate_interval": as_dict(mean(given))}
        if judged.predictions:
            predicted = fmean(judged.predictions[place] for place in places)
            found["length_controlled_winrate"] = predicted
    return found


def write_outputs(run: AlpacaRun, report: Figures) -> None:
    """Write the report, its page and files for AlpacaEval into the run's folder.

    ``alpaca_eval/SYSTEM.json`` is what AlpacaEval reads as a model's outputs,
    ``judgements.jsonl`` what ``pasta evaluate lc-winrate`` reads; a scripted judge has none.

    Raises:
        PastaError: a file cannot be written.
    """
    systems, judge = [system.name for system in run.settings.systems], run.judge()
    texts = {
        REPORT: json.dumps(report, indent=1, ensure_ascii=False) + "\n",
        PAGE: alpaca_page(report),
    }
    if judge and not judge.is_scripted:
        rows = [stored_row(one) for name in systems for one in judgements_of(run, judge, name)]
        texts[JUDGEMENTS] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for name in systems:
        answers = run.texts(name)
        asked = [one for one in run.instructions if one.id in answers]
        outputs = alpaca_eval_rows(asked, [answers[one.id] for one in asked], name)
        file = f"{OUTPUTS}/{file_name(name)}.json"
        texts[file] = json.dumps(outputs, indent=1, ensure_ascii=False) + "\n"
    for file, text in texts.items():
        try:
            (run.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (run.folder / file).write_text(text, "utf-8")
        except OSError as exc:
            raise PastaError(f"{run.folder / file} cannot be written: {cause(exc)}") from exc


def file_name(system: str) -> str:
    """Return a system's name as a file may be called."""
    return re.sub(r"[^\w.=-]+", "_", system)
