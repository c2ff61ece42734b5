"""Which of main's tokens decide the structure of an answer: its forks, its syncs, its end.

Stage one may weigh these labels more (``train.decision_weight``), and stage two may learn them
alone (``loss.on = "decisions"``).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from pasta_lm.language.lexer import LexemeKind
from pasta_lm.models.vocabulary import Vocabulary


def decisions_of(main: Sequence[int], vocabulary: Vocabulary) -> list[bool]:
    """Return which labels of main are decisions about structure, the end-of-text as the last one.

    A decision is a tag, a topic or the end-of-text; text that main writes while a block is pending;
    and a token at a boundary, where one of these could have stood: the first of a line, and white
    space after punctuation other than a comma. Other text of main, and all text of blocks, is none.

    Our own definition: a small model's losses against its sequential baseline were decisions of
    main, which ended early or promised an item twice (``docs/training.md``).

    Args:
        main: What main decodes, without the end-of-text: text, promises, syncs.
        vocabulary: With tag pieces if main has tags.

    Returns:
        One flag for each token of main, and one for the end-of-text.
    """
    flags: list[bool] = []
    is_pending, before = False, "\n"
    for token in main:
        lexeme, text = vocabulary.id_to_lexeme(token), vocabulary.token_text(token)
        flags.append(is_pending or lexeme is not None or _is_boundary(before, text))
        if lexeme is not None:
            is_pending = lexeme.kind is not LexemeKind.SYNC
        before = text or "\n"  # a tag has no text; what follows a sync begins a part
    return [*flags, True]


def _is_boundary(before: str, text: str) -> bool:
    """Return whether a promise could have stood between two tokens of text."""
    if before.rstrip(" ").endswith("\n"):
        return True
    mark = before[-1]
    is_mark = mark != "," and unicodedata.category(mark).startswith("P")
    return is_mark and text[:1].isspace()
