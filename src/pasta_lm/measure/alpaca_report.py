"""The report of an ``alpaca`` run, computed from its folder alone.

A scripted judge has no win rate, because its verdicts follow from the script; the report has the
note "pipeline check" instead.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, NamedTuple

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Row, write_whole
from pasta_lm.learn.judge.judge import same_winner
from pasta_lm.learn.judge.llm_judge import LLMJudge, Outcome, missing_to_json, missing_verdicts
from pasta_lm.measure.alpaca import AlpacaRun, outcomes_of
from pasta_lm.measure.intervals import Interval, mean
from pasta_lm.measure.judgements import Judgement, alpaca_eval_rows
from pasta_lm.measure.speed import Systems, answer_of, speed_rows
from pasta_lm.measure.table import Metric, Place, Report
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
TITLES = {
    "length_controlled_interval": "length-controlled win rate, %",
    "length_controlled_winrate": "length-controlled win rate, %",
    "win_rate_interval": "win rate, %",
    "win_rate_missing_lost": "win rate, missing verdicts lost, %",
}
MEANING = (
    "Speedups are over the speed baseline's own answer to the same prompt, decoded by the same "
    "engine on the same machine: geometric means, percentile bootstrap over prompts. A win rate is "
    "the mean preference over both orders; equal answers are a draw. The interval of the "
    "length-controlled one fits every draw again. Every number is computed from this folder: "
    "`pasta evaluate alpaca --out FOLDER --offline`."
)


class Judged(NamedTuple):
    """The judged figures of one system."""

    rates: WinRates | None
    """None if the judge is scripted."""
    figures: dict[str, Any]
    """All figures by key."""
    judgements: Sequence[Judgement] = ()
    predictions: Sequence[float] = ()
    """Of the length-controlled fit, by row."""

    def metrics(self, place: Place) -> list[Metric]:
        """Return the figures; without rates nothing stands in a table."""
        rates = self.rates
        if rates is None or rates.win_rate is None:
            return [Metric(place, *item) for item in self.figures.items()]
        titles = {key: title for key, title in TITLES.items() if self.figures.get(key) is not None}
        if "length_controlled_interval" in titles:
            titles.pop("length_controlled_winrate", None)
        num_all = rates.n_total + rates.n_missing
        return [
            Metric(
                place, key, value, titles.get(key, ""),
                num_all if key == "win_rate_missing_lost" else rates.n_total,
            )
            for key, value in self.figures.items()
        ]  # fmt: skip

    def notes(self) -> list[str]:
        """Return the footnotes of a table."""
        figures = self.figures
        notes = [figures.get("pipeline_check", ""), figures.get("refused", "")]
        for problem, result in figures.get("problems", {}).items():
            names = ", ".join(result["instructions"])
            notes.append(f"No verdict, {problem}: {result['count']} comparisons, of {names}")
        if figures.get("order_agreement") is not None:
            notes.append(
                f"Both orders agree on {figures['order_agreement']:.1%}; the first answer gets "
                f"{figures['first_place_share']:.1%}"
            )
        return notes


def alpaca_report(run: AlpacaRun, *, allow_missing: bool = False) -> Report:
    """Compute the report of a run; win rates with missing verdicts only if that is allowed.

    Raises:
        InputError: a system has no answers yet.
    """
    settings, judge = run.settings, run.judge()
    answers, baseline = _answers(run), settings.baseline
    judge_facts = _judge_facts(run, judge) if judge else None
    is_comparable, label = _comparability(run, judge)
    head = {
        "instructions": settings.instructions,
        "num_instructions": len(run.instructions),
        "max_tokens": settings.max_tokens,
        "baseline": run.opponent()[0],
        "speed_baseline": baseline,
        "judge": judge_facts,
        "is_comparable": is_comparable,
        "comparability": label,
    }
    metrics, notes = [Metric((), *item) for item in head.items()], dict[Place, list[str]]()
    for name in answers:
        judged = _judged(run, judge, name, allow_missing) if judge else None
        place: Place = ("systems", name)
        made = _provenance([*run.rows(name).values()])
        result, note = speed_rows(place, answers[name], answers[baseline])
        metrics += [*(judged.metrics(place) if judged else ()), *result]
        metrics += _datasets(run, answers, name, judged)
        metrics.append(Metric(place, "provenance", made))
        template = judge_facts["template"] if judge_facts else "none"
        origin = {"Judge": judge.model if judge else "none", "template": template, **made}
        origin["baseline"] = f"{head['baseline']} (speed: {baseline})"
        line = "; ".join(f"{key}: {value}" for key, value in origin.items())
        notes[place] = [f"kind: {note}", line, *(judged.notes() if judged else ())]
    return Report(
        title="Answers to instructions: quality and speed",
        rows=metrics,
        facts=_facts(head, judge_facts),
        notes=notes,
        ending=MEANING,
    )


def refused(report: Report) -> dict[str, str]:
    """Return why systems have no win rate."""
    return {row.place[1]: row.value for row in report.rows if row.key == "refused"}


def _facts(head: Mapping[str, Any], judge: Mapping[str, Any] | None) -> list[str]:
    facts = [
        head["comparability"],
        f"instructions: {head['num_instructions']} of {head['instructions']}",
        f"answers: greedy, {head['max_tokens']} tokens at most",
    ]
    if judge is None:
        return facts
    replied = ", ".join(f"{name} ({count})" for name, count in judge["replied_as"].items())
    usage = judge["usage"]
    return [
        *facts,
        f"judge: {judge['model']} at {judge['url']}, which replied as {replied or '-'}",
        f"template: {judge['template']}, {judge['template_sha256']}, {judge['method']}",
        f"stored replies: {judge['num_replies']}; {usage['prompt_tokens']} tokens read, "
        f"{usage['completion_tokens']} written",
    ]


def _answers(run: AlpacaRun) -> Systems:
    result: Systems = {}
    for system in run.settings.systems:
        rows = run.rows(system.name)
        if not rows:
            raise InputError(
                f"{run.folder}: no answers of {system.name} yet",
                hint="run the same command again: it continues where it stopped",
            )
        result[system.name] = {name: answer_of(row) for name, row in rows.items()}
    return result


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
            row=entry.row,
            preference=preference(entry.id),
            len_1=len(theirs.get(entry.id, "")),
            len_2=len(ours.get(entry.id, "")),
            judge=judge.name,
            baseline=baseline,
        )
        for entry in run.instructions
    ]


def _judged(run: AlpacaRun, judge: LLMJudge, system: str, allow_missing: bool) -> Judged:
    judgements = judgements_of(run, judge, system)
    outcomes = outcomes_of(run, judge, system)
    each = ((name, outcome) for name, pair in outcomes.items() for outcome in pair)
    problems = missing_to_json(missing_verdicts(each), "instructions")
    if judge.is_scripted:
        num = sum(entry.preference is not None for entry in judgements)
        return Judged(None, {"pipeline_check": f"pipeline check, n = {num}", "problems": problems})
    calibration = run.calibration()
    rates = win_rates(judgements, calibration, allow_missing=allow_missing)
    figures = {**rates.to_dict(), "problems": problems, **_order_figures(outcomes)}
    if rates.refused is not None:
        pairs = zip(run.instructions, judgements, strict=True)
        missing = [entry.id for entry, verdict in pairs if verdict.preference is None]
        figures["refused"] = refusal(len(judgements), missing)
        return Judged(rates, figures)
    figures["win_rate_interval"] = _mean_rate(judgements)
    fitted = fitted_of(judgements, calibration)
    if fitted is None:
        return Judged(rates, figures, judgements)
    bounds = interval(judgements, calibration.difficulty, calibration.gamed, fitted)
    figures["length_controlled_interval"] = Interval(fitted.win_rate, *bounds)
    return Judged(rates, figures, judgements, fitted.predictions)


def _mean_rate(judgements: Sequence[Judgement]) -> Interval | None:
    return mean([100 * entry.preference for entry in judgements if entry.preference is not None])


def _order_figures(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, float | None]:
    """Return how often the answer read first wins (0.5 is fair), and how often orders agree."""
    pairs = [[outcome.reading.first_wins for outcome in pair] for pair in outcomes.values()]
    whole = [(a, b) for a, b in (pair for pair in pairs if pair) if a is not None and b is not None]
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


def _datasets(run: AlpacaRun, answers: Systems, system: str, judged: Judged | None) -> list[Metric]:
    """Return the figures over the instructions of each data set, if there are several."""
    sources = dict.fromkeys(entry.dataset for entry in run.instructions)
    group, metrics = ("systems", system), list[Metric]()
    if len(sources) < 2:
        return [Metric(group, "datasets", {})]
    for source in sources:
        places = [place for place, entry in enumerate(run.instructions) if entry.dataset == source]
        names = {run.instructions[place].id for place in places}
        ours, theirs = (
            {key: entry for key, entry in answers[name].items() if key in names}
            for name in (system, run.settings.baseline)
        )
        place = (*group, "datasets", source or "unnamed")
        if judged and judged.rates and judged.rates.win_rate is not None:
            metrics += _of_places(judged, places).metrics(place)
        metrics += speed_rows(place, ours, theirs)[0]
    return metrics


def _of_places(judged: Judged, places: Sequence[int]) -> Judged:
    """Return the rates over some instructions."""
    some, predictions = [judged.judgements[place] for place in places], judged.predictions
    plain = plain_rates(some)
    figures = asdict(plain) | {"win_rate_interval": _mean_rate(some)}
    if predictions:
        controlled = fmean(predictions[place] for place in places)
        figures["length_controlled_winrate"] = controlled
    return Judged(WinRates(**asdict(plain), n_absent=None), figures)


def write_outputs(run: AlpacaRun, report: Report) -> None:
    """Write the report, its page and files for AlpacaEval into the run's folder.

    ``alpaca_eval/SYSTEM.json`` is what AlpacaEval reads as a model's outputs,
    ``judgements.jsonl`` what ``pasta evaluate lc-winrate`` reads; a scripted judge has none.

    Raises:
        PastaError: a file cannot be written.
    """
    systems, judge = [system.name for system in run.settings.systems], run.judge()
    texts = {REPORT: pretty(report.to_dict()), PAGE: report.markdown()}
    if judge and not judge.is_scripted:
        rows = [stored_row(entry) for name in systems for entry in judgements_of(run, judge, name)]
        texts[JUDGEMENTS] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for name in systems:
        answers = run.texts(name)
        wanted = [entry for entry in run.instructions if entry.id in answers]
        outputs = alpaca_eval_rows(wanted, [answers[entry.id] for entry in wanted], name)
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
