"""Win rates from stored judgements: plain, and length-controlled as AlpacaEval fits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from pasta_lm.errors import InputError
from pasta_lm.learn.judge.llm_judge import SCRIPTED
from pasta_lm.measure.judgements import (
    GamedRow,
    Judgement,
    named,
    read_difficulty,
    read_gamed,
    read_judgements,
)
from pasta_lm.measure.table import Cells, Table

HEADLINES = ("win_rate", "standard_error", "length_controlled_winrate", "lc_standard_error")
LEADERBOARD = "AlpacaEval 2's leaderboard"
JUDGE = "weighted_alpaca_eval_gpt4_turbo"
"""AlpacaEval 2's judge: gpt-4-1106-preview with a template of its own."""
BASELINE = "gpt4_1106_preview"
NUM_INSTRUCTIONS = 805
NUM_NAMED = 10
"""Missing rows that a message names."""
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """The difficulties and gamed rows that the length-controlled fit needs."""

    difficulty: Sequence[float] | None = None
    """By row; None: not known."""
    gamed: Sequence[GamedRow] = ()
    """Empty without difficulty."""

    @classmethod
    def read(cls, difficulty: Path, gamed: Path) -> Calibration:
        """Read AlpacaEval's tables; raises an InputError."""
        return cls(read_difficulty(difficulty), read_gamed(gamed))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRates:
    """The figures that need no fit, over the rows that have a verdict; rates in percent."""

    win_rate: float | None
    standard_error: float | None
    n_total: int
    """Verdicts."""
    n_wins: int
    n_wins_base: int
    n_draws: int
    n_missing: int
    missing_rows: list[int]
    avg_length: int | None
    win_rate_missing_lost: float | None
    """None if no verdict is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRates(PlainRates):
    """All figures of one model."""

    n_absent: int | None
    """Instructions that have a difficulty and no row; None: no difficulties."""
    length_controlled_winrate: float | None = None
    lc_standard_error: float | None = None
    lc_weights: dict[str, float] | None = None
    lc_inverse_penalty: float | None = None
    refused: str | None = None
    """Why there are no rates: verdicts are missing."""

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON has them."""
        result = asdict(self)
        if self.refused is None:
            del result["refused"]
        return result


def win_rates(
    judgements: Sequence[Judgement], calibration: Calibration, *, allow_missing: bool = False
) -> WinRates:
    """Return all figures of one model.

    Where verdicts are missing and that is not allowed, there are no rates.

    Raises:
        InputError: a row has no difficulty.
    """
    _check_rows(judgements, calibration)
    plain = plain_rates(judgements)
    fitted = fitted_of(judgements, calibration)
    known = None if calibration.difficulty is None else len(calibration.difficulty)
    rates = asdict(plain) | {"n_absent": None if known is None else known - len(judgements)}
    if fitted is not None:
        rates |= {
            "length_controlled_winrate": fitted.win_rate,
            "lc_standard_error": fitted.standard_error,
            "lc_weights": fitted.weights,
            "lc_inverse_penalty": fitted.inverse_penalty,
        }
    if plain.missing_rows and not allow_missing:
        rates |= dict.fromkeys((*HEADLINES, "lc_weights", "win_rate_missing_lost"))
        rates["refused"] = refusal(len(judgements), plain.missing_rows)
    return WinRates(**rates)


def plain_rates(judgements: Sequence[Judgement]) -> PlainRates:
    """Return the figures that need no fit."""
    preferences = np.array(
        [judgement.preference for judgement in judgements if judgement.preference is not None]
    )
    missing = [judgement.row for judgement in judgements if judgement.preference is None]
    return PlainRates(
        win_rate=100 * float(preferences.mean()) if len(preferences) else None,
        standard_error=standard_error(100 * preferences),
        n_total=len(preferences),
        n_wins=int((preferences > 0.5).sum()),
        n_wins_base=int((preferences < 0.5).sum()),
        n_draws=int((preferences == 0.5).sum()),
        n_missing=len(missing),
        missing_rows=missing,
        avg_length=int(np.mean([judgement.len_2 for judgement in judgements]))
        if judgements
        else None,
        win_rate_missing_lost=100 * float(preferences.sum()) / len(judgements) if missing else None,
    )


@dataclass(frozen=True, slots=True)
class StoredRates:
    """The win rates of one model from stored judgements; a scripted judge has none."""

    judge: str | None
    baseline: str | None
    comparability: Comparability
    rates: WinRates | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the figures as ``pasta evaluate lc-winrate --json`` prints them."""
        if self.rates is None:
            return {"pipeline_check": self.comparability.label, "judge": self.judge}
        return {
            **self.rates.to_dict(),
            "judge": self.judge,
            "baseline": self.baseline,
            "is_comparable": self.comparability.is_comparable,
            "comparability": self.comparability.label,
        }


def stored_rates(
    annotations: Path, difficulty: Path, gamed: Path, *, allow_missing: bool = False
) -> dict[str, StoredRates]:
    """Return the win rates of each model of a file of judgements.

    Raises:
        InputError: a file cannot be read, or a row has no difficulty.
    """
    models, calibration = read_judgements(annotations), Calibration.read(difficulty, gamed)
    result = {}
    for name, rows in models.items():
        judge, baseline = named(rows)
        if judge and judge.startswith(SCRIPTED):
            label = Comparability(False, f"pipeline check, n = {len(rows)}")
            result[name] = StoredRates(judge, baseline, label)
        else:
            rates = win_rates(rows, calibration, allow_missing=allow_missing)
            label = comparability(judge, baseline, rates.n_total)
            result[name] = StoredRates(judge, baseline, label, rates)
    return result


def rates_table(result: Mapping[str, StoredRates]) -> Table:
    """Return a row for each model, the best first."""
    rates = {name: judgement.rates for name, judgement in result.items()}
    order = sorted(rates, key=lambda name: -_headline(rates[name]))
    labels = dict.fromkeys(judgement.comparability.label for judgement in result.values())
    return Table(
        ["model", *COLUMNS],
        [[name, *_cells(rates[name])] for name in order],
        note="\n\n".join(labels),
        digits=2,
    )


def _headline(rates: WinRates | None) -> float:
    return (rates and rates.length_controlled_winrate) or 0.0


def _cells(rates: WinRates | None) -> Cells:
    row = asdict(rates) if rates else {}
    return [row.get(key) for key in COLUMNS.values()]


def fitted_of(judgements: Sequence[Judgement], calibration: Calibration) -> LengthControlled | None:
    """Return the length-controlled fit; None if there is too little to fit."""
    if all(judgement.preference is None for judgement in judgements):
        return None
    return length_controlled(judgements, calibration.difficulty, calibration.gamed)


def refusal(num_rows: int, missing: Sequence[int | str]) -> str:
    """Return why there is no win rate."""
    named = ", ".join(map(str, missing[:NUM_NAMED]))
    more = f" and {len(missing) - NUM_NAMED} more" if len(missing) > NUM_NAMED else ""
    return f"no win rate: {len(missing)} of {num_rows} rows have no verdict ({named}{more})"


def _check_rows(judgements: Sequence[Judgement], calibration: Calibration) -> None:
    if calibration.difficulty is None:
        return
    known = len(calibration.difficulty)
    beyond = [judgement.row for judgement in judgements if judgement.row >= known]
    if beyond:
        raise InputError(
            f"{judgements[0].model}: row {beyond[0]} has no difficulty: the table ends at "
            f"{known - 1}",
            hint="rows count the instructions of the difficulty table from 0",
        )


class Comparability(NamedTuple):
    """Whether a result is comparable with the leaderboard's."""

    is_comparable: bool | None
    """None: the file does not name the judge or the baseline."""
    label: str
    """Is printed beside the figure."""


def comparability(
    judge: str | None, baseline: str | None, num_instructions: int, *, has_difficulty: bool = True
) -> Comparability:
    """Return whether a result is comparable with the leaderboard, and if not why.

    A judge or baseline that is None is not recorded.
    """
    reasons = []
    if judge not in (None, JUDGE):
        reasons.append(f"the judge is {judge}, not {JUDGE}")
    if baseline not in (None, BASELINE):
        reasons.append(f"the baseline is {baseline}, not {BASELINE}")
    if not has_difficulty:
        reasons.append("the difficulty of the instructions is not known")
    if reasons:
        return Comparability(False, f"not comparable with {LEADERBOARD}: {'; '.join(reasons)}")
    unknown = [name for name, value in (("judge", judge), ("baseline", baseline)) if value is None]
    if unknown:
        missing = " and no ".join(unknown)
        return Comparability(
            None,
            f"comparable with {LEADERBOARD} only if the judge is {JUDGE} "
            f"and the baseline {BASELINE}: the rows name no {missing}",
        )
    if num_instructions != NUM_INSTRUCTIONS:
        return Comparability(
            True,
            f"as on {LEADERBOARD}, but over {num_instructions} of {NUM_INSTRUCTIONS} instructions",
        )
    return Comparability(True, f"as on {LEADERBOARD}")


# Legend: N rows, F features: length, difficulty (where it is known), model.
Array = NDArray[np.float64]

GAMED_WEIGHT = 0.1
"""The weight of a gamed row: AlpacaEval's regularisation of 0.2, over two gamed models."""
CHOICES = tuple(float(choice) for choice in np.logspace(-4, 4, 10))
"""Inverse penalties to choose from (C in the names of scikit-learn)."""
NUM_FOLDS = 5
NUM_DRAWS, SEED = 200, 0


class Design(NamedTuple):
    """The rows that are fitted."""

    features: Array  # [N, F]
    targets: Array  # [N], from 0 to 1
    weights: Array  # [N]


@dataclass(frozen=True, slots=True)
class LengthControlled:
    """A fit; rates are in percent."""

    win_rate: float
    standard_error: float | None
    """Of the mean prediction, as AlpacaEval has it: the fit itself is taken as known."""
    weights: dict[str, float]
    """By feature."""
    inverse_penalty: float
    predictions: tuple[float, ...]
    """By row; their mean over some rows is the win rate of these."""


def length_controlled(
    judgements: Sequence[Judgement],
    difficulty: Sequence[float] | None,
    gamed: Sequence[GamedRow],
    *,
    inverse_penalty: float | None = None,
) -> LengthControlled | None:
    """Return the length-controlled win rate of one model; None if there are fewer rows than folds.

    A row without a verdict is predicted and not fitted. Without difficulties the fit has no such
    feature. The penalty is chosen by cross-validation, unless it is given.
    """
    design, wanted = _design(judgements, difficulty, gamed)
    if len(design.targets) < NUM_FOLDS:
        return None
    chosen = inverse_penalty or choose_penalty(design)
    weights = fit(design, chosen)
    predicted = expit(wanted @ weights)
    names = ["length", "difficulty", "model"] if difficulty is not None else ["length", "model"]
    return LengthControlled(
        win_rate=100 * float(predicted.mean()),
        standard_error=standard_error(100 * predicted),
        weights=dict(zip(names, map(float, weights), strict=True)),
        inverse_penalty=chosen,
        predictions=tuple(map(float, 100 * predicted)),
    )


def interval(
    judgements: Sequence[Judgement],
    difficulty: Sequence[float] | None,
    gamed: Sequence[GamedRow],
    fitted: LengthControlled,
) -> tuple[float, float]:
    """Return the 95 % interval of a length-controlled win rate, in percent.

    Percentile bootstrap over instructions; each draw is fitted again with the same penalty.
    """
    draw = np.random.default_rng(SEED)
    rates = []
    for _ in range(NUM_DRAWS):
        chosen = draw.integers(len(judgements), size=len(judgements))
        drawn = [judgements[index] for index in chosen]
        again = length_controlled(drawn, difficulty, gamed, inverse_penalty=fitted.inverse_penalty)
        rates += [again.win_rate] if again else []
    low, high = np.percentile(rates or [fitted.win_rate], [2.5, 97.5])
    return float(low), float(high)


def standard_error(values: Array) -> float | None:
    """Return the standard error of a mean; None of fewer than two values."""
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _design(
    judgements: Sequence[Judgement],
    difficulty: Sequence[float] | None,
    gamed: Sequence[GamedRow],
) -> tuple[Design, Array]:
    """Return the rows of the fit, gamed ones first, and the features of equal length, [N, F]."""
    gaps = np.array(
        [judgement.len_1 - judgement.len_2 for judgement in judgements], dtype=np.float64
    )
    spread = gaps.std(ddof=1) if len(gaps) > 1 else 0.0
    ones = np.ones(len(gaps))
    columns = [np.tanh(gaps / spread) if spread else 0 * ones, ones]
    if difficulty is not None:
        columns.insert(1, np.array([difficulty[judgement.row] for judgement in judgements]))
    model = np.stack(columns, axis=1)
    is_judged = np.array([judgement.preference is not None for judgement in judgements], dtype=bool)
    ours = [judgement.preference for judgement in judgements if judgement.preference is not None]
    held = [(np.tanh(row.length), row.difficulty, 0.0) for row in gamed]
    features = np.concatenate([np.array(held).reshape(-1, model.shape[1]), model[is_judged]])
    targets = np.array([*(row.preference for row in gamed), *ours])
    weights = np.array([*[GAMED_WEIGHT] * len(gamed), *[1.0] * len(ours)])
    model[:, 0] = 0
    return Design(features, targets, weights), model


def fit(design: Design, inverse_penalty: float) -> Array:
    """Return the weights [F] that minimise ``sum |w| + C * weighted cross entropy``, exactly."""
    # A weight is the difference of two that are not negative, which makes the penalty smooth.
    num_features = design.features.shape[1]
    scale = 1 / (inverse_penalty * max(float(design.weights.sum()), 1.0))

    def loss(halves: Array) -> tuple[float, Array]:
        logits = design.features @ (halves[:num_features] - halves[num_features:])
        slopes = design.weights * (expit(logits) - design.targets)
        gradient = scale * inverse_penalty * (design.features.T @ slopes)
        value = scale * (inverse_penalty * float(cross_entropy(design, logits).sum()))
        penalised = value + scale * float(halves.sum())
        return penalised, np.concatenate([gradient, -gradient]) + scale

    result: Any = minimize(
        loss,
        np.zeros(2 * num_features),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * (2 * num_features),
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 10_000},
    )
    halves: Array = result.x
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
    costs = [
        np.mean([_left_out(design, folds == fold, choice) for fold in range(NUM_FOLDS)])
        for choice in CHOICES
    ]
    return CHOICES[int(np.argmin(costs))]


def _left_out(design: Design, is_left_out: NDArray[np.bool_], inverse_penalty: float) -> float:
    weights = fit(Design(*(part[~is_left_out] for part in design)), inverse_penalty)
    rest = Design(*(part[is_left_out] for part in design))
    return float(cross_entropy(rest, rest.features @ weights).mean())
