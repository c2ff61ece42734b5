"""Which token id is which piece of a tag, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pasta_lm.errors import VocabularyError
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    MAX_UNITS,
    PIECES,
    PROMISE_OPEN,
    SYNC,
    closing_piece,
)

_LEXEMES: dict[str, Lexeme] = {
    PROMISE_OPEN: Lexeme(LexemeKind.PROMISE_OPEN),
    ASYNC_OPEN: Lexeme(LexemeKind.ASYNC_OPEN),
    ASYNC_CLOSE: Lexeme(LexemeKind.ASYNC_CLOSE),
    SYNC: Lexeme(LexemeKind.SYNC),
} | {
    closing_piece(units): Lexeme(LexemeKind.PROMISE_CLOSE, units=units)
    for units in range(1, MAX_UNITS + 1)
}


class PieceTable:
    """The token ids of all tag pieces, or of none: a model that was not taught the tags.

    Attributes:
        ids: Each piece's token id.
    """

    def __init__(self, ids: Mapping[str, int] | None = None) -> None:
        """Check the ids and keep them.

        Raises:
            VocabularyError: pieces are missing, unknown, or share an id.
        """
        self.ids: Mapping[str, int] = MappingProxyType(dict(ids or {}))
        if self.ids:
            check_piece_ids(self.ids)
        self._lexemes = {token_id: _LEXEMES[piece] for piece, token_id in self.ids.items()}

    def __getitem__(self, piece: str) -> int:
        try:
            return self.ids[piece]
        except KeyError:
            raise VocabularyError(
                f"the tokenizer has no token for {piece!r}",
                hint="this model was not taught the tags; a training adds them",
            ) from None

    def lexeme(self, token_id: int) -> Lexeme | None:
        """Return what a tag piece says, or None for an ordinary token."""
        return self._lexemes.get(token_id)


def check_piece_ids(ids: Mapping[str, int]) -> None:
    """Check that every tag piece has a token of its own.

    Raises:
        VocabularyError: pieces are missing, unknown, or share an id.
    """
    if missing := [piece for piece in PIECES if piece not in ids]:
        raise VocabularyError(
            f"{len(missing)} of {len(PIECES)} tag pieces have no token, first {missing[0]!r}"
        )
    if unknown := [piece for piece in ids if piece not in _LEXEMES]:
        raise VocabularyError(f"{unknown[0]!r} is no tag piece")
    if len(set(ids.values())) < len(ids):
        raise VocabularyError("two tag pieces share a token id")
