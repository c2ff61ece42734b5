"""The report of an ``alpaca`` run, computed from its folder alone.

A scripted judge has no win rate, because its verdicts follow from the script; the report has the
note "pipeline check" instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Row, line_of, write_json, write_whole
from pasta_lm.learn.judge.judge import same_winner
from pasta_lm.learn.judge.llm_judge import LLMJudge, Outcome, missing_to_json, missing_verdicts
from pasta_lm.measure.alpaca import AlpacaRun
from pasta_lm.measure.length_control import Judgement, interval, length_controlled
from pasta_lm.measure.speed import Systems, answer_of, speed_rows
from pasta_lm.measure.table import Interval, Metric, Place, Report, mean
from pasta_lm.measure.win_rates import comparability, plain_rates, refusal, win_rates
from pasta_lm.strategies import sequential

TIE = 0.5
PROVENANCE = ("model", "strategy", "engine", "positions", "hardware", "dtype", "commit", "version")
JUDGEMENTS, OUTPUTS = "judgements.jsonl", "alpaca_eval"
TITLES = {
    "length_controlled_interval": "length-controlled win rate, %",
    "length_controlled_winrate": "length-controlled win rate, %",
    "win_rate_interval": "win rate, %",
    "win_rate_missing_lost": "win rate, missing verdicts lost, %",
}
MEANING = (
    "speedups: over the speed baseline's own answer to the same prompt, decoded by the same engine "
    "on the same machine",
    "win rate: the mean preference over both orders; equal answers are a draw; the interval of the "
    "length-controlled one fits every draw again",
)
Figures = dict[str, Any]


def alpaca_report(run: AlpacaRun, *, allow_missing: bool = False) -> Report:
    """Compute the report of a run; win rates with missing verdicts only if that is allowed."""
    judge, answers, (baseline, _) = run.judge(), _answers(run), run.opponent()
    judge_facts = _judge_facts(run, judge) if judge else None
    is_comparable, label = _comparability(run, judge)
    head = {
        "instructions": run.settings.instructions,
        "num_instructions": len(run.prompts),
        "max_tokens": run.settings.max_tokens,
        "baseline": baseline,
        "speed_baseline": sequential.NAME,
        "judge": judge_facts,
        "is_comparable": is_comparable,
        "comparability": label,
    }
    metrics, notes = [Metric((), *item) for item in head.items()], dict[Place, list[str]]()
    for name in answers:
        place: Place = ("systems", name)
        made = _provenance([*run.rows(name).values()])
        result, note = speed_rows(place, answers[name], answers[sequential.NAME])
        origin = {"Judge": judge.model if judge else "none", **made}
        origin["template"] = judge.template.name if judge else "none"
        origin["baseline"] = f"{baseline} (speed: {sequential.NAME})"
        notes[place] = [f"kind: {note}", "; ".join(f"{k}: {v}" for k, v in origin.items())]
        of_groups = _speed_of_groups(run, place, answers)
        if judge:
            judgements = judgements_of(run, judge, name)
            rates, rates_of_groups = _rate_rows(run, judge, judgements, allow_missing)
            figures = {row.key: row.value for row in rates}
            notes[place] += _notes(figures)
            result = [*rates, *result]
            of_groups = [*rates_of_groups, *of_groups]
        metrics += [*result, Metric(place, "datasets", {}), *of_groups]
        metrics.append(Metric(place, "provenance", made))
    facts = [label, f"instructions: {len(run.prompts)} of {run.settings.instructions}"]
    facts.append(f"answers: greedy, {run.settings.max_tokens} tokens at most")
    return Report(
        title="Answers to instructions: quality and speed",
        rows=metrics,
        facts=[*facts, *_judge_lines(judge_facts), *MEANING],
        notes=notes,
    )


def refused(report: Report) -> dict[str, str]:
    """Return by system the reason why it has no win rate."""
    return {row.place[1]: row.value for row in report.rows if row.key == "refused"}


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


def _outcomes(run: AlpacaRun, judge: LLMJudge, system: str) -> dict[str, list[Outcome]]:
    return {name: judge.ask(pair) for name, pair in run.comparisons(system).items()}


def judgements_of(run: AlpacaRun, judge: LLMJudge, system: str) -> list[Judgement]:
    """Return a system's verdicts in the order of the instructions, as preferences from 0 to 1.

    The mean over both orders. Equal answers are a draw, a failed answer is a loss; without a
    verdict in one order there is no preference.
    """
    ours, (baseline, theirs), failed = run.texts(system), run.opponent(), run.failed(system)
    outcomes = _outcomes(run, judge, system)

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
            row=row,
            preference=preference(prompt.id),
            len_1=len(theirs.get(prompt.id, "")),
            len_2=len(ours.get(prompt.id, "")),
            judge=judge.name,
            baseline=baseline,
        )
        for row, prompt in enumerate(run.prompts)
    ]


def _rate_rows(
    run: AlpacaRun, judge: LLMJudge, judgements: Sequence[Judgement], allow_missing: bool
) -> tuple[list[Metric], list[Metric]]:
    place, outcomes = ("systems", judgements[0].model), _outcomes(run, judge, judgements[0].model)
    each = ((name, outcome) for name, pair in outcomes.items() for outcome in pair)
    problems = missing_to_json(missing_verdicts(each), "instructions")
    if judge.is_scripted:
        label = f"pipeline check, n = {sum(row.preference is not None for row in judgements)}"
        return [Metric(place, "pipeline_check", label), Metric(place, "problems", problems)], []
    calibration = run.calibration()
    rates = win_rates(judgements, calibration, allow_missing=allow_missing)
    figures = {**rates.to_dict(), "problems": problems, **_order_figures(outcomes)}
    if rates.refused is not None:
        missing = [run.prompts[row].id for row in rates.missing_rows]
        figures["refused"] = refusal(len(judgements), missing)
        return _metrics(place, figures), []
    figures["win_rate_interval"] = _mean_rate(judgements)
    fitted = length_controlled(judgements, calibration)
    if fitted is not None:
        bounds = interval(judgements, calibration, fitted)
        figures["length_controlled_interval"] = Interval(fitted.win_rate, *bounds)
    of_groups = []
    for name, rows in _groups(run).items():
        own = [judgements[row] for row in rows]
        rates_of_group = plain_rates(own).to_dict() | {"win_rate_interval": _mean_rate(own)}
        if fitted is not None:
            rates_of_group["length_controlled_winrate"] = float(fitted.predictions[rows].mean())
        of_groups += _metrics((*place, "datasets", name), rates_of_group)
    return _metrics(place, figures), of_groups


def _metrics(place: Place, figures: Figures) -> list[Metric]:
    titles = {key: title for key, title in TITLES.items() if figures.get(key) is not None}
    if "length_controlled_interval" in titles:
        titles.pop("length_controlled_winrate", None)
    if figures["win_rate"] is None:
        titles = {}
    num = figures["n_total"]
    nums = {"win_rate_missing_lost": num + figures["n_missing"]}
    return [Metric(place, k, v, titles.get(k, ""), nums.get(k, num)) for k, v in figures.items()]


def _notes(figures: Figures) -> list[str]:
    notes = [figures.get("pipeline_check", ""), figures.get("refused", "")]
    for problem, missing in figures["problems"].items():
        names = ", ".join(missing["instructions"])
        notes.append(f"No verdict, {problem}: {missing['count']} comparisons, of {names}")
    if figures.get("order_agreement") is not None:
        notes.append(
            f"Both orders agree on {figures['order_agreement']:.1%}; the first answer gets "
            f"{figures['first_place_share']:.1%}"
        )
    return notes


def _mean_rate(judgements: Sequence[Judgement]) -> Interval | None:
    return mean([100 * entry.preference for entry in judgements if entry.preference is not None])


def _order_figures(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, float | None]:
    pairs = [[outcome.reading.first_wins for outcome in pair] for pair in outcomes.values()]
    whole = [(a, b) for a, b in filter(None, pairs) if a is not None and b is not None]
    if not whole:
        return {"first_place_share": None, "order_agreement": None}
    return {
        "first_place_share": round(fmean((a + b) / 2 for a, b in whole), 5),
        "order_agreement": round(fmean(same_winner(a, b) for a, b in whole), 5),
    }


def _comparability(run: AlpacaRun, judge: LLMJudge | None) -> tuple[bool | None, str]:
    if judge is None:
        return None, "nobody judged: no win rates"
    if judge.is_scripted:
        return False, "pipeline check: the judge is scripted, so there are no win rates"
    has_difficulty = run.settings.difficulty is not None
    num = len(run.prompts)
    return comparability(judge.name, run.opponent()[0], num, has_difficulty=has_difficulty)


def _judge_facts(run: AlpacaRun, judge: LLMJudge) -> Figures:
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


def _judge_lines(judge: Figures | None) -> list[str]:
    if judge is None:
        return []
    replied = ", ".join(f"{name} ({count})" for name, count in judge["replied_as"].items())
    return [
        f"judge: {judge['model']} at {judge['url']}, which replied as {replied or '-'}",
        f"template: {judge['template']}, {judge['template_sha256']}, {judge['method']}",
        f"stored replies: {judge['num_replies']}; {judge['usage']['prompt_tokens']} tokens read, "
        f"{judge['usage']['completion_tokens']} written",
    ]


def _provenance(rows: Sequence[Row]) -> dict[str, str]:
    return {
        key: " and ".join(dict.fromkeys(str(row.get(key) or "not recorded") for row in rows))
        for key in PROVENANCE
    }


def _groups(run: AlpacaRun) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for row, prompt in enumerate(run.prompts):
        groups.setdefault(prompt.group or "unnamed", []).append(row)
    return groups if len(groups) > 1 else {}


def _speed_of_groups(run: AlpacaRun, place: Place, answers: Systems) -> list[Metric]:
    sides = answers[place[1]], answers[sequential.NAME]
    metrics: list[Metric] = []
    for name, rows in _groups(run).items():
        keys = {run.prompts[row].id for row in rows}
        ours, base = ({k: v for k, v in side.items() if k in keys} for side in sides)
        metrics += speed_rows((*place, "datasets", name), ours, base)[0]
    return metrics


def write_outputs(run: AlpacaRun, report: Report) -> Path:
    """Write the report and files for AlpacaEval into the run's folder; return the report's page.

    ``alpaca_eval/SYSTEM.json`` is what AlpacaEval reads as a model's outputs,
    ``judgements.jsonl`` what ``pasta evaluate lc-winrate`` reads; a scripted judge has none.
    """
    systems, judge = [system.name for system in run.settings.all_systems], run.judge()
    try:
        if judge and not judge.is_scripted:
            rows = [_stored(own) for name in systems for own in judgements_of(run, judge, name)]
            write_whole(run.folder / JUDGEMENTS, b"".join(map(line_of, rows)))
        for name in systems:
            answers = run.texts(name)
            outputs = [
                {"dataset": item.group, "instruction": item.text, "output": answers[item.id]}
                | {"generator": name}
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
    """Return a system's name as a file may be called."""
    return re.sub(r"[^\w.=-]+", "_", system)
