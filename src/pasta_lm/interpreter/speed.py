"""The metrics of speed, each defined once: parallelism, speedups, efficiency.

Both sides of a ratio count fed tokens: the last token of a cut answer is decoded and never fed.
One thread has parallelism and theoretical speedup exactly 1. A path of no token counts as one.

Source: PASTA, section 5.1.
"""

from __future__ import annotations


def parallelism(num_content_tokens: int, critical_path: int, *, is_parallel: bool = True) -> float:
    """Return content tokens / critical path; below 1 the tags cost more than threads gain."""
    return num_content_tokens / max(critical_path, 1) if is_parallel else 1.0


def theoretical_speedup(baseline_path: int, critical_path: int) -> float:
    """Return critical path of the baseline's answer / critical path of this answer."""
    return max(baseline_path, 1) / max(critical_path, 1)


def speedup_over_text(
    num_text_tokens: int, critical_path: int, *, is_parallel: bool, is_cut: bool = False
) -> float:
    """Return the speedup over the same text in one thread; cut text has a last token not fed."""
    return theoretical_speedup(num_text_tokens - is_cut, critical_path) if is_parallel else 1.0


def realised_speedup(baseline_s: float, wall_s: float) -> float:
    """Return seconds of the baseline / seconds of this answer: same engine, machine and run."""
    return baseline_s / wall_s


def efficiency(realised: float, theoretical: float) -> float:
    return realised / theoretical
