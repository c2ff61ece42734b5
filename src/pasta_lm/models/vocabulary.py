"""A tokenizer with the ids of the tag pieces; it never encodes text as a tag.

Two copies of the tokenizer encode. The copy for prompts lacks the tags. The copy for text between
tags lacks all special tokens and adds nothing to the ends of a text. Tag ids come from the table of
pieces alone. Needs the ``tokenizers`` library, never torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol

from tokenizers import AddedToken, Tokenizer

from pasta_lm.errors import RequestError, VocabularyError
from pasta_lm.language.document import Document, parse
from pasta_lm.language.lexer import Lexeme
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import PIECES
from pasta_lm.models import tag_free
from pasta_lm.models.encoded import DocumentEncoder, EncodedDocument, PieceTable
from pasta_lm.models.text_stream import TextStream, TokenBytes

_TURN = "(the turn of the model)"  # marks the place of the model's answer in a chat template
_MARKER = "(the words of the user)"
_WORDS = "doggone quickness"  # several tokens a word in most tokenizers
_BREAKS_A_TOPIC = frozenset('"<>&' + "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")


class FastTokenizer(Protocol):
    """A transformers tokenizer that the tokenizers library backs."""

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The tokenizer that does the work."""


class Vocabulary:
    """A tokenizer together with the ids of the tag pieces, if it has them."""

    def __init__(
        self, tokenizer: FastTokenizer, piece_ids: Mapping[str, int] | None = None
    ) -> None:
        """Build the copies of the tokenizer as it now stands."""
        self._pieces = PieceTable(piece_ids)
        self.tokenizer = tokenizer  # as it was given; it never encodes here
        backend = tokenizer.backend_tokenizer
        ids = backend.get_vocab(with_added_tokens=True)
        # One more than the largest token id; a model may have more rows than that.
        self.num_tokens = max(ids.values(), default=-1) + 1
        added = backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        tag_ids = frozenset(self.piece_ids.values()).union(ids[p] for p in PIECES if p in ids)
        special_ids = frozenset(i for i, token in added.items() if token.special)

        copies = _Copies(backend, tag_ids, special_ids)
        self._prompts, self._texts = copies.prompts, copies.texts
        self.prompt_prefix = self._prompts.prefix()  # such as a begin-of-text
        self._bytes = TokenBytes(
            backend,
            tag_free.decoder_types(copies.data),
            silent=tag_ids | special_ids,
            anchor=self._texts.encode("a"),
        )
        self._check_words(backend)

    @property
    def piece_ids(self) -> Mapping[str, int]:
        """Return each tag piece's token id; empty for a model that was not taught the tags."""
        return self._pieces.ids

    @property
    def has_pieces(self) -> bool:
        """Return whether the model was taught the tags."""
        return bool(self.piece_ids)

    def piece_id(self, piece: str) -> int:
        """Return a tag piece's token id; a ``VocabularyError`` if the model has none."""
        return self._pieces[piece]

    def id_to_lexeme(self, token_id: int) -> Lexeme | None:
        """Return the lexeme of a tag piece, or None for an ordinary token."""
        return self._pieces.lexeme(token_id)

    # --- text to ids

    def encode_text(self, text: str) -> list[int]:
        """Encode a stretch between two tags as ordinary text, nothing added at its ends."""
        return self._texts.encode(text)

    def encode_prompt(self, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Encode a prompt: a text, or messages with a role and a content.

        A text gets the tokenizer's own prefix (begin-of-text), never a suffix. Messages are
        written by the chat template; without one, their contents make up a plain text, a
        paragraph each. Special tokens other than tags keep their meaning.
        """
        if isinstance(prompt, str):
            return [*self.prompt_prefix, *self._prompts.encode(prompt)]
        messages = [dict(message) for message in prompt]
        if self.has_chat_template:
            return self._prompts.encode(self._apply_chat_template(messages))
        if not all(isinstance(message.get("content"), str) for message in messages):
            raise RequestError("a message has no text as its content")
        return self.encode_prompt("\n\n".join(message["content"] for message in messages))

    @property
    def has_chat_template(self) -> bool:
        """Return whether the tokenizer has a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def _apply_chat_template(self, messages: list[dict[str, str]]) -> str:
        if self._takes_parts:
            return self._render([_with_parts(message) for message in messages])
        return self._render(messages)

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the chat template reads a content as a list of parts only, and drops a text."""
        is_dropped, message = False, {"role": "user", "content": _MARKER}
        for takes_parts in (False, True):
            with suppress(RequestError):  # then the messages themselves will tell
                text = self._render([_with_parts(message) if takes_parts else message])
                if _MARKER in text.lower():
                    return takes_parts
                is_dropped = True
        if is_dropped:
            raise RequestError(
                "the chat template leaves out the words of the user",
                hint="mend the model's chat template, or give the prompt as a text",
            )
        return False

    def _render(self, messages: Sequence[Mapping[str, object]]) -> str:
        tokenizer: Any = self.tokenizer  # with a chat template it has the method to apply it
        try:
            # Where a template has both, the model answers at once: Qwen 3 would think first.
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        except Exception as exc:  # a template is a program of the model's authors
            raise RequestError(f"the chat template refuses the messages: {exc}") from exc
        return str(text)

    def encode_reply(self, text: str) -> list[int]:
        """Encode a user's reply to a turn of the model, from that turn's end on.

        The chat template writes it; without one, it is a paragraph of its own.
        """
        if not self.has_chat_template:
            return self.encode_text(f"\n\n{text}\n\n")
        turns = ("user", "?"), ("assistant", _TURN), ("user", text)
        messages = [{"role": role, "content": content} for role, content in turns]
        _, turn, after = self._apply_chat_template(messages).partition(_TURN)
        if not turn:
            raise RequestError("the chat template leaves out the turns of the model")
        return self._prompts.encode(after)

    def encode_document(self, document: Document, form: Form = Form.MAIN) -> EncodedDocument:
        """Encode an answer in form MAIN or FORKED, each stretch between two tags alone.

        A block without a promised length gets the length of its tokens; lengths above the largest
        closing piece are clamped.
        """
        return DocumentEncoder(self._pieces, self.encode_text, form).encode(document)

    def count_tokens(self, written: str) -> int:
        """Return how many tokens a block's inside has, given in the written form."""
        return self.encode_document(parse(written, max_depth=len(written))).num_tokens

    # --- ids to text

    def text_stream(self) -> TextStream:
        """Return a decoder that turns ids in the middle of a text into text, one by one."""
        return TextStream(self._bytes)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of ordinary tokens in the middle of a text."""
        return b"".join(map(self._bytes.__getitem__, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes in the middle of a text; tags and specials have none."""
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """Return how a token reads in the middle of a text; tags and specials read as nothing."""
        return self._bytes[token_id].decode("utf-8", "replace")

    # --- sets of ids for masks

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
        """Ids of tokens that hold a character other than white space."""
        texts = enumerate(map(self._whole_text, range(self.num_tokens)))
        return frozenset(i for i, text in texts if text and not text.isspace())

    def _whole_text(self, token_id: int) -> str | None:
        try:
            return self._bytes[token_id].decode()
        except UnicodeDecodeError:
            return None

    def _check_words(self, backend: Tokenizer) -> None:
        """Refuse a tokenizer whose tokens do not read as its own decoder reads them together."""
        ids = self.encode_text(_WORDS)
        mine, whole = self.text(ids).strip(), backend.decode(ids).strip()
        if mine not in (_WORDS, whole):
            raise VocabularyError(
                f"the tokenizer's tokens cannot be read one by one: {_WORDS!r} becomes {mine!r}, "
                f"and its own decoder reads {whole!r}",
                hint="name a model whose tokens stand for fixed text, such as a byte-level BPE",
            )

    def check_round_trip(self, text: str) -> None:
        """Check that a text survives encoding, byte for byte."""
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


def _with_parts(message: Mapping[str, str]) -> dict[str, object]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]}


class _Copies:
    """Makes the two copies of a tokenizer, which share one model.

    The model is the tokenizer's own, or a rebuilt one if its own could match a forbidden token.
    """

    def __init__(
        self, backend: Tokenizer, tag_ids: frozenset[int], special_ids: frozenset[int]
    ) -> None:
        self.data: tag_free.Json = json.loads(backend.to_str())
        added = backend.get_added_tokens_decoder()
        special = {i: token for i, token in added.items() if i in special_ids - tag_ids}
        ordinary = {i: token for i, token in added.items() if i not in tag_ids | special_ids}
        self._tag_ids = tag_ids
        gone = {*PIECES, *(added[token_id].content for token_id in special_ids)}
        rebuilt = tag_free.without_tokens(self.data["model"], gone, tag_ids)
        if rebuilt is None:
            self._model = backend.model
            self._ids = list(range(backend.get_vocab_size(with_added_tokens=False)))
        else:
            alone = {**tag_free.stages(self.data), "model": rebuilt.model}
            self._model = Tokenizer.from_str(json.dumps(alone, ensure_ascii=False)).model
            self._ids = rebuilt.original_ids
        self.prompts = self._copy(self.data, special | ordinary)
        self.texts = self._copy(tag_free.as_middle_of_text(self.data), ordinary)

    def _copy(self, data: tag_free.Json, added: Mapping[int, AddedToken]) -> _Encoder:
        copy = Tokenizer.from_str(json.dumps(tag_free.stages(data)))
        copy.model = self._model
        copy.add_tokens(list(added.values()))
        # The copy numbers added tokens as it likes; the model's tokens have no gaps between them.
        original = {token.content: token_id for token_id, token in added.items()}
        copied = copy.get_added_tokens_decoder()
        ids = dict(enumerate(self._ids)) | {i: original[t.content] for i, t in copied.items()}
        # Without the tags' own ids a mistake above would be a KeyError, never a fork.
        return _Encoder(copy, {i: kept for i, kept in ids.items() if kept not in self._tag_ids})


class _Encoder:
    """A tag-free copy of a tokenizer that gives the ids of the original."""

    def __init__(self, copy: Tokenizer, original_ids: Mapping[int, int]) -> None:
        self._copy = copy
        self._original_ids = original_ids

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, no begin-of-text before it."""
        try:
            encoding = self._copy.encode(text, add_special_tokens=False)
        except TypeError as exc:
            raise RequestError("a text holds half a surrogate pair: it is no Unicode") from exc
        return [self._original_ids[token_id] for token_id in encoding.ids]

    def prefix(self) -> tuple[int, ...]:
        """Return the ids before any text, which are the same in the copy."""
        encoding = self._copy.encode("a", add_special_tokens=True)
        num_before = (*encoding.special_tokens_mask, 0).index(0)
        return tuple(encoding.ids[:num_before])
