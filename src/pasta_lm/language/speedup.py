"""How much faster an answer could be decoded than its text without tags, read off its structure.

Equals what the interpreter's trace says of the same tokens with as many threads as are asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from pasta_lm.language.document import Document
from pasta_lm.language.events import Sync, Text


def best_speedup(document: Document, count: Callable[[str], int]) -> float:
    """Return the theoretical speedup of an answer against its own text without tags.

    Args:
        document: An answer of depth 1.
        count: Returns how many tokens a text has.

    Returns:
        Tokens of the plain answer over tokens of the critical path, tags counted (PASTA,
        section 5), with as many threads as the answer asks for.
    """
    return max(count(document.plain_text), 1) / max(critical_path(document, count), 1)


def critical_path(document: Document, count: Callable[[str], int]) -> int:
    """Return the longest chain of tokens that must be decoded one after another."""
    main, pending, ends = 0, 0, 0
    for item in document.items:
        if isinstance(item, Text):
            main += count(item.text)
        elif isinstance(item, Sync):
            main = max(main, pending) + 1
            pending = 0
        else:
            main += 2 + count(item.topic)
            pending = max(pending, main + count(item.plain_text))
            ends = max(ends, pending)
    return max(main, ends)
