"""Win rates from judgements: plain, and length-controlled by AlpacaEval's logistic regression.

Legend: N rows, F features: length, difficulty (where it is known), model.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from pasta_lm.errors import InputError
from pasta_lm.journal import Row, read_lines, read_objects
from pasta_lm.learn.judge import SCRIPTED
from pasta_lm.measure.table import Array, Figures, Interval, Table

LEADERBOARD = "AlpacaEval 2's leaderboard"
JUDGE = "weighted_alpaca_eval_gpt4_turbo"  # gpt-4-1106-preview with AlpacaEval 2's template
BASELINE = "gpt4_1106_preview"
NUM_INSTRUCTIONS = 805
NUM_NAMED = 10  # missing rows that a message names
COUNTS = {"model": str, "row": int, "len_1": int, "len_2": int}
"""Keys of a stored judgement with their types; numbers are not below 0."""
DIFFICULTY = "instruction_difficulty"
COLUMNS = {
    "LC win rate": "length_controlled_winrate", "LC SE": "lc_standard_error",
    "win rate": "win_rate", "SE": "standard_error", "missing lost": "win_rate_missing_lost",
    "n": "n_total", "missing": "n_missing", "avg length": "avg_length",
}  # fmt: skip
GAMED_WEIGHT = 0.1  # a gamed row's: AlpacaEval's regularisation of 0.2, over two models
CHOICES = tuple(float(choice) for choice in np.logspace(-4, 4, 10))
"""Inverse penalties to choose from (C in the names of scikit-learn)."""
NUM_FOLDS = 5
NUM_DRAWS, SEED = 200, 0


class Judgement(NamedTuple):
    """One verdict on a model's answer, compared with the reference's."""

    model: str
    row: int  # the instruction's, in the table of difficulty
    preference: float | None
    """From 0, the reference wins, to 1, the model wins; a draw is 0.5. None: no verdict."""
    len_1: int  # characters of the reference's answer
    len_2: int  # characters of the model's answer
    judge: str | None = None
    baseline: str | None = None  # the name of the reference; None: not recorded


class Calibration(NamedTuple):
    """AlpacaEval's tables that the length-controlled fit needs."""

    difficulty: Sequence[float] | None = None  # by row; None: not known
    gamed: Sequence[tuple[float, float, float]] = ()
    """Verdicts on the reference told to be brief or verbose, which steady the fit: preference,
    difference of lengths in its standard deviations (reference minus model), difficulty."""


@dataclass(frozen=True)
class Rates:
    """The win rates of one model in percent, over its rows with a verdict.

    Where verdicts are missing and that is not allowed, there are none.
    """

    judgements: Sequence[Judgement]
    calibration: Calibration
    allow_missing: bool = False

    def __post_init__(self) -> None:
        known = self.calibration.difficulty
        for item in self.judgements:
            if known is not None and item.row >= len(known):
                reason = f"row {item.row} has no difficulty: the table ends at {len(known) - 1}"
                hint = "rows count the instructions of the difficulty table from 0"
                raise InputError(f"{item.model}: {reason}", hint=hint)

    @property
    def wins(self) -> Array:
        known = [row.preference for row in self.judgements if row.preference is not None]
        return 100 * np.array(known)

    @property
    def missing_rows(self) -> list[int]:
        return [item.row for item in self.judgements if item.preference is None]

    @property
    def is_refused(self) -> bool:
        return bool(self.missing_rows) and not self.allow_missing

    @cached_property
    def length_controlled(self) -> LengthControlled | None:
        return None if self.is_refused else length_controlled(self.judgements, self.calibration)

    def interval(self) -> Interval | None:
        """Return the length-controlled win rate with its 95 % interval; None without a rate.

        Percentile bootstrap over instructions; each draw is fitted again with the same penalty.
        """
        if (fitted := self.length_controlled) is None:
            return None
        draw, num, rates = np.random.default_rng(SEED), len(self.judgements), list[float]()
        for _ in range(NUM_DRAWS):
            drawn = [self.judgements[n] for n in draw.integers(num, size=num)]
            if again := length_controlled(drawn, self.calibration, fitted.inverse_penalty):
                rates.append(again.win_rate)
        low, high = np.percentile(rates or [fitted.win_rate], [2.5, 97.5])
        return Interval(fitted.win_rate, float(low), float(high))

    def figures(self, names: Sequence[str] = ()) -> Figures:
        """Return the rates and counts as JSON has them; ``names`` of instructions are by row."""
        wins, missing, fitted = self.wins, self.missing_rows, self.length_controlled
        lengths = [row.len_2 for row in self.judgements]
        has_rates, has_lost = len(wins) and not self.is_refused, missing and not self.is_refused
        figures: Figures = {
            "win_rate": float(wins.mean()) if has_rates else None,
            "standard_error": standard_error(wins) if has_rates else None,
            "n_total": len(wins), "n_missing": len(missing), "missing_rows": missing,
            "avg_length": int(np.mean(lengths)) if lengths else None,
            "win_rate_missing_lost": float(wins.sum()) / len(lengths) if has_lost else None,
            "length_controlled_winrate": fitted and fitted.win_rate,
            "lc_standard_error": fitted and fitted.standard_error,
            "lc_inverse_penalty": fitted and fitted.inverse_penalty,
        }  # fmt: skip
        if self.is_refused:
            shown = [names[row] if names else str(row) for row in missing[:NUM_NAMED]]
            more = f" and {len(missing) - NUM_NAMED} more" if len(missing) > NUM_NAMED else ""
            reason = f"no win rate: {len(missing)} of {len(lengths)} rows have no verdict"
            figures["refused"] = f"{reason} ({', '.join(shown)}{more})"
        return figures


def stored_rates(
    annotations: Path, calibration: Calibration, *, allow_missing: bool = False
) -> dict[str, Figures]:
    """Return the figures of each model of a file of judgements; a scripted judge has no rates."""
    models: dict[str, Figures] = {}
    for name, rows in read_judgements(annotations).items():
        judge = _joined(row.judge for row in rows)
        baseline = _joined(row.baseline for row in rows)
        if judge and judge.startswith(SCRIPTED):
            models[name] = {"pipeline_check": f"pipeline check, n = {len(rows)}", "judge": judge}
            continue
        figures = Rates(rows, calibration, allow_missing).figures()
        is_comparable, label = comparability(judge, baseline, figures["n_total"])
        origin = {"judge": judge, "baseline": baseline, "is_comparable": is_comparable}
        models[name] = {**figures, **origin, "comparability": label}
    return models


def _joined(names: Iterable[str | None]) -> str | None:
    return " and ".join(dict.fromkeys(filter(None, names))) or None


def rates_table(models: Mapping[str, Figures]) -> Table:
    order = sorted(models, key=lambda name: -(models[name].get(COLUMNS["LC win rate"]) or 0))
    labels = [row.get("comparability") or row["pipeline_check"] for row in models.values()]
    rows = [[name, *(models[name].get(key) for key in COLUMNS.values())] for name in order]
    return Table(["model", *COLUMNS], rows, note="\n\n".join(dict.fromkeys(labels)), digits=2)


def comparability(
    judge: str | None, baseline: str | None, num_instructions: int, *, has_difficulty: bool = True
) -> tuple[bool | None, str]:
    """Return whether a result is comparable with the leaderboard, and a label that says why.

    None, and not False, if the judge or the baseline is None: not recorded.
    """
    sides = (("judge", judge, JUDGE), ("baseline", baseline, BASELINE))
    others = [side for side in sides if side[1] not in (None, side[2])]
    reasons = [f"the {key} is {name}, not {its}" for key, name, its in others]
    if not has_difficulty:
        reasons.append("the difficulty of the instructions is not known")
    if reasons:
        return False, f"not comparable with {LEADERBOARD}: {'; '.join(reasons)}"
    if unknown := [key for key, name, _ in sides if name is None]:
        expected = f"the judge is {JUDGE} and the baseline {BASELINE}"
        names = f"the rows name no {' and no '.join(unknown)}"
        return None, f"comparable with {LEADERBOARD} only if {expected}: {names}"
    label = f"as on {LEADERBOARD}"
    if num_instructions != NUM_INSTRUCTIONS:
        label += f", but over {num_instructions} of {NUM_INSTRUCTIONS} instructions"
    return True, label


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
            if verdict.row in models.setdefault(verdict.model, {}):
                raise InputError(f"{verdict.model} has row {verdict.row} twice")
        except InputError as exc:
            raise InputError(f"{path}:{number}: {exc.message}") from exc
        models[verdict.model][verdict.row] = verdict
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
    value = row["preference"]
    if value is None or value != value:  # tables of numbers write a missing value as NaN
        return Judgement(**known | {"preference": None})
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"'preference' is {value!r}, not a number")
    if value and not 1 <= value <= 2:
        raise InputError(f"'preference' is {value}, but must be 0 or from 1 to 2")
    return Judgement(**known | {"preference": float(value) - 1 if value else 0.5})


def read_calibration(difficulty: Path, gamed: Path) -> Calibration:
    """Read AlpacaEval's tables.

    Their columns are ``index, instruction_difficulty`` and ``preference`` (0 to 1),
    ``std_delta_len, instruction_difficulty``.
    """
    known = list(_columns(difficulty, "index", DIFFICULTY))
    if [index for index, _ in known] != list(range(len(known))):
        raise InputError(f"{difficulty}: 'index' must count its rows from 0")
    rows = [(a, b, c) for a, b, c in _columns(gamed, "preference", "std_delta_len", DIFFICULTY)]
    if not all(0 <= preference <= 1 for preference, _, _ in rows):
        raise InputError(f"{gamed}: a 'preference' is not from 0 to 1")
    return Calibration([value for _, value in known], rows)


def _columns(path: Path, *names: str) -> Iterator[tuple[float, ...]]:
    reader = csv.DictReader(read_lines(path))
    if missing := [name for name in names if name not in (reader.fieldnames or ())]:
        raise InputError(f"{path} has no column {' and no '.join(missing)}")
    for row in reader:
        try:
            yield tuple(float(row[name]) for name in names)
        except (TypeError, ValueError) as exc:
            raise InputError(f"{path}:{reader.line_num}: a cell is no number") from exc


class Design(NamedTuple):
    """The rows that are fitted."""

    features: Array  # [N, F]
    targets: Array  # [N], from 0 to 1
    weights: Array  # [N]


class LengthControlled(NamedTuple):
    """A fit; rates are in percent."""

    win_rate: float
    standard_error: float | None
    """The mean prediction's, as AlpacaEval has it: the fit itself is taken as known."""
    weights: dict[str, float]  # by feature
    inverse_penalty: float


def length_controlled(
    judgements: Sequence[Judgement], calibration: Calibration, inverse_penalty: float | None = None
) -> LengthControlled | None:
    """Return the length-controlled win rate of one model; None if there are fewer rows than folds.

    A row without a verdict is predicted and not fitted; without any verdict there is no fit.
    Without difficulties the fit has no such feature. The penalty is chosen by cross-validation,
    unless it is given.
    """
    design, rows = _design(judgements, calibration)
    if len(design.targets) < NUM_FOLDS or all(row.preference is None for row in judgements):
        return None
    chosen = inverse_penalty or choose_penalty(design)
    weights = fit(design, chosen)
    predicted = expit(rows @ weights)
    names = ["length", *["difficulty"] * (calibration.difficulty is not None), "model"]
    by_name = dict(zip(names, map(float, weights), strict=True))
    rate = 100 * float(predicted.mean())
    return LengthControlled(rate, standard_error(100 * predicted), by_name, chosen)


def standard_error(values: Array) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def _design(judgements: Sequence[Judgement], calibration: Calibration) -> tuple[Design, Array]:
    difficulty, gamed = calibration
    gaps = np.array([row.len_1 - row.len_2 for row in judgements], dtype=np.float64)
    spread = gaps.std(ddof=1) if len(gaps) > 1 else 0.0
    columns = [np.tanh(gaps / spread) if spread else np.zeros(len(gaps)), np.ones(len(gaps))]
    if difficulty is not None:
        columns.insert(1, np.array([difficulty[row.row] for row in judgements]))
    model = np.stack(columns, axis=1)
    is_judged = np.array([row.preference is not None for row in judgements], dtype=bool)
    ours = [row.preference for row in judgements if row.preference is not None]
    held = [(np.tanh(length), hardness, 0.0) for _, length, hardness in gamed]
    features = np.concatenate([np.array(held).reshape(-1, model.shape[1]), model[is_judged]])
    targets = np.array([*(preference for preference, _, _ in gamed), *ours])
    weights = np.array([GAMED_WEIGHT] * len(gamed) + [1.0] * len(ours))
    model[:, 0] = 0
    return Design(features, targets, weights), model


def fit(design: Design, inverse_penalty: float) -> Array:
    """Return the weights [F] that minimise ``sum |w| + C * weighted cross entropy``, exactly."""
    # A weight is the difference of two that are not negative, which makes the penalty smooth.
    # scikit-learn's solvers of this penalty take no targets between 0 and 1.
    num_features = design.features.shape[1]
    scale = 1 / (inverse_penalty * max(float(design.weights.sum()), 1.0))

    def loss(halves: Array) -> tuple[float, Array]:
        logits = design.features @ (halves[:num_features] - halves[num_features:])
        slopes = design.weights * (expit(logits) - design.targets)
        gradient = scale * inverse_penalty * (design.features.T @ slopes)
        value = scale * (inverse_penalty * float(cross_entropy(design, logits).sum()))
        penalised = value + scale * float(halves.sum())
        return penalised, np.concatenate([gradient, -gradient]) + scale

    halves: Array = np.zeros(2 * num_features)
    bounds = [(0, None)] * (2 * num_features)
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 10_000}
    for _ in range(3):  # a line search that fails ends it early; it begins anew from there
        halves = minimize(
            loss, halves, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        ).x
    return halves[:num_features] - halves[num_features:]


def cross_entropy(design: Design, logits: Array) -> Array:
    """Return the weighted cross entropy of each row, [N]."""
    wins, losses = log_expit(logits), log_expit(-logits)
    costs: Array = -design.weights * (design.targets * wins + (1 - design.targets) * losses)
    return costs


def choose_penalty(design: Design) -> float:
    """Return the inverse penalty with the smallest cross entropy on the rows left out."""
    # In turn, so that the rows of one instruction are in one fold.
    folds = np.arange(len(design.targets)) % NUM_FOLDS
    parts = [
        [Design(*(part[chosen] for part in design)) for chosen in (folds != fold, folds == fold)]
        for fold in range(NUM_FOLDS)
    ]

    def cost(choice: float) -> float:
        costs = [cross_entropy(rest, rest.features @ fit(most, choice)) for most, rest in parts]
        return float(np.mean([rows.mean() for rows in costs]))

    return min(CHOICES, key=cost)
