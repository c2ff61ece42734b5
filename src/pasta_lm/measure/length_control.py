"""The length-controlled win rate: a logistic regression as AlpacaEval fits it.

Legend: N rows, F features: length, difficulty (where it is known), model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from pasta_lm.measure.table import Array, Interval

GAMED_WEIGHT = 0.1  # of a gamed row: AlpacaEval's regularisation of 0.2, over two models
CHOICES = tuple(float(choice) for choice in np.logspace(-4, 4, 10))
"""Inverse penalties to choose from (C in the names of scikit-learn)."""
NUM_FOLDS = 5
NUM_DRAWS, SEED = 200, 0


class Judgement(NamedTuple):
    """One verdict on a model's answer, compared with the reference's."""

    model: str
    row: int  # of the instruction, in the table of difficulty
    preference: float | None
    """From 0, the reference wins, to 1, the model wins; a draw is 0.5. None: no verdict."""
    len_1: int  # characters of the reference's answer
    len_2: int  # characters of the model's answer
    judge: str | None = None
    baseline: str | None = None  # the name of the reference; None: not recorded


class GamedRow(NamedTuple):
    """A verdict on the reference told to be brief or verbose, which steadies the fit."""

    preference: float  # from 0 to 1, as above
    length: float  # the difference of lengths in its standard deviations, reference minus model
    difficulty: float


class Calibration(NamedTuple):
    """The difficulties and gamed rows that the length-controlled fit needs."""

    difficulty: Sequence[float] | None = None  # by row; None: not known
    gamed: Sequence[GamedRow] = ()  # empty without difficulty


class Design(NamedTuple):
    """The rows that are fitted."""

    features: Array  # [N, F]
    targets: Array  # [N], from 0 to 1
    weights: Array  # [N]


class LengthControlled(NamedTuple):
    """A fit; rates are in percent."""

    win_rate: float
    standard_error: float | None
    """Of the mean prediction, as AlpacaEval has it: the fit itself is taken as known."""
    weights: dict[str, float]  # by feature
    inverse_penalty: float


def length_controlled(
    judgements: Sequence[Judgement],
    calibration: Calibration,
    *,
    inverse_penalty: float | None = None,
) -> LengthControlled | None:
    """Return the length-controlled win rate of one model; None if there are fewer rows than folds.

    A row without a verdict is predicted and not fitted; without any verdict there is no fit.
    Without difficulties the fit has no such feature. The penalty is chosen by cross-validation,
    unless it is given.
    """
    design, wanted = _design(judgements, calibration)
    if len(design.targets) < NUM_FOLDS or all(row.preference is None for row in judgements):
        return None
    chosen = inverse_penalty or choose_penalty(design)
    weights = fit(design, chosen)
    predicted = expit(wanted @ weights)
    names = ["length", *["difficulty"] * (calibration.difficulty is not None), "model"]
    return LengthControlled(
        win_rate=100 * float(predicted.mean()),
        standard_error=standard_error(100 * predicted),
        weights=dict(zip(names, map(float, weights), strict=True)),
        inverse_penalty=chosen,
    )


def interval(
    judgements: Sequence[Judgement], calibration: Calibration, fitted: LengthControlled
) -> Interval:
    """Return a length-controlled win rate with its 95 % interval, in percent.

    Percentile bootstrap over instructions; each draw is fitted again with the same penalty.
    """
    draw, num, penalty = np.random.default_rng(SEED), len(judgements), fitted.inverse_penalty
    draws = ([judgements[n] for n in draw.integers(num, size=num)] for _ in range(NUM_DRAWS))
    fits = (length_controlled(rows, calibration, inverse_penalty=penalty) for rows in draws)
    rates = [again.win_rate for again in fits if again] or [fitted.win_rate]
    low, high = np.percentile(rates, [2.5, 97.5])
    return Interval(fitted.win_rate, float(low), float(high))


def standard_error(values: Array) -> float | None:
    """Return the standard error of a mean; None of fewer than two values."""
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
    held = [(np.tanh(row.length), row.difficulty, 0.0) for row in gamed]
    features = np.concatenate([np.array(held).reshape(-1, model.shape[1]), model[is_judged]])
    targets = np.array([*(row.preference for row in gamed), *ours])
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

    halves: Array = minimize(
        loss,
        np.zeros(2 * num_features),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * (2 * num_features),
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 10_000},
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
