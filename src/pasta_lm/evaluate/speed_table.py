"""The paper's table of speed: theoretical beside realised, both means, lengths, by system.

Speedups are held against the baseline system's answer to the same prompt. The headline is the
geometric mean; the arithmetic mean, which a few fast prompts can carry, stands beside it.

Source: PASTA, section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pasta_lm.errors import UsageError
from pasta_lm.evaluate.intervals import geometric_mean, mean
from pasta_lm.evaluate.quality import as_dict
from pasta_lm.evaluate.speed import realised, speed
from pasta_lm.evaluate.timings import Systems, Timing, kinds

Figures = dict[str, Any]


def speed_table(systems: Systems, baseline: str) -> dict[str, Figures]:
    """Return the figures of every system, the baseline first.

    Args:
        systems: Answers by system and prompt.
        baseline: The system that is the yardstick.

    Raises:
        UsageError: there is no such system.
    """
    if baseline not in systems:
        raise UsageError(
            f"no answers of the baseline {baseline!r}",
            hint=f"--baseline can be {', '.join(systems)}",
        )
    names = [baseline, *(name for name in systems if name != baseline)]
    return {name: _figures(systems[name], systems[baseline]) for name in names}


def _figures(ours: Mapping[str, Timing], theirs: Mapping[str, Timing]) -> Figures:
    """Return the figures over the prompts that both answered, in the baseline's order."""
    shared = [prompt for prompt in theirs if prompt in ours]
    answers, base = [ours[one] for one in shared], [theirs[one] for one in shared]
    return {
        "num_prompts": len(shared),
        "num_unpaired": len(ours) + len(theirs) - 2 * len(shared),
        "kinds": kinds(answers),
        **speed(answers, base),
        **realised(answers, base),
        **_arithmetic(answers, base),
        "efficiency": _efficiency(answers, base),
        "mean_characters": round(fmean(len(one.text) for one in answers), 1) if answers else None,
        "mean_content_tokens": (
            round(fmean(one.num_content_tokens for one in answers), 1) if answers else None
        ),
    }


def _arithmetic(answers: Sequence[Timing], base: Sequence[Timing]) -> Figures:
    pairs = list(zip(answers, base, strict=True))
    paths = [max(b.critical_path, 1) / max(a.critical_path, 1) for a, b in pairs]
    clocks = [b.wall_s / a.wall_s for a, b in pairs if a.wall_s and b.wall_s]
    return {
        "theoretical_speedup_arithmetic": as_dict(mean(paths)),
        "realised_speedup_arithmetic": as_dict(mean(clocks)),
        "parallelism_arithmetic": as_dict(mean([one.parallelism for one in answers])),
    }


def _efficiency(answers: Sequence[Timing], base: Sequence[Timing]) -> dict[str, float] | None:
    """Return realised / theoretical speedup, geometric mean over the prompts that have clocks."""
    ratios = [
        (b.wall_s / a.wall_s) / (max(b.critical_path, 1) / max(a.critical_path, 1))
        for a, b in zip(answers, base, strict=True)
        if a.wall_s and b.wall_s
    ]
    return as_dict(geometric_mean(ratios))
