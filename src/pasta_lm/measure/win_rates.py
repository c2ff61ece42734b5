"""Win rates from stored judgements: plain, and length-controlled as AlpacaEval fits them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pasta_lm.errors import InputError
from pasta_lm.journal import Row, read_lines, read_objects
from pasta_lm.learn.judge.llm_judge import SCRIPTED
from pasta_lm.measure.length_control import (
    Calibration,
    GamedRow,
    Judgement,
    LengthControlled,
    length_controlled,
    standard_error,
)
from pasta_lm.measure.table import Figures, Table

LEADERBOARD = "AlpacaEval 2's leaderboard"
JUDGE = "weighted_alpaca_eval_gpt4_turbo"  # gpt-4-1106-preview with AlpacaEval 2's template
BASELINE = "gpt4_1106_preview"
NUM_INSTRUCTIONS = 805
NUM_NAMED = 10  # missing rows that a message names
COUNTS = {"model": str, "row": int, "len_1": int, "len_2": int}
"""Keys of a stored judgement with their types; numbers are not below 0."""
COLUMNS = {
    "LC win rate": "length_controlled_winrate",
    "LC SE": "lc_standard_error",
    "win rate": "win_rate",
    "SE": "standard_error",
    "missing lost": "win_rate_missing_lost",
    "n": "n_total",
    "missing": "n_missing",
    "avg length": "avg_length",
}


@dataclass(frozen=True, kw_only=True)
class WinRates:
    """The figures of one model, over the rows that have a verdict; rates in percent."""

    win_rate: float | None = None
    standard_error: float | None = None
    n_total: int  # verdicts
    n_wins: int
    n_wins_base: int
    n_draws: int
    n_missing: int
    missing_rows: list[int]
    avg_length: int | None
    win_rate_missing_lost: float | None = None  # none if no verdict is missing
    n_absent: int | None = None  # instructions with a difficulty and no row; None: no difficulties
    fit: LengthControlled | None = None
    refused: str | None = None  # why there are no rates: verdicts are missing

    def to_dict(self) -> Figures:
        fit = self.fit
        figures = vars(self) | {
            "length_controlled_winrate": fit and fit.win_rate,
            "lc_standard_error": fit and fit.standard_error,
            "lc_weights": fit and fit.weights,
            "lc_inverse_penalty": fit and fit.inverse_penalty,
        }
        left_out = {"fit"} if self.refused else {"fit", "refused"}
        return {key: value for key, value in figures.items() if key not in left_out}


def win_rates(
    judgements: Sequence[Judgement],
    calibration: Calibration,
    *,
    allow_missing: bool = False,
    names: Sequence[str] = (),
) -> WinRates:
    """Return all figures of one model.

    Where verdicts are missing and that is not allowed, there are no rates; ``names`` are those of
    the instructions by row, for the message.
    """
    known = None if calibration.difficulty is None else len(calibration.difficulty)
    for item in judgements:
        if known is not None and item.row >= known:
            raise InputError(
                f"{item.model}: row {item.row} has no difficulty: the table ends at {known - 1}",
                hint="rows count the instructions of the difficulty table from 0",
            )
    missing = [item.row for item in judgements if item.preference is None]
    wins = np.array([item.preference for item in judgements if item.preference is not None])
    figures = WinRates(
        n_total=len(wins),
        n_wins=int((wins > 0.5).sum()),
        n_wins_base=int((wins < 0.5).sum()),
        n_draws=int((wins == 0.5).sum()),
        n_missing=len(missing),
        missing_rows=missing,
        avg_length=int(np.mean([item.len_2 for item in judgements])) if judgements else None,
        n_absent=None if known is None else known - len(judgements),
    )
    if missing and not allow_missing:
        named = [names[row] if names else str(row) for row in missing[:NUM_NAMED]]
        more = f" and {len(missing) - NUM_NAMED} more" if len(missing) > NUM_NAMED else ""
        reason = f"no win rate: {len(missing)} of {len(judgements)} rows have no verdict"
        return replace(figures, refused=f"{reason} ({', '.join(named)}{more})")
    return replace(
        figures,
        win_rate=100 * float(wins.mean()) if len(wins) else None,
        standard_error=standard_error(100 * wins),
        win_rate_missing_lost=100 * float(wins.sum()) / len(judgements) if missing else None,
        fit=length_controlled(judgements, calibration),
    )


def stored_rates(
    annotations: Path, difficulty: Path, gamed: Path, *, allow_missing: bool = False
) -> dict[str, Figures]:
    """Return the figures of each model of a file of judgements; a scripted judge has no rates."""
    models = read_judgements(annotations)
    calibration = Calibration(read_difficulty(difficulty), read_gamed(gamed))
    return {name: _rates_of(rows, calibration, allow_missing) for name, rows in models.items()}


def _rates_of(rows: Sequence[Judgement], calibration: Calibration, allow_missing: bool) -> Figures:
    judge, baseline = (
        " and ".join(dict.fromkeys(filter(None, names))) or None
        for names in ([row.judge for row in rows], [row.baseline for row in rows])
    )
    if judge and judge.startswith(SCRIPTED):
        return {"pipeline_check": f"pipeline check, n = {len(rows)}", "judge": judge}
    rates = win_rates(rows, calibration, allow_missing=allow_missing)
    is_comparable, label = comparability(judge, baseline, rates.n_total)
    origin = {"judge": judge, "baseline": baseline, "is_comparable": is_comparable}
    return {**rates.to_dict(), **origin, "comparability": label}


def rates_table(models: Mapping[str, Figures]) -> Table:
    """Return a row for each model, the best first."""
    order = sorted(models, key=lambda name: -(models[name].get(COLUMNS["LC win rate"]) or 0))
    labels = dict.fromkeys(
        row.get("comparability") or row["pipeline_check"] for row in models.values()
    )
    rows = [[name, *(models[name].get(key) for key in COLUMNS.values())] for name in order]
    return Table(["model", *COLUMNS], rows, note="\n\n".join(labels), digits=2)


def comparability(
    judge: str | None, baseline: str | None, num_instructions: int, *, has_difficulty: bool = True
) -> tuple[bool | None, str]:
    """Return whether a result is comparable with the leaderboard, and a label that says why.

    None, and not False, if the judge or the baseline is None: not recorded.
    """
    reasons = []
    if judge not in (None, JUDGE):
        reasons.append(f"the judge is {judge}, not {JUDGE}")
    if baseline not in (None, BASELINE):
        reasons.append(f"the baseline is {baseline}, not {BASELINE}")
    if not has_difficulty:
        reasons.append("the difficulty of the instructions is not known")
    if reasons:
        return False, f"not comparable with {LEADERBOARD}: {'; '.join(reasons)}"
    unknown = [name for name, value in (("judge", judge), ("baseline", baseline)) if value is None]
    if unknown:
        wanted = f"the judge is {JUDGE} and the baseline {BASELINE}"
        names = f"the rows name no {' and no '.join(unknown)}"
        return None, f"comparable with {LEADERBOARD} only if {wanted}: {names}"
    label = f"as on {LEADERBOARD}"
    if num_instructions != NUM_INSTRUCTIONS:
        label += f", but over {num_instructions} of {NUM_INSTRUCTIONS} instructions"
    return True, label


# --- files


def read_judgements(path: Path) -> dict[str, list[Judgement]]:
    """Read judgements by model, one JSON object a line, gzipped if named ``.gz``.

    A row has ``model, row, preference, len_1, len_2`` and may have ``judge`` and ``baseline``.
    ``preference`` is from 1, the reference wins, to 2, the model wins; 0 and 1.5 are draws, null is
    a missing verdict.
    """
    models: dict[str, dict[int, Judgement]] = {}
    for number, row in read_objects(path):
        try:
            verdict = _judgement(row)
        except InputError as exc:
            raise InputError(f"{path}:{number}: {exc.message}") from exc
        rows = models.setdefault(verdict.model, {})
        if verdict.row in rows:
            raise InputError(f"{path}:{number}: {verdict.model} has row {verdict.row} twice")
        rows[verdict.row] = verdict
    if not models:
        raise InputError(f"{path} has no judgements")
    return {name: list(rows.values()) for name, rows in models.items()}


def _judgement(row: Row) -> Judgement:
    for key, kind in COUNTS.items():
        value = row.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{key!r} is {value!r}, not of type {kind.__name__}")
        if isinstance(value, int) and value < 0:
            raise InputError(f"{key!r} is {value}, below 0")
    if "preference" not in row:
        raise InputError("no 'preference'; a missing verdict is null")
    known = {key: row[key] for key in Judgement._fields if key in row}
    return Judgement(**known | {"preference": _preference(row["preference"])})


def _preference(value: object) -> float | None:
    if value is None or value != value:  # tables of numbers write a missing value as NaN
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"'preference' is {value!r}, not a number")
    if value and not 1 <= value <= 2:
        raise InputError(f"'preference' is {value}, but must be 0 or from 1 to 2")
    return float(value) - 1 if value else 0.5


def read_difficulty(path: Path) -> list[float]:
    """Read the difficulty of each instruction: columns ``index``, ``instruction_difficulty``."""
    rows = list(_columns(path, "index", "instruction_difficulty"))
    if [index for index, _ in rows] != list(range(len(rows))):
        raise InputError(f"{path}: 'index' must count its rows from 0")
    return [difficulty for _, difficulty in rows]


def read_gamed(path: Path) -> list[GamedRow]:
    """Read gamed rows: ``preference`` (0 to 1), ``std_delta_len``, ``instruction_difficulty``."""
    cells = _columns(path, "preference", "std_delta_len", "instruction_difficulty")
    rows = [GamedRow(*row) for row in cells]
    if not all(0 <= row.preference <= 1 for row in rows):
        raise InputError(f"{path}: a 'preference' is not from 0 to 1")
    return rows


def _columns(path: Path, *names: str) -> Iterator[tuple[float, ...]]:
    reader = csv.DictReader(read_lines(path))
    missing = [name for name in names if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"{path} has no column {' and no '.join(missing)}")
    for row in reader:
        try:
            yield tuple(float(row[name]) for name in names)
        except (TypeError, ValueError) as exc:
            raise InputError(f"{path}:{reader.line_num}: a cell is no number") from exc
