"""The report of an ``alpaca`` run, computed from its folder alone.

A scripted judge has no win rate, because its verdicts follow from the script; the report has the
note "pipeline check" instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Row, line_of, write_json, write_whole
from pasta_lm.learn.judge.judge import same_winner
from pasta_lm.learn.judge.llm_judge import LLMJudge, Outcome, missing_to_json, missing_verdicts
from pasta_lm.measure.alpaca import AlpacaRun
from pasta_lm.measure.length_control import Judgement, interval
from pasta_lm.measure.speed import Systems, add_speed, answer_of
from pasta_lm.measure.table import Figures, Interval, Place, Report, mean
from pasta_lm.measure.win_rates import WinRates, comparability, plain_rates, win_rates
from pasta_lm.strategies import sequential

PROVENANCE = ("model", "strategy", "engine", "positions", "hardware", "dtype", "commit", "version")
JUDGEMENTS, OUTPUTS = "judgements.jsonl", "alpaca_eval"
TITLES = {
    "length_controlled_interval": "length-controlled win rate, %",
    "win_rate_interval": "win rate, %",
    "win_rate_missing_lost": "win rate, missing verdicts lost, %",
}
GROUP_TITLES = {"length_controlled_winrate": "length-controlled win rate, %", **TITLES}
MEANING = (
    "speedups: over the speed baseline's own answer to the same prompt, decoded by the same engine "
    "on the same machine",
    "win rate: the mean preference over both orders; equal answers are a draw; the interval of the "
    "length-controlled one fits every draw again",
)


class Judged(NamedTuple):
    """The verdicts on a system's answers, in the order of the instructions."""

    judge: LLMJudge
    outcomes: list[list[Outcome]]  # of both orders; empty where no verdict is needed
    judgements: list[Judgement]


def judged(run: AlpacaRun, judge: LLMJudge, system: str) -> Judged:
    """Read a system's verdicts as preferences from 0 to 1: the mean over both orders.

    Equal answers are a draw, a failed answer is a loss; without a verdict in one order there is no
    preference.
    """
    pairs, (baseline, _) = run.pairs(system), run.opponent()
    outcomes = [judge.ask(pair.comparisons()) for pair in pairs]
    judgements = []
    for row, (pair, both) in enumerate(zip(pairs, outcomes, strict=True)):
        preference = pair.known_preference()
        wins = [outcome.reading.first_wins for outcome in both]
        if wins and wins[0] is not None and wins[1] is not None:
            preference = (wins[0] + 1 - wins[1]) / 2
        lengths = len(pair.theirs or ""), len(pair.ours["text"] if pair.ours else "")
        judgements.append(Judgement(system, row, preference, *lengths, judge.name, baseline))
    return Judged(judge, outcomes, judgements)


def alpaca_report(run: AlpacaRun, *, allow_missing: bool = False) -> Report:
    """Compute the report of a run; win rates with missing verdicts only if that is allowed."""
    judge, answers, groups = run.judge(), _answers(run), _groups(run)
    report, base = _empty_report(run, judge), answers[sequential.NAME]
    for name, ours in answers.items():
        place: Place = ("systems", name)
        verdicts = judged(run, judge, name) if judge else None
        rates = _add_rates(report, place, run, verdicts, allow_missing) if verdicts else None
        add_speed(report, place, ours, base)
        report.add(place, {"datasets": {}})
        for group, rows in groups.items():
            inner, keys = (*place, "datasets", group), {run.prompts[row].id for row in rows}
            if verdicts and rates and not rates.refused:
                _add_rates_of_group(report, inner, verdicts, rates, rows)
            own, others = ({k: v for k, v in side.items() if k in keys} for side in (ours, base))
            add_speed(report, inner, own, others)
        made = _provenance([*run.rows(name).values()])
        report.add(place, {"provenance": made})
        origin = made | {
            "Judge": judge.model if judge else "none",
            "template": judge.template.name if judge else "none",
            "baseline": f"{run.opponent()[0]} (speed: {sequential.NAME})",
        }
        report.note(place, "; ".join(f"{key}: {value}" for key, value in origin.items()))
    return report


def refused(report: Report) -> dict[str, str]:
    """Return by system the reason why it has no win rate."""
    return {row.place[1]: str(row.value) for row in report.rows if row.key == "refused"}


def _empty_report(run: AlpacaRun, judge: LLMJudge | None) -> Report:
    settings, num, baseline = run.settings, len(run.prompts), run.opponent()[0]
    is_comparable, label = None, "nobody judged: no win rates"
    if judge and judge.is_scripted:
        is_comparable = False
        label = "pipeline check: the judge is scripted, so there are no win rates"
    elif judge:
        has_difficulty = settings.difficulty is not None
        is_comparable, label = comparability(
            judge.name, baseline, num, has_difficulty=has_difficulty
        )
    facts = [label, f"instructions: {num} of {settings.instructions}"]
    facts.append(f"answers: greedy, {settings.max_tokens} tokens at most")
    figures = _judge_figures(run, judge) if judge else None
    report = Report(
        "Answers to instructions: quality and speed",
        [*facts, *(_judge_facts(figures) if figures else []), *MEANING],
    )
    head = {
        "instructions": settings.instructions,
        "num_instructions": num,
        "max_tokens": settings.max_tokens,
        "baseline": baseline,
        "speed_baseline": sequential.NAME,
        "judge": figures,
        "is_comparable": is_comparable,
        "comparability": label,
    }
    report.add((), head)
    return report


def _answers(run: AlpacaRun) -> Systems:
    systems: Systems = {}
    for name, _, _ in run.settings.all_systems:
        systems[name] = {key: answer_of(row) for key, row in run.rows(name).items()}
        if not systems[name]:
            raise InputError(
                f"{run.folder}: no answers of {name} yet",
                hint="run the same command again: it continues where it stopped",
            )
    return systems


def _groups(run: AlpacaRun) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for row, prompt in enumerate(run.prompts):
        groups.setdefault(prompt.group or "unnamed", []).append(row)
    return groups if len(groups) > 1 else {}


def _provenance(rows: Sequence[Row]) -> dict[str, str]:
    return {
        key: " and ".join(dict.fromkeys(str(row.get(key) or "not recorded") for row in rows))
        for key in PROVENANCE
    }


# --- win rates


def _add_rates(
    report: Report, place: Place, run: AlpacaRun, verdicts: Judged, allow_missing: bool
) -> WinRates | None:
    judge, outcomes, judgements = verdicts
    names = [prompt.id for prompt in run.prompts]
    each = ((name, item) for name, both in zip(names, outcomes, strict=True) for item in both)
    problems = missing_to_json(missing_verdicts(each), "instructions")
    for problem, missing in problems.items():
        of = f"{missing['count']} comparisons, of {', '.join(missing['instructions'])}"
        report.note(place, f"No verdict, {problem}: {of}")
    if judge.is_scripted:
        label = f"pipeline check, n = {sum(row.preference is not None for row in judgements)}"
        report.add(place, {"pipeline_check": label, "problems": problems})
        report.note(place, label)
        return None
    calibration = run.calibration()
    rates = win_rates(judgements, calibration, allow_missing=allow_missing, names=names)
    figures = {**rates.to_dict(), "problems": problems}
    if rates.fit is not None:
        bounds = interval(judgements, calibration, rates.fit)
        figures["length_controlled_interval"] = bounds
    if rates.refused is None:
        figures["win_rate_interval"] = _mean_rate(judgements)
    num = rates.n_total
    nums = {"win_rate_missing_lost": num + rates.n_missing}
    report.add(place, figures, TITLES, num, nums)
    report.note(place, rates.refused or "")
    _add_orders(report, place, outcomes)
    return rates


def _add_orders(report: Report, place: Place, outcomes: list[list[Outcome]]) -> None:
    wins = [[outcome.reading.first_wins for outcome in both] for both in outcomes if both]
    whole = [(a, b) for a, b in wins if a is not None and b is not None]
    share = round(fmean((a + b) / 2 for a, b in whole), 5) if whole else None
    agreement = round(fmean(same_winner(a, b) for a, b in whole), 5) if whole else None
    report.add(place, {"first_place_share": share, "order_agreement": agreement})
    if whole:
        report.note(
            place, f"Both orders agree on {agreement:.1%}; the first answer gets {share:.1%}"
        )


def _add_rates_of_group(
    report: Report, place: Place, verdicts: Judged, rates: WinRates, rows: list[int]
) -> None:
    own = [verdicts.judgements[row] for row in rows]
    figures = plain_rates(own).to_dict() | {"win_rate_interval": _mean_rate(own)}
    if rates.fit is not None:
        figures["length_controlled_winrate"] = float(rates.fit.predictions[rows].mean())
    num = figures["n_total"]
    nums = {"win_rate_missing_lost": num + figures["n_missing"]}
    report.add(place, figures, GROUP_TITLES, num, nums)


def _mean_rate(judgements: Sequence[Judgement]) -> Interval | None:
    return mean([100 * entry.preference for entry in judgements if entry.preference is not None])


def _judge_figures(run: AlpacaRun, judge: LLMJudge) -> Figures:
    rows = judge.journal.rows.values()
    return {
        "name": judge.name,
        "model": judge.model,
        "url": run.settings.judge.base_url,
        "replied_as": dict(Counter(str(r["reply"].get("model") or "unnamed") for r in rows)),
        "template": judge.template.name,
        "template_sha256": judge.template.sha256,
        "method": judge.template.method.value,
        "is_scripted": judge.is_scripted,
        "num_replies": len(rows),
        "usage": judge.usage(),
    }


def _judge_facts(judge: Figures) -> list[str]:
    replied = ", ".join(f"{name} ({count})" for name, count in judge["replied_as"].items())
    return [
        f"judge: {judge['model']} at {judge['url']}, which replied as {replied or '-'}",
        f"template: {judge['template']}, {judge['template_sha256']}, {judge['method']}",
        f"stored replies: {judge['num_replies']}; {judge['usage']['prompt_tokens']} tokens read, "
        f"{judge['usage']['completion_tokens']} written",
    ]


# --- files


def write_outputs(run: AlpacaRun, report: Report) -> Path:
    """Write the report and files for AlpacaEval into the run's folder; return the report's page.

    ``alpaca_eval/SYSTEM.json`` is what AlpacaEval reads as a model's outputs,
    ``judgements.jsonl`` what ``pasta evaluate lc-winrate`` reads; a scripted judge has none.
    """
    systems, judge = [system.name for system in run.settings.all_systems], run.judge()
    try:
        if judge and not judge.is_scripted:
            rows = [row for name in systems for row in judged(run, judge, name).judgements]
            write_whole(run.folder / JUDGEMENTS, b"".join(line_of(_stored(row)) for row in rows))
        for name in systems:
            answers = run.rows(name)
            outputs = [
                {"dataset": item.group, "instruction": item.text, "generator": name}
                | {"output": answers[item.id]["text"]}
                for item in run.prompts
                if item.id in answers
            ]
            write_json(run.folder / OUTPUTS / f"{file_name(name)}.json", outputs)
        return report.write(run.folder)
    except OSError as exc:
        raise PastaError(f"{run.folder} cannot be written: {cause(exc)}") from exc


def _stored(judgement: Judgement) -> Row:
    preference = judgement.preference
    return judgement._asdict() | {"preference": None if preference is None else 1 + preference}


def file_name(system: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", system)
