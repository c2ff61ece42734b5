"""The report of an ``alpaca`` run, computed from its stored answers and readings.

A scripted judge has no win rate, because its verdicts follow from the script; the report has the
note "pipeline check" instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from pasta_lm.journal import Row
from pasta_lm.learn.judge import Reading, missing_to_json, missing_verdicts, same_winner
from pasta_lm.measure.alpaca import AlpacaAnswers, AlpacaSettings, Readings
from pasta_lm.measure.speed import add_speed, systems_of
from pasta_lm.measure.table import Figures, KeyPath, Report, mean
from pasta_lm.measure.win_rates import Judgement, Rates, comparability
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


def _both_wins(both: Sequence[Reading]) -> tuple[float, float] | None:
    first, second = (reading.first_wins for reading in both) if both else (None, None)
    return None if first is None or second is None else (first, second)


def alpaca_report(
    answers: AlpacaAnswers, readings: Readings | None, settings: AlpacaSettings, *,
    allow_missing: bool = False,
) -> Report:  # fmt: skip
    """Compute the report of a run; win rates with missing verdicts only if that is allowed."""
    systems = systems_of(answers.rows.items())
    report = Report("Answers to instructions: quality and speed", [*MEANING])
    report.add((), _head(answers, readings, settings))
    for name in (system.name for system in settings.all_systems):
        path: KeyPath = ("systems", name)
        if readings is not None:
            judgements = judgements_of(answers, readings, name)
            rates = Rates(judgements, readings.calibration, allow_missing)
            ids = [prompt.id for prompt in answers.prompts]
            _add_problems(report, path, ids, readings.pairs[name])
            if readings.judge["is_scripted"]:
                label = f"pipeline check, n = {len(rates.wins)}"
                report.add(path, {"pipeline_check": label})
                report.note(path, label)
            else:
                _add_rates(report, path, rates, ids)
                _add_orders(report, path, readings.pairs[name])
        add_speed(report, path, systems[name], systems[SEQUENTIAL])
        _add_provenance(report, path, answers.of(name).values())
    return report


def _add_provenance(report: Report, path: KeyPath, rows: Iterable[Row]) -> None:
    values = {key: [str(row.get(key) or "not recorded") for row in rows] for key in PROVENANCE}
    made = {key: " and ".join(dict.fromkeys(names)) for key, names in values.items()}
    report.add(path, {"provenance": made})
    report.note(path, "; ".join(f"{key}: {value}" for key, value in made.items()))


def _head(answers: AlpacaAnswers, readings: Readings | None, settings: AlpacaSettings) -> Figures:
    judge, num = None if readings is None else readings.judge, len(answers.prompts)
    is_comparable, label = None, "nobody judged: no win rates"
    if judge and judge["is_scripted"]:
        is_comparable = False
        label = "pipeline check: the judge is scripted, so there are no win rates"
    elif judge:
        known, names = settings.difficulty is not None, (judge["name"], answers.baseline)
        is_comparable, label = comparability(*names, num, has_difficulty=known)
    return {
        "instructions": settings.instructions, "num_instructions": num,
        "max_tokens": settings.max_tokens, "baseline": answers.baseline,
        "speed_baseline": SEQUENTIAL, "judge": judge, "is_comparable": is_comparable,
        "comparability": label,
    }  # fmt: skip


def _add_problems(
    report: Report, path: KeyPath, ids: Sequence[str], readings: Sequence[Sequence[Reading]]
) -> None:
    named = ((name, item) for name, both in zip(ids, readings, strict=True) for item in both)
    problems = missing_to_json(missing_verdicts(named), "instructions")
    report.add(path, {"problems": problems})
    for problem, missing in problems.items():
        of = f"{missing['count']} comparisons, of {', '.join(missing['instructions'])}"
        report.note(path, f"No verdict, {problem}: {of}")


def _add_rates(report: Report, path: KeyPath, rates: Rates, ids: Sequence[str]) -> None:
    figures, wins = rates.figures(ids), rates.wins
    if (bounds := rates.interval()) is not None:
        figures["length_controlled_interval"] = bounds
    if not rates.is_refused:
        figures["win_rate_interval"] = mean([*wins])
    nums = {"win_rate_missing_lost": len(rates.judgements)}
    report.add(path, figures, TITLES, len(wins), nums)
    report.note(path, figures.get("refused", ""))


def _add_orders(report: Report, path: KeyPath, readings: Sequence[Sequence[Reading]]) -> None:
    """Add how far both orders agree: they reveal a judge that favours the first answer."""
    whole = [both for both in map(_both_wins, readings) if both]
    share = round(fmean((a + b) / 2 for a, b in whole), 5) if whole else None
    agreement = round(fmean(same_winner(a, b) for a, b in whole), 5) if whole else None
    report.add(path, {"first_place_share": share, "order_agreement": agreement})
    if whole:
        order = f"Both orders agree on {agreement:.1%}; the first answer gets {share:.1%}"
        report.note(path, order)
