"""What a win rate may be held against: AlpacaEval 2's leaderboard has one judge and one reference.

Another judge, template or baseline gives another number for the same answers, so each result says
what differs; nobody has to remember it.
"""

from __future__ import annotations

from typing import NamedTuple

LEADERBOARD = "AlpacaEval 2's leaderboard"
JUDGE = "weighted_alpaca_eval_gpt4_turbo"
"""AlpacaEval 2's judge: gpt-4-1106-preview with a template of its own."""
BASELINE = "gpt4_1106_preview"
NUM_INSTRUCTIONS = 805


class Comparability(NamedTuple):
    """Whether a result may stand beside the leaderboard's."""

    is_comparable: bool | None
    """None: the file does not say who judged."""
    label: str
    """What is printed beside the figure."""


def comparability(
    judge: str | None, baseline: str | None, num_instructions: int, *, has_difficulty: bool = True
) -> Comparability:
    """Tell whether a result is one of the leaderboard's kind, and if not why.

    Args:
        judge: Its name; None: not recorded.
        baseline: Whose answers were the reference; None: not recorded.
        num_instructions: How many verdicts there are.
        has_difficulty: Whether the instructions' difficulty entered the fit.
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
