"""The report of an ``alpaca`` run, computed from its folder alone.

A scripted judge has no win rate, because its verdicts follow from the script; the report has the
note "pipeline check" instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from pasta_lm.errors import InputError
from pasta_lm.learn.judge import LLMJudge, Reading, missing_to_json, missing_verdicts, same_winner
from pasta_lm.measure.alpaca import AlpacaRun
from pasta_lm.measure.speed import add_speed, systems_of
from pasta_lm.measure.table import Figures, Place, Report, mean
from pasta_lm.measure.win_rates import Judgement, comparability, interval, win_rates
from pasta_lm.strategies import SEQUENTIAL

PROVENANCE = ("model", "strategy", "engine", "positions", "hardware", "dtype", "commit", "version")
TITLES = {
    "length_controlled_interval": "length-controlled win rate, %",
    "win_rate_interval": "win rate, %",
    "win_rate_missing_lost": "win rate, missing verdicts lost, %",
}
MEANING = (
    "answers: greedy",
    "speedups: over the speed baseline's own answer to the same prompt, decoded by the same engine "
    "on the same machine",
    "win rate: the mean preference over both orders; equal answers are a draw; the interval of the "
    "length-controlled one fits every draw again",
)


def judged(
    run: AlpacaRun, judge: LLMJudge, system: str
) -> tuple[list[list[Reading]], list[Judgement]]:
    """Return the readings of both orders, and the verdicts, by instruction.

    A preference, from 0 to 1, is the mean over both orders; without a verdict in one of them there
    is none.
    """
    pairs, (baseline, _), judgements = run.pairs(system), run.opponent(), list[Judgement]()
    outcomes = [judge.ask(pair.comparisons) for pair in pairs]
    for row, (pair, both) in enumerate(zip(pairs, outcomes, strict=True)):
        wins = _both_wins(both)
        preference = (wins[0] + 1 - wins[1]) / 2 if wins else pair.preference
        judgements.append(Judgement(system, row, preference, *pair.lengths, judge.name, baseline))
    return outcomes, judgements


def _both_wins(both: Sequence[Reading]) -> tuple[float, float] | None:
    first, second = (reading.first_wins for reading in both) if both else (None, None)
    return None if first is None or second is None else (first, second)


def alpaca_report(run: AlpacaRun, *, allow_missing: bool = False) -> Report:
    """Compute the report of a run; win rates with missing verdicts only if that is allowed."""
    judge, baseline = run.judge(), run.opponent()[0]
    answers = systems_of(run.answers.rows.items())
    for name in run.names:
        if name not in answers:
            hint = "run the same command again: it continues where it stopped"
            raise InputError(f"{run.folder}: no answers of {name} yet", hint=hint)
    report = _empty_report(run, judge, baseline)
    for name in run.names:
        place: Place = ("systems", name)
        if judge:
            _add_rates(report, place, run, judge, allow_missing)
        add_speed(report, place, answers[name], answers[SEQUENTIAL])
        rows = run.rows(name).values()
        made = {
            key: " and ".join(dict.fromkeys(str(row.get(key) or "not recorded") for row in rows))
            for key in PROVENANCE
        }
        report.add(place, {"provenance": made})
        report.note(place, "; ".join(f"{key}: {value}" for key, value in made.items()))
    return report


def _empty_report(run: AlpacaRun, judge: LLMJudge | None, baseline: str) -> Report:
    settings, num = run.settings, len(run.prompts)
    is_comparable, label = None, "nobody judged: no win rates"
    if judge and judge.is_scripted:
        is_comparable = False
        label = "pipeline check: the judge is scripted, so there are no win rates"
    elif judge:
        known = settings.difficulty is not None
        is_comparable, label = comparability(judge.name, baseline, num, has_difficulty=known)
    report = Report("Answers to instructions: quality and speed", [*MEANING])
    head = {
        "instructions": settings.instructions,
        "num_instructions": num,
        "max_tokens": settings.max_tokens,
        "baseline": baseline,
        "speed_baseline": SEQUENTIAL,
        "judge": judge and _judge_figures(judge, settings.judge.base_url),
        "is_comparable": is_comparable,
        "comparability": label,
    }
    report.add((), head)
    return report


def _judge_figures(judge: LLMJudge, url: str | None) -> Figures:
    rows, template = judge.journal.rows.values(), judge.template
    return {
        "name": judge.name,
        "model": judge.model,
        "url": url,
        "replied_as": Counter(str(row["reply"].get("model") or "unnamed") for row in rows),
        "template": template.name,
        "template_sha256": template.sha256,
        "method": template.method.value,
        "is_scripted": judge.is_scripted,
        "num_replies": len(rows),
        "tokens": judge.spending().tokens._asdict(),
    }


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
    wins = [100 * row.preference for row in judgements if row.preference is not None]
    if judge.is_scripted:
        label = f"pipeline check, n = {len(wins)}"
        report.add(place, {"pipeline_check": label, "problems": problems})
        report.note(place, label)
        return
    calibration = run.calibration()
    rates = win_rates(judgements, calibration, allow_missing=allow_missing, names=names)
    figures = {**rates, "problems": problems}
    if (rate := rates["length_controlled_winrate"]) is not None:
        bounds = interval(judgements, calibration, rate, rates["lc_inverse_penalty"])
        figures["length_controlled_interval"] = bounds
    if "refused" not in rates:
        figures["win_rate_interval"] = mean(wins)
    report.add(place, figures, TITLES, len(wins), {"win_rate_missing_lost": len(judgements)})
    report.note(place, rates.get("refused", ""))
    whole = [both for both in map(_both_wins, outcomes) if both]
    share = round(fmean((a + b) / 2 for a, b in whole), 5) if whole else None
    agreement = round(fmean(same_winner(a, b) for a, b in whole), 5) if whole else None
    report.add(place, {"first_place_share": share, "order_agreement": agreement})
    if whole:
        order = f"Both orders agree on {agreement:.1%}; the first answer gets {share:.1%}"
        report.note(place, order)
