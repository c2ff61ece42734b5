"""The metrics of speed, each defined once: critical path, parallelism, speedups, efficiency.

Both sides of a ratio count fed tokens: the last token of a cut answer is decoded and never fed.
One thread has parallelism and theoretical speedup exactly 1. A path of no token counts as one.

Source: PASTA, section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable

from pasta_lm.language.document import Document
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.tags import escape_topic


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
    """Return the share of the theoretical speedup that was realised."""
    return realised / theoretical


def document_critical_path(document: Document, count_tokens: Callable[[str], int]) -> int:
    """Return the critical path of an answer of depth 1: its trace's with unlimited threads."""
    main, pending, ends = 0, 0, 0
    for item in document.items:
        if isinstance(item, Text):
            main += count_tokens(item.text)
        elif isinstance(item, Sync):
            main, pending = max(main, pending) + 1, 0
        else:
            # A promise has two pieces around its topic, which is decoded as it is written.
            main += 2 + count_tokens(escape_topic(item.topic))
            pending = max(pending, main + count_tokens(item.plain_text))
            ends = max(ends, pending)
    return max(main, ends)


def document_speedup(document: Document, count_tokens: Callable[[str], int]) -> float:
    """Return the theoretical speedup of an answer over its own plain text."""
    path = document_critical_path(document, count_tokens)
    is_parallel = bool(document.blocks)
    return speedup_over_text(count_tokens(document.plain_text), path, is_parallel=is_parallel)
