"""Win rates from stored judgements: plain, length-controlled, and comparable with the leaderboard.

Rows without a verdict are counted and named. While one is missing there is no win rate unless
that is allowed; then the rate with the missing rows lost stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pasta_lm.errors import InputError
from pasta_lm.evaluate.judgements import GamedRow, Judgement
from pasta_lm.evaluate.length_control import LengthControlled, length_controlled, standard_error

Figures = dict[str, Any]
HEADLINES = ("win_rate", "standard_error", "length_controlled_winrate", "lc_standard_error")
LEADERBOARD = "AlpacaEval 2's leaderboard"
JUDGE = "weighted_alpaca_eval_gpt4_turbo"
"""AlpacaEval 2's judge: gpt-4-1106-preview with a template of its own."""
BASELINE = "gpt4_1106_preview"
NUM_INSTRUCTIONS = 805
NUM_NAMED = 10
"""Missing rows that a message names."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the length-controlled fit knows of the instructions."""

    difficulty: Sequence[float] | None = None
    """By row; None: not known."""
    gamed: Sequence[GamedRow] = ()
    """Empty without difficulty."""


def win_rate_figures(
    judgements: Sequence[Judgement], calibration: Calibration, *, allow_missing: bool = False
) -> Figures:
    """Return all figures of one model; rates and errors are in percent.

    ``n_total`` counts verdicts, ``missing_rows`` names the rows without one, ``n_absent`` is how
    many instructions have a difficulty and no row. Where verdicts are missing and that is not
    allowed, the headlines are None and ``refused`` says why.

    Raises:
        InputError: a row has no difficulty.
    """
    _check_rows(judgements, calibration)
    figures = plain_figures(judgements)
    fitted = fitted_of(judgements, calibration)
    known = None if calibration.difficulty is None else len(calibration.difficulty)
    figures |= {
        "n_absent": None if known is None else known - len(judgements),
        "length_controlled_winrate": fitted and fitted.win_rate,
        "lc_standard_error": fitted and fitted.standard_error,
        "lc_weights": fitted and fitted.weights,
        "lc_inverse_penalty": fitted and fitted.inverse_penalty,
    }
    missing = figures["missing_rows"]
    if missing and not allow_missing:
        figures |= dict.fromkeys((*HEADLINES, "lc_weights", "win_rate_missing_lost"))
        figures["refused"] = refusal(len(judgements), missing)
    return figures


def plain_figures(judgements: Sequence[Judgement]) -> Figures:
    """Return the figures that need no fit, over the rows that have a verdict."""
    given = np.array([one.preference for one in judgements if one.preference is not None])
    missing = [one.row for one in judgements if one.preference is None]
    return {
        "win_rate": 100 * float(given.mean()) if len(given) else None,
        "standard_error": standard_error(100 * given),
        "n_total": len(given),
        "n_wins": int((given > 0.5).sum()),
        "n_wins_base": int((given < 0.5).sum()),
        "n_draws": int((given == 0.5).sum()),
        "n_missing": len(missing),
        "missing_rows": missing,
        "avg_length": int(np.mean([one.len_2 for one in judgements])) if judgements else None,
        "win_rate_missing_lost": 100 * float(given.sum()) / len(judgements) if missing else None,
    }


def fitted_of(judgements: Sequence[Judgement], calibration: Calibration) -> LengthControlled | None:
    """Return the length-controlled fit; None if there is too little to fit."""
    if all(one.preference is None for one in judgements):
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
    beyond = [one.row for one in judgements if one.row >= known]
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

    Args:
        judge: The judge's name; None: not recorded.
        baseline: The name of the reference; None: not recorded.
        num_instructions: How many verdicts there are.
        has_difficulty: Whether the fit knew the instructions' difficulty.
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
