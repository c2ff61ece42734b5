"""The figures of an evaluation on instructions, computed from its folder alone.

A scripted judge has no win rate: what it says was known before. Its place is taken by the note
"pipeline check", which nobody can mistake for a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pasta_lm.errors import InputError
from pasta_lm.evaluate.alpaca_run import AlpacaRun, outcomes_of
from pasta_lm.evaluate.comparability import comparability
from pasta_lm.evaluate.instruction_answers import answer_id
from pasta_lm.evaluate.intervals import mean
from pasta_lm.evaluate.judgements import Judgement
from pasta_lm.evaluate.length_control import interval
from pasta_lm.evaluate.quality import as_dict
from pasta_lm.evaluate.speed_table import speed_table
from pasta_lm.evaluate.timings import Systems, timing_of
from pasta_lm.evaluate.win_rates import (
    fitted_of,
    plain_figures,
    refusal,
    win_rate_figures,
)
from pasta_lm.journal import Row
from pasta_lm.judging.llm_judge import LLMJudge, Outcome, missing_to_json, missing_verdicts

Figures = dict[str, Any]
TIE = 0.5
PROVENANCE = ("model", "strategy", "engine", "positions", "hardware", "dtype", "commit", "version")


def alpaca_report(run: AlpacaRun, *, allow_missing: bool = False) -> Figures:
    """Return the object that ``pasta evaluate alpaca --json`` prints.

    Args:
        run: An opened run; nothing is asked of anybody.
        allow_missing: Give win rates although verdicts are missing.

    Raises:
        InputError: a system has no answers yet.
    """
    judge = run.judge()
    judged = {
        system.name: _judged(run, judge, system.name, allow_missing)
        for system in run.settings.systems
    }
    timed = _timings(run)
    speeds = speed_table(timed, run.settings.baseline)
    systems = {
        name: {
            **figures,
            **speeds[name],
            "datasets": _datasets(run, timed, name, judged[name]),
            "provenance": _provenance(_rows(run, name)),
        }
        for name, figures in ((name, _public(figures)) for name, figures in judged.items())
    }
    return {
        "instructions": run.settings.instructions,
        "num_instructions": len(run.instructions),
        "max_tokens": run.settings.max_tokens,
        "baseline": run.opponent()[0],
        "speed_baseline": run.settings.baseline,
        **_judge_figures(run, judge),
        "systems": systems,
    }


def judgements_of(run: AlpacaRun, judge: LLMJudge, system: str) -> list[Judgement]:
    """Return a system's verdicts in the order of the instructions, ours from 0 to 1.

    The mean of both orders; equal answers are a draw; of what one order lacks there is no verdict.
    """
    ours, (baseline, theirs) = run.texts(system), run.opponent()
    outcomes = outcomes_of(run, judge, system)
    return [
        Judgement(
            model=system,
            row=one.row,
            preference=_preference(ours.get(one.id), theirs.get(one.id), outcomes[one.id]),
            len_1=len(theirs.get(one.id, "")),
            len_2=len(ours.get(one.id, "")),
            judge=judge.name,
            baseline=baseline,
        )
        for one in run.instructions
    ]


def stored_row(judgement: Judgement) -> Row:
    """Return a verdict in the form that ``lc-winrate`` reads."""
    row = judgement._asdict()
    preference = row["preference"]
    return row | {"preference": None if preference is None else 1 + preference}


def _preference(ours: str | None, theirs: str | None, outcomes: Sequence[Outcome]) -> float | None:
    if ours is None or theirs is None:
        return None
    if ours == theirs:
        return TIE
    first, second = (outcome.reading.first_wins for outcome in outcomes)
    return None if first is None or second is None else (first + 1 - second) / 2


def _judged(
    run: AlpacaRun, judge: LLMJudge | None, system: str, allow_missing: bool
) -> dict[str, Any]:
    """Return what was judged of a system; keys that begin with an underscore stay here."""
    if judge is None:
        return {}
    judgements = judgements_of(run, judge, system)
    outcomes = outcomes_of(run, judge, system)
    count = sum(one.preference is not None for one in judgements)
    each = ((name, outcome) for name, pair in outcomes.items() for outcome in pair)
    problems = missing_to_json(missing_verdicts(each), "instructions")
    if judge.is_scripted:
        return {"pipeline_check": f"pipeline check, n = {count}", "problems": problems}
    calibration = run.calibration()
    figures = win_rate_figures(judgements, calibration, allow_missing=allow_missing)
    figures |= {"problems": problems, **_agreement(outcomes), "_judgements": judgements}
    given = [100 * one.preference for one in judgements if one.preference is not None]
    if "refused" in figures:
        figures["refused"] = refusal(len(judgements), _missing(run, judgements))
        return figures
    fitted = fitted_of(judgements, calibration)
    figures["win_rate_interval"] = as_dict(mean(given))
    if fitted:
        bounds = interval(judgements, calibration.difficulty, calibration.gamed, fitted)
        names = ("mean", "low", "high")
        figures["length_controlled_interval"] = {
            name: round(value, 5)
            for name, value in zip(names, (fitted.win_rate, *bounds), strict=True)
        }
        figures["_predictions"] = fitted.predictions
    return figures


def _public(figures: Mapping[str, Any]) -> Figures:
    return {key: value for key, value in figures.items() if not key.startswith("_")}


def _missing(run: AlpacaRun, judgements: Sequence[Judgement]) -> list[str]:
    """Return the ids of instructions without a verdict."""
    pairs = zip(run.instructions, judgements, strict=True)
    return [one.id for one, judged in pairs if judged.preference is None]


def _agreement(outcomes: Mapping[str, Sequence[Outcome]]) -> Figures:
    """Return how far the judge favours a place: what it gives whoever stands first."""
    pairs = [[outcome.reading.first_wins for outcome in pair] for pair in outcomes.values()]
    whole = [(a, b) for a, b in (pair for pair in pairs if pair) if a is not None and b is not None]
    return {
        "first_place_share": round(fmean((a + b) / 2 for a, b in whole), 5) if whole else None,
        "order_agreement": (
            round(fmean((a - TIE) * (b - TIE) <= 0 for a, b in whole), 5) if whole else None
        ),
    }


def _judge_figures(run: AlpacaRun, judge: LLMJudge | None) -> Figures:
    """Return who judged, and what the result may be held against."""
    if judge is None:
        return {"judge": None, "comparability": "nobody judged: no win rates"}
    baseline, _ = run.opponent()
    has_difficulty = run.settings.difficulty is not None
    verdict = comparability(
        judge.name, baseline, len(run.instructions), has_difficulty=has_difficulty
    )
    replied = Counter(
        str(row["reply"].get("model") or "unnamed") for row in judge.journal.rows.values()
    )
    return {
        "judge": {
            "name": judge.name,
            "model": judge.model,
            "url": run.settings.judge_url,
            "replied_as": dict(replied),
            "template": judge.template.name,
            "template_sha256": judge.template.sha256,
            "method": judge.template.method.value,
            "is_scripted": judge.is_scripted,
            "num_replies": len(judge.journal.rows),
            "usage": judge.usage(),
        },
        "is_comparable": False if judge.is_scripted else verdict.is_comparable,
        "comparability": (
            "pipeline check: the judge is scripted, so there are no win rates"
            if judge.is_scripted
            else verdict.label
        ),
    }


def _rows(run: AlpacaRun, system: str) -> list[Row]:
    rows = run.answers.rows
    keys = [answer_id(system, one.id) for one in run.instructions]
    return [rows[key] for key in keys if key in rows]


def _timings(run: AlpacaRun) -> Systems:
    systems: Systems = {}
    for system in run.settings.systems:
        rows = _rows(run, system.name)
        if not rows:
            raise InputError(
                f"{run.folder}: no answers of {system.name} yet",
                hint="run the same command again: it goes on where it stopped",
            )
        systems[system.name] = {row["instruction_id"]: timing_of(row) for row in rows}
    return systems


def _provenance(rows: Sequence[Row]) -> dict[str, str]:
    """Return where a system's answers were made; several places are all named."""
    return {
        key: " and ".join(dict.fromkeys(str(row.get(key) or "not recorded") for row in rows))
        for key in PROVENANCE
    }


def _datasets(run: AlpacaRun, timed: Systems, system: str, figures: Mapping[str, Any]) -> Figures:
    """Return the main figures over the instructions of each source."""
    sources = dict.fromkeys(one.dataset for one in run.instructions)
    if len(sources) < 2:
        return {}
    return {name or "unnamed": _dataset(run, timed, system, figures, name) for name in sources}


def _dataset(
    run: AlpacaRun, timed: Systems, system: str, figures: Mapping[str, Any], dataset: str
) -> Figures:
    inside = [one.dataset == dataset for one in run.instructions]
    names = {one.id for one, is_in in zip(run.instructions, inside, strict=True) if is_in}
    base = run.settings.baseline
    some = {
        name: {key: one for key, one in timed[name].items() if key in names}
        for name in dict.fromkeys((base, system))
    }
    found = speed_table(some, base)[system]
    if figures.get("win_rate") is not None:
        found |= _of_some([*figures["_judgements"]], inside)
        predictions = figures.get("_predictions") or ()
        if predictions:
            kept = [p for p, is_in in zip(predictions, inside, strict=True) if is_in]
            found["length_controlled_winrate"] = fmean(kept)
    return found


def _of_some(judgements: Sequence[Judgement], inside: Sequence[bool]) -> Figures:
    some = [one for one, is_in in zip(judgements, inside, strict=True) if is_in]
    given = [100 * one.preference for one in some if one.preference is not None]
    return plain_figures(some) | {"win_rate_interval": as_dict(mean(given))}
