"""The report of an ``alpaca`` run, computed from its folder alone.

A scripted judge has no win rate, because its verdicts follow from the script; the report has the
note "pipeline check" instead.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import line_of, write_json, write_whole
from pasta_lm.learn.judge.judge import Reading, same_winner
from pasta_lm.learn.judge.llm_judge import LLMJudge, missing_to_json, missing_verdicts
from pasta_lm.measure.alpaca import AlpacaRun
from pasta_lm.measure.length_control import Judgement, interval
from pasta_lm.measure.speed import add_speed, systems_of
from pasta_lm.measure.table import Figures, Place, Report, mean
from pasta_lm.measure.win_rates import comparability, win_rates
from pasta_lm.strategies import sequential

PROVENANCE = ("model", "strategy", "engine", "positions", "hardware", "dtype", "commit", "version")
JUDGEMENTS, OUTPUTS = "judgements.jsonl", "alpaca_eval"
TITLES = {
    "length_controlled_interval": "length-controlled win rate, %",
    "win_rate_interval": "win rate, %",
    "win_rate_missing_lost": "win rate, missing verdicts lost, %",
}
MEANING = (
    "speedups: over the speed baseline's own answer to the same prompt, decoded by the same engine "
    "on the same machine",
    "win rate: the mean preference over both orders; equal answers are a draw; the interval of the "
    "length-controlled one fits every draw again",
)


class Judged(NamedTuple):
    """The verdicts on a system's answers, in the order of the instructions."""

    outcomes: list[list[Reading]]  # of both orders; empty where no verdict is needed
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
        wins = [reading.first_wins for reading in both]
        if wins and wins[0] is not None and wins[1] is not None:
            preference = (wins[0] + 1 - wins[1]) / 2
        lengths = len(pair.theirs or ""), len(pair.ours["text"] if pair.ours else "")
        judgements.append(Judgement(system, row, preference, *lengths, judge.name, baseline))
    return Judged(outcomes, judgements)


def alpaca_report(run: AlpacaRun, *, allow_missing: bool = False) -> Report:
    """Compute the report of a run; win rates with missing verdicts only if that is allowed."""
    judge, baseline = run.judge(), run.opponent()[0]
    answers = systems_of(run.answers.rows.items())
    for name, _, _ in run.settings.all_systems:
        if name not in answers:
            raise InputError(
                f"{run.folder}: no answers of {name} yet",
                hint="run the same command again: it continues where it stopped",
            )
    report = _empty_report(run, judge, baseline)
    names = {"Judge": judge.model if judge else "none"}
    names["template"] = judge.template.name if judge else "none"
    names["baseline"] = f"{baseline} (speed: {sequential.NAME})"
    for name, _, _ in run.settings.all_systems:
        place: Place = ("systems", name)
        if judge:
            _add_rates(report, place, run, judge, allow_missing)
        add_speed(report, place, answers[name], answers[sequential.NAME])
        rows = run.rows(name).values()
        made = {
            key: " and ".join(dict.fromkeys(str(row.get(key) or "not recorded") for row in rows))
            for key in PROVENANCE
        }
        report.add(place, {"provenance": made})
        origin = (made | names).items()
        report.note(place, "; ".join(f"{key}: {value}" for key, value in origin))
    return report


def refused(report: Report) -> dict[str, str]:
    """Return by system the reason why it has no win rate."""
    return {row.place[1]: str(row.value) for row in report.rows if row.key == "refused"}


def _empty_report(run: AlpacaRun, judge: LLMJudge | None, baseline: str) -> Report:
    settings, num, figures = run.settings, len(run.prompts), None
    is_comparable, label = None, "nobody judged: no win rates"
    if judge and judge.is_scripted:
        is_comparable = False
        label = "pipeline check: the judge is scripted, so there are no win rates"
    elif judge:
        known = settings.difficulty is not None
        is_comparable, label = comparability(judge.name, baseline, num, has_difficulty=known)
    facts = [label, f"instructions: {num} of {settings.instructions}"]
    facts.append(f"answers: greedy, {settings.max_tokens} tokens at most")
    if judge:
        figures = _judge_figures(judge, settings.judge.base_url)
        facts += _judge_facts(figures)
    report = Report("Answers to instructions: quality and speed", [*facts, *MEANING])
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


def _judge_figures(judge: LLMJudge, url: str | None) -> Figures:
    rows = judge.journal.rows.values()
    return {
        "name": judge.name,
        "model": judge.model,
        "url": url,
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


def _add_rates(
    report: Report, place: Place, run: AlpacaRun, judge: LLMJudge, allow_missing: bool
) -> None:
    outcomes, judgements = judged(run, judge, place[1])
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
        return
    calibration = run.calibration()
    rates = win_rates(judgements, calibration, allow_missing=allow_missing, names=names)
    figures = {**rates.to_dict(), "problems": problems}
    if rates.fit is not None:
        bounds = interval(judgements, calibration, rates.fit)
        figures["length_controlled_interval"] = bounds
    if rates.refused is None:
        wins = [100 * row.preference for row in judgements if row.preference is not None]
        figures["win_rate_interval"] = mean(wins)
    num = rates.n_total
    report.add(place, figures, TITLES, num, {"win_rate_missing_lost": num + rates.n_missing})
    report.note(place, rates.refused or "")
    wins_of = [[reading.first_wins for reading in both] for both in outcomes if both]
    whole = [(a, b) for a, b in wins_of if a is not None and b is not None]
    share = round(fmean((a + b) / 2 for a, b in whole), 5) if whole else None
    agreement = round(fmean(same_winner(a, b) for a, b in whole), 5) if whole else None
    report.add(place, {"first_place_share": share, "order_agreement": agreement})
    if whole:
        order = f"Both orders agree on {agreement:.1%}; the first answer gets {share:.1%}"
        report.note(place, order)


def write_outputs(run: AlpacaRun, report: Report) -> Path:
    """Write the report and files for AlpacaEval into the run's folder; return the report's page.

    ``alpaca_eval/SYSTEM.json`` is what AlpacaEval reads as a model's outputs,
    ``judgements.jsonl`` what ``pasta evaluate lc-winrate`` reads; a scripted judge has none.
    """
    systems, judge = [system.name for system in run.settings.all_systems], run.judge()
    try:
        if judge and not judge.is_scripted:
            rows = [row for name in systems for row in judged(run, judge, name).judgements]
            wins = (None if row.preference is None else 1 + row.preference for row in rows)
            stored = (
                row._asdict() | {"preference": win} for row, win in zip(rows, wins, strict=True)
            )
            write_whole(run.folder / JUDGEMENTS, b"".join(map(line_of, stored)))
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


def file_name(system: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", system)
