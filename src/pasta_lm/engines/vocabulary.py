"""Tag pieces <-> token ids; encoding that never lets text become a tag.

The tokenizer given never encodes. Two copies of it do: one for prompts, to which only the tags do
not exist, and one for the text between tags, to which no special token exists and which adds
nothing to the ends of a text. Tag ids enter through the table of pieces alone. Needs the
``tokenizers`` library, never torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, Protocol

from tokenizers import Tokenizer

from pasta_lm.engines.tag_free import Json, as_middle_of_text, decoder_types, without_tokens
from pasta_lm.engines.text_stream import TextStream, TokenBytes
from pasta_lm.errors import VocabularyError
from pasta_lm.language.document import Block, Document, Item, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    MAX_UNITS,
    PIECES,
    PROMISE_OPEN,
    SYNC,
    closing_piece,
    escape_topic,
    unescape_topic,
    units_for,
)

_BREAKS_A_TOPIC = frozenset('"<>&' + "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")

_LEXEMES: dict[str, Lexeme] = {
    PROMISE_OPEN: Lexeme(LexemeKind.PROMISE_OPEN),
    ASYNC_OPEN: Lexeme(LexemeKind.ASYNC_OPEN),
    ASYNC_CLOSE: Lexeme(LexemeKind.ASYNC_CLOSE),
    SYNC: Lexeme(LexemeKind.SYNC),
} | {
    closing_piece(units): Lexeme(LexemeKind.PROMISE_CLOSE, units=units)
    for units in range(1, MAX_UNITS + 1)
}


class FastTokenizer(Protocol):
    """What is needed of a transformers tokenizer that the tokenizers library backs."""

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The tokenizer that does the work."""


class ChatTokenizer(FastTokenizer, Protocol):
    """A tokenizer that may know how its model wants conversations written."""

    chat_template: object

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        tokenize: Literal[False],
        add_generation_prompt: bool,
    ) -> object:
        """Write messages as one text."""


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """An answer as token ids: what main decodes, and what each block's thread decodes."""

    main: tuple[int, ...]
    """The main form: text, promises with their topics, syncs."""
    blocks: tuple[tuple[int, ...], ...]
    """In document order, each without its ``<async>`` and ``</async>``."""


class Vocabulary:
    """A tokenizer together with the ids of the tag pieces, if it has them.

    Attributes:
        piece_ids: Each tag piece's token id; empty for a model that was not taught the tags.
        num_tokens: One more than the largest token id. A model may have more rows than that.
        prompt_prefix: What the tokenizer puts before a prompt, such as a begin-of-text.
    """

    def __init__(
        self, tokenizer: FastTokenizer, piece_ids: Mapping[str, int] | None = None
    ) -> None:
        """Build the copies of the tokenizer as it now stands.

        Raises:
            VocabularyError: pieces are missing, or share an id.
        """
        self.piece_ids: Mapping[str, int] = MappingProxyType(dict(piece_ids or {}))
        if self.piece_ids:
            check_piece_ids(self.piece_ids)
        self._lexemes = {token_id: _LEXEMES[p] for p, token_id in self.piece_ids.items()}
        self._tokenizer = tokenizer
        backend = tokenizer.backend_tokenizer
        ids = backend.get_vocab(with_added_tokens=True)
        self.num_tokens = max(ids.values(), default=-1) + 1
        added = backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        specials = {token.content for token in added.values() if token.special}
        tag_ids = frozenset(self.piece_ids.values()).union(ids[p] for p in PIECES if p in ids)

        data: Json = json.loads(backend.to_str())
        self._prompts = _Encoder(without_tokens(data, PIECES, tag_ids), ids, tag_ids)
        between_tags = as_middle_of_text(without_tokens(data, {*PIECES, *specials}, tag_ids))
        self._texts = _Encoder(between_tags, ids, tag_ids)
        self.prompt_prefix = self._prompts.prefix()
        self._bytes = TokenBytes(
            backend.id_to_token,
            backend.decode,
            decoders=decoder_types(data),
            silent=tag_ids.union(ids[content] for content in specials),
            anchor=self._texts.encode("a"),
        )

    @property
    def has_pieces(self) -> bool:
        """Return whether the model was taught the tags."""
        return bool(self.piece_ids)

    def piece_id(self, piece: str) -> int:
        """Return a tag piece's token id.

        Raises:
            VocabularyError: this model was not taught the tags.
        """
        try:
            return self.piece_ids[piece]
        except KeyError:
            raise VocabularyError(f"the tokenizer has no token for {piece!r}") from None

    def id_to_lexeme(self, token_id: int) -> Lexeme | None:
        """Return what a tag piece says, or None for an ordinary token."""
        return self._lexemes.get(token_id)

    # --- text to ids

    def encode_text(self, text: str) -> list[int]:
        """Encode a stretch between two tags as ordinary text, nothing added at its ends."""
        return self._texts.encode(text)

    def encode_prompt(self, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Encode what a user asks: a text, or messages with a role and a content.

        A text gets the tokenizer's own prefix (begin-of-text), never a suffix. Messages are
        written by the chat template; without one, their contents make up a plain text, a
        paragraph each. Special tokens other than tags keep their meaning.
        """
        if isinstance(prompt, str):
            return [*self.prompt_prefix, *self._prompts.encode(prompt)]
        written = self._apply_chat_template([dict(message) for message in prompt])
        if written is not None:
            return self._prompts.encode(written)
        return self.encode_prompt("\n\n".join(message["content"] for message in prompt))

    def _apply_chat_template(self, messages: list[dict[str, str]]) -> str | None:
        tokenizer: ChatTokenizer = self._tokenizer  # type: ignore[assignment]
        if not getattr(tokenizer, "chat_template", None):
            return None
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )

    def encode_document(self, document: Document) -> EncodedDocument:
        """Encode an answer, each stretch between two tags alone.

        A block without a promised length gets the one that its tokens make; lengths beyond the
        largest closing piece are clamped to it.
        """
        blocks: list[tuple[int, ...]] = []
        main = self._encode_items(document.items, blocks)
        return EncodedDocument(tuple(main), tuple(blocks))

    def _encode_items(self, items: Sequence[Item], blocks: list[tuple[int, ...]]) -> list[int]:
        ids: list[int] = []
        for item in items:
            match item:
                case Text(text):
                    ids += self.encode_text(text)
                case Sync():
                    ids.append(self.piece_id(SYNC))
                case Block():
                    ids += self._encode_promise(item, blocks)
        return ids

    def _encode_promise(self, block: Block, blocks: list[tuple[int, ...]]) -> list[int]:
        """Encode a block's promise, and add the block itself (then those in it) to ``blocks``."""
        place = len(blocks)
        blocks.append(())
        blocks[place] = tuple(self._encode_items(block.items, blocks))
        length = sum(len(ids) + 2 for ids in blocks[place:])
        units = min(MAX_UNITS, units_for(length) if block.units is None else block.units)
        return [
            self.piece_id(PROMISE_OPEN),
            *self.encode_text(escape_topic(block.topic)),
            self.piece_id(closing_piece(units)),
        ]

    def count_tokens(self, written: str) -> int:
        """Return how many tokens a block's inside has, given in the written form."""
        encoded = self.encode_document(parse(written, max_depth=len(written)))
        return len(encoded.main) + sum(len(ids) + 2 for ids in encoded.blocks)

    # --- ids to text

    def text_stream(self, context: Sequence[int] = ()) -> TextStream:
        """Return what turns the ids after a context into text, one by one."""
        return TextStream(self._bytes, context)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of ordinary tokens in the middle of a text."""
        return b"".join(map(self._bytes.__getitem__, token_ids)).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """Return how a token reads in the middle of a text; tags and specials read as nothing."""
        return self._bytes[token_id].decode("utf-8", "replace")

    def lexemes(self, token_ids: Sequence[int]) -> Iterator[Lexeme]:
        """Yield tags and the text between them, topics unescaped."""
        stretch: list[int] = []
        in_topic = False
        for token_id in (*token_ids, None):
            tag = None if token_id is None else self._lexemes.get(token_id)
            if token_id is not None and tag is None:
                stretch.append(token_id)
                continue
            if text := self.text(stretch):
                yield Lexeme(LexemeKind.TEXT, unescape_topic(text) if in_topic else text)
            if tag is not None:
                yield tag
                in_topic = tag.kind is LexemeKind.PROMISE_OPEN
            stretch = []

    def decode_document(self, encoded: EncodedDocument) -> Document:
        """Return the answer that token ids spell, every promise with its block."""
        blocks = iter(encoded.blocks)
        return Document(self._decode_items(encoded.main, blocks))

    def _decode_items(
        self, token_ids: Sequence[int], blocks: Iterator[tuple[int, ...]]
    ) -> tuple[Item, ...]:
        items: list[Item] = []
        topic: str | None = None
        for lexeme in self.lexemes(token_ids):
            match lexeme.kind:
                case LexemeKind.PROMISE_OPEN:
                    topic = ""
                case LexemeKind.PROMISE_CLOSE:
                    inside = self._decode_items(next(blocks), blocks)
                    items.append(Block(topic or "", lexeme.units, inside))
                    topic = None
                case LexemeKind.SYNC:
                    items.append(Sync())
                case LexemeKind.TEXT if topic is None:
                    items.append(Text(lexeme.text))
                case LexemeKind.TEXT:
                    topic = lexeme.text
        return tuple(items)

    # --- what a mask needs

    @cached_property
    def topic_forbidden(self) -> frozenset[int]:
        """Ids that cannot stand in a topic.

        Special and added tokens, tokens of no text, of ``"``, ``<``, ``>``, ``&`` or a line
        break, and tokens that are a part of a character: a topic could end inside it.
        """
        texts = enumerate(map(self._whole_text, range(self.num_tokens)))
        plain = (i for i, text in texts if text and _BREAKS_A_TOPIC.isdisjoint(text))
        return frozenset(range(self.num_tokens)) - (frozenset(plain) - self._added_ids)

    @cached_property
    def non_space(self) -> frozenset[int]:
        """Ids whose text holds a character that is no white space."""
        texts = enumerate(map(self._whole_text, range(self.num_tokens)))
        return frozenset(i for i, text in texts if text and not text.isspace())

    def _whole_text(self, token_id: int) -> str | None:
        try:
            return self._bytes[token_id].decode()
        except UnicodeDecodeError:
            return None

    def check_round_trip(self, text: str) -> None:
        """Check that a text survives encoding, byte for byte.

        Raises:
            VocabularyError: the tokenizer loses or changes something, as one does that lowers
                case or folds characters.
        """
        back = self.text(self.encode_text(text))
        if back == text:
            return
        pairs = enumerate(zip(text, back, strict=False))
        place = next((i for i, (a, b) in pairs if a != b), min(len(text), len(back)))
        raise VocabularyError(
            f"the tokenizer changes text: {text[place : place + 20]!r} becomes "
            f"{back[place : place + 20]!r} (character {place + 1})",
            hint="train with a tokenizer that keeps case, spaces and characters as they are",
        )


class _Encoder:
    """A tag-free copy of a tokenizer that gives the ids of the original."""

    def __init__(self, data: Json, ids: Mapping[str, int], tag_ids: frozenset[int]) -> None:
        self._copy = Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
        spellings = self._copy.get_vocab(with_added_tokens=True)
        # Reading the copy back may have renumbered what followed a removed token.
        self._original = {token_id: ids[spelling] for spelling, token_id in spellings.items()}
        assert tag_ids.isdisjoint(self._original.values()), "a tag can still be encoded"

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, no begin-of-text before it."""
        encoding = self._copy.encode(text, add_special_tokens=False)
        return [self._original[token_id] for token_id in encoding.ids]

    def prefix(self) -> tuple[int, ...]:
        """Return what stands before any text; these ids are never renumbered."""
        encoding = self._copy.encode("a", add_special_tokens=True)
        num_before = (*encoding.special_tokens_mask, 0).index(0)
        return tuple(encoding.ids[:num_before])


def check_piece_ids(piece_ids: Mapping[str, int]) -> None:
    """Check that every tag piece has a token of its own.

    Raises:
        VocabularyError: pieces are missing, unknown, or share an id.
    """
    if missing := [piece for piece in PIECES if piece not in piece_ids]:
        raise VocabularyError(
            f"{len(missing)} of {len(PIECES)} tag pieces have no token, first {missing[0]!r}"
        )
    if unknown := [piece for piece in piece_ids if piece not in _LEXEMES]:
        raise VocabularyError(f"{unknown[0]!r} is no tag piece")
    if len(set(piece_ids.values())) < len(piece_ids):
        raise VocabularyError("two tag pieces share a token id")
