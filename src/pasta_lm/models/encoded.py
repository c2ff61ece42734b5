"""An answer as token ids: every stretch of text between two tags is encoded alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType

from pasta_lm.errors import VocabularyError
from pasta_lm.language import tags
from pasta_lm.language.document import NUM_BLOCK_TAGS, Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.parser import Form

_LEXEMES = {
    tags.PROMISE_OPEN: Lexeme(LexemeKind.PROMISE_OPEN),
    tags.ASYNC_OPEN: Lexeme(LexemeKind.ASYNC_OPEN),
    tags.ASYNC_CLOSE: Lexeme(LexemeKind.ASYNC_CLOSE),
    tags.SYNC: Lexeme(LexemeKind.SYNC),
}
for _units in range(1, tags.MAX_UNITS + 1):
    _LEXEMES[tags.closing_piece(_units)] = Lexeme(LexemeKind.PROMISE_CLOSE, units=_units)


class PieceTable:
    """The token ids of all tag pieces, or of none: a model that was not taught the tags."""

    def __init__(self, piece_ids: Mapping[str, int] | None = None) -> None:
        self.piece_ids: Mapping[str, int] = MappingProxyType(dict(piece_ids or {}))
        self.has_pieces = bool(piece_ids)
        if self.has_pieces:
            check_piece_ids(self.piece_ids)
        self._lexemes = {token_id: _LEXEMES[piece] for piece, token_id in self.piece_ids.items()}

    def piece_id(self, piece: str) -> int:
        if piece in self.piece_ids:
            return self.piece_ids[piece]
        hint = "this model was not taught the tags; a training adds them"
        raise VocabularyError(f"the tokenizer has no token for {piece!r}", hint=hint)

    def id_to_lexeme(self, token_id: int) -> Lexeme | None:
        return self._lexemes.get(token_id)


def check_piece_ids(ids: Mapping[str, int]) -> None:
    if missing := [piece for piece in tags.PIECES if piece not in ids]:
        share = f"{len(missing)} of {len(tags.PIECES)}"
        raise VocabularyError(f"{share} tag pieces have no token, first {missing[0]!r}")
    if unknown := [piece for piece in ids if piece not in _LEXEMES]:
        raise VocabularyError(f"{unknown[0]!r} is no tag piece")
    if len(set(ids.values())) < len(ids):
        raise VocabularyError("two tag pieces share a token id")


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """An answer as token ids: what main decodes, and what each block's thread decodes."""

    main: tuple[int, ...]  # the main form: text, promises with their topics, syncs
    blocks: tuple[tuple[int, ...], ...]  # in document order, without their ``<async>``

    @property
    def num_tokens(self) -> int:
        return len(self.main) + sum(len(ids) + NUM_BLOCK_TAGS for ids in self.blocks)

    def by_path(
        self, piece_id: Callable[[str], int], max_depth: int
    ) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Return the ids that each thread decodes, by its path: main is (), its k-th block (k,)."""
        by_path: dict[tuple[int, ...], tuple[int, ...]] = {(): self.main}
        blocks = iter(self.blocks)

        def add(path: tuple[int, ...]) -> None:
            ids = by_path[path] = next(blocks, ())
            # Without nesting a block holds no promise; ids that spell one anyway fork nothing.
            num_inside = ids.count(piece_id(tags.PROMISE_OPEN)) if len(path) < max_depth else 0
            for number in range(1, num_inside + 1):
                add((*path, number))

        numbers = count(1)
        while len(by_path) <= len(self.blocks):
            add((next(numbers),))
        return by_path


def encode_document(
    document: Document, pieces: PieceTable, encode_text: Callable[[str], list[int]],
    form: Form = Form.MAIN,
) -> EncodedDocument:  # fmt: skip
    """Encode an answer in form MAIN or FORKED, each stretch between two tags alone."""
    blocks: list[tuple[int, ...]] = []

    def encode_items(items: Iterable[Item]) -> Iterator[int]:
        for item in items:
            match item:
                case Text(text):
                    yield from encode_text(text)
                case Sync() if form is Form.FORKED:
                    raise VocabularyError("the forked form has no sync")
                case Sync():
                    yield pieces.piece_id(tags.SYNC)
                case Block():
                    yield from encode_promise(item)

    def encode_promise(block: Block) -> Iterator[int]:
        index = len(blocks)
        blocks.append(())  # takes its place before the blocks inside it
        blocks[index] = tuple(encode_items(block.items))
        length = sum(len(ids) + NUM_BLOCK_TAGS for ids in blocks[index:])
        units = tags.units_for(length) if block.units is None else block.units
        yield pieces.piece_id(tags.PROMISE_OPEN)
        if form is not Form.FORKED:
            yield from encode_text(tags.escape_topic(block.topic))
            yield pieces.piece_id(tags.closing_piece(min(units, tags.MAX_UNITS)))

    return EncodedDocument(tuple(encode_items(document.items)), tuple(blocks))
