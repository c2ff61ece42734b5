"""A tokenizer with the ids of the tag pieces; it never encodes text as a tag.

Copies of the tokenizer without the tags encode; tag ids come from the table of pieces alone.
Needs the ``tokenizers`` library, never torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from inspect import signature
from itertools import groupby
from os.path import commonprefix
from typing import TYPE_CHECKING, TypeVar, cast

from tokenizers import Tokenizer

from pasta_lm.errors import RequestError, VocabularyError
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import PIECES
from pasta_lm.models.encoded import EncodedDocument, PieceTable, encode_document
from pasta_lm.models.plain_text import TextStream, TokenBytes, tag_free_copies
from pasta_lm.models.thinking import Thinking, think_kwargs, thinking_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_TURN = "(the turn of the model)"  # marks the place of the model's answer in a chat template
_MARKER = "(the words of the user)"
T = TypeVar("T")
_GUARD = "\ufdd0"  # breaks a special token in a message; Unicode has no character there
_WORDS = "doggone quickness"  # several tokens a word in most tokenizers
_TAIL = 64  # tokens at the end of a prompt, among which the mark of a thought is looked for
_BREAKS_A_TOPIC = frozenset('"<>&' + "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")


class Vocabulary(PieceTable):
    """A tokenizer together with the ids of the tag pieces, if it has them."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, piece_ids: Mapping[str, int] | None = None,
        thinking: Thinking | None = None,
    ) -> None:  # fmt: skip
        super().__init__(piece_ids)
        self.tokenizer = tokenizer  # as it was given; it never encodes here
        backend = tokenizer.backend_tokenizer
        ids = backend.get_vocab(with_added_tokens=True)
        # One more than the largest token id; a model may have more rows than that.
        self.num_tokens = max(ids.values(), default=-1) + 1
        added = backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        tag_ids = frozenset(self.piece_ids.values()).union(ids[p] for p in PIECES if p in ids)
        special_ids = frozenset(i for i, token in added.items() if token.special)
        special = sorted((added[i].content for i in special_ids), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self.thinking = thinking or thinking_of(str(tokenizer.chat_template))
        self.thinks: bool | None = None  # where a request does not say; None: as its template does

        self._prompts, self._texts, decoders = tag_free_copies(backend, tag_ids, special_ids)
        self.prompt_prefix = self._prompts.prefix()  # such as a begin-of-text
        anchor, silent = self._texts.encode("a"), tag_ids | special_ids
        self._bytes = TokenBytes(backend, decoders, silent=silent, anchor=anchor)
        self._check_words(backend)

    def encode_text(self, text: str) -> list[int]:
        """Encode a stretch between two tags as ordinary text, nothing added at its ends."""
        return self._texts.encode(text)

    def encode_prompt(
        self, prompt: str | Sequence[Mapping[str, object]], *, continues: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[int]:  # fmt: skip
        """Encode a text behind the tokenizer's prefix, or messages by its chat template.

        Without a template each content is a paragraph. Special tokens other than tags are such in a
        text; in a message they are text. ``continues`` leaves the last message open, to be
        continued. ``chat_template_kwargs`` are variables of the template; without them the model is
        to answer at once, without a thought.
        """
        if isinstance(prompt, str):
            return [*self.prompt_prefix, *self._prompts.encode(prompt)]
        if self.has_chat_template:
            at_once = think_kwargs(False)
            kwargs = at_once if chat_template_kwargs is None else {**chat_template_kwargs}
            guarded, kwargs = self._guarded([*prompt]), self._guarded(kwargs)
            self._check_template()
            is_open = not continues
            begun = str(guarded[-1].get("content") or "") if continues and prompt[1:] else ""
            if self._begins_thought(begun):  # templates move the thought of a reply, or drop it
                text = self._before_thought(self._render(guarded[:-1], kwargs)) + begun
            else:
                text = self._render(guarded, kwargs, is_open=is_open)
            if is_open and False in (kwargs.get("enable_thinking"), kwargs.get("thinking")):
                text = self._without_thought(text)
            return self._encode_guarded(text) if _GUARD in text else self._prompts.encode(text)
        contents = [message.get("content") for message in prompt]
        texts = [content for content in contents if isinstance(content, str)]
        if len(texts) < len(prompt):
            raise RequestError("a message has no text as its content")
        return self.encode_prompt("\n\n".join(texts))

    def _guarded(self, value: T) -> T:
        guarded: object = value
        if isinstance(value, str):
            guarded = self._special.sub(lambda token: token[0][0] + _GUARD + token[0][1:], value)
        elif isinstance(value, list):
            guarded = [*map(self._guarded, value)]
        elif isinstance(value, Mapping):
            guarded = {self._guarded(key): self._guarded(inner) for key, inner in value.items()}
        return cast("T", guarded)

    def _without_thought(self, text: str) -> str:
        marks = self.thinking
        if marks is not None and text.rstrip().endswith(marks.start):
            return f"{text.rstrip()}\n\n{marks.end}\n\n"
        return text if marks is None or text.endswith(marks.skip) else text + marks.skip

    def with_thought(self, prompt: Sequence[int]) -> list[int]:
        return [*prompt, *self._prompts.encode(self.thinking.start if self.thinking else "")]

    def encode_thought(self, text: str, prompt: Sequence[int]) -> list[int]:
        """Encode a thought with its marks, as it stands between a prompt and an answer."""
        after = self.thinking_after(prompt)
        if self.thinking is None or after is None:
            raise RequestError("the chat template of this model leaves no place for a thought")
        start, end, line = self.thinking.start, self.thinking.end, "\n" * (not self.thinking.skip)
        head = self._prompts.encode("" if after.is_open else start + line)
        return [*head, *self._texts.encode(text), *self._prompts.encode(line + end + 2 * line)]

    @cached_property
    def _coded_marks(self) -> Thinking | None:
        backend, marks = self.tokenizer.backend_tokenizer, self.thinking
        if marks is None:
            return None
        added = {t.content: i for i, t in backend.get_added_tokens_decoder().items()}
        return marks.coded(added, tuple(self._prompts.encode(marks.end)))

    def thinking_after(self, prompt: Sequence[int]) -> Thinking | None:
        """Return the marks of the thought that may follow a prompt; None: none does."""
        marks = self._coded_marks
        if marks is None:
            return None
        return marks.after("".join(marks.codes.get(i) or self.text([i]) for i in prompt[-_TAIL:]))

    def thinking_within(self, begun: str, prompt: Sequence[int]) -> Thinking | None:
        """Return the marks of the thought in which a prompt stops that ends with a begun reply."""
        marks, seen = self.thinking, begun.strip()
        if marks is None or self._coded_marks is None or not seen:
            return self.thinking_after(prompt)
        if not self._begins_thought(begun) or marks.end in seen:
            return None
        return replace(self._coded_marks, is_open=True, is_begun=seen != marks.start)

    def _begins_thought(self, reply: str) -> bool:
        """Return whether a reply begins with a mark; one that is a special token is text in it."""
        start = self.thinking.start if self.thinking else ""
        return bool(start and not self._special.search(start) and reply.lstrip().startswith(start))

    def _before_thought(self, text: str) -> str:
        """Return a prompt without a thought at its end, be it open or empty."""
        marks = self.thinking or Thinking("", "")
        start, end = re.escape(marks.start), re.escape(marks.end)
        return re.sub(rf"{start}\s*(?:{end}\s*)?\Z", "", text)

    def _encode_guarded(self, text: str) -> list[int]:
        pieces = re.split(f"({self._special.pattern})", text)
        ids: list[int] = []
        for is_marked, group in groupby(pieces, key=lambda piece: _GUARD in piece):
            stretch = "".join(group).replace(_GUARD, "")
            ids += (self._texts if is_marked else self._prompts).encode(stretch)
        return ids

    @property
    def has_chat_template(self) -> bool:
        return bool(self.tokenizer.chat_template)

    @cached_property
    def _drops_texts(self) -> bool:
        """Return whether the chat template leaves out a content that is a text."""
        with suppress(RequestError):  # then the messages themselves will tell
            return _MARKER not in self._render([{"role": "user", "content": _MARKER}], {}).lower()
        return False

    def _check_template(self) -> None:
        if self._drops_texts:
            reason = "the chat template leaves out the words of the user"
            hint = "mend it if it reads lists of parts only, or give the prompt as a text"
            raise RequestError(reason, hint=hint)

    def _render(
        self, prompt: Sequence[Mapping[str, object]], kwargs: Mapping[str, object], *,
        is_open: bool = True,
    ) -> str:  # fmt: skip
        messages = [dict(message) for message in prompt]
        taken = {"messages", *signature(self.tokenizer.apply_chat_template).parameters} - {"tools"}
        if names := sorted(taken & kwargs.keys()):
            raise RequestError(f"no request may set the variable {names[0]} of the chat template")
        try:
            text = self.tokenizer.apply_chat_template(
                cast("list[dict[str, str]]", messages), tokenize=False,
                add_generation_prompt=is_open, continue_final_message=not is_open,
                **kwargs,  # type: ignore[arg-type]  # they are none of its parameters
            )  # fmt: skip
        except Exception as exc:  # a template is a program of the model's authors
            raise RequestError(f"the chat template refuses the messages: {exc}") from exc
        return str(text)

    def encode_reply(self, text: str) -> list[int]:
        """Encode a reply to a turn of the model, from that turn's end on; no thought follows."""
        if not self.has_chat_template:
            return self.encode_text(f"\n\n{text}\n\n")
        self._check_template()
        turns = ("user", "?"), ("assistant", _TURN), ("user", text)
        messages = [{"role": role, "content": content} for role, content in turns]
        text = self._render(messages, think_kwargs(False))
        _, turn, after = self._without_thought(text).partition(_TURN)
        if not turn:
            raise RequestError("the chat template leaves out the turns of the model")
        return self._prompts.encode(after)

    def encode_document(self, document: Document, form: Form = Form.MAIN) -> EncodedDocument:
        """Encode an answer in form MAIN or FORKED; lengths that no block promises are counted."""
        return encode_document(document, self, self.encode_text, form)

    def count_tokens(self, written: str) -> int:
        return self.encode_document(parse(written, max_depth=len(written))).num_tokens

    def text_stream(self) -> TextStream:
        return TextStream(self._bytes)

    def text(self, token_ids: Sequence[int]) -> str:
        return b"".join(self._bytes[i] for i in token_ids).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes in the middle of a text; tags and specials have none."""
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """Return the token's text in the middle of a text; that of tags and specials is empty."""
        return self._bytes[token_id].decode("utf-8", "replace")

    @cached_property
    def topic_forbidden(self) -> frozenset[int]:
        """Return the ids that cannot stand in a topic, such as parts of a character or a quote."""
        plain = (i for i, text in self._whole_texts if _BREAKS_A_TOPIC.isdisjoint(text))
        return frozenset(range(self.num_tokens)) - (frozenset(plain) - self._added_ids)

    @cached_property
    def non_space(self) -> frozenset[int]:
        return frozenset(i for i, text in self._whole_texts if not text.isspace())

    @property
    def _whole_texts(self) -> Iterator[tuple[int, str]]:
        for token_id in range(self.num_tokens):
            with suppress(UnicodeDecodeError):
                if text := self._bytes[token_id].decode():
                    yield token_id, text

    def _check_words(self, backend: Tokenizer) -> None:
        ids = self.encode_text(_WORDS)
        mine, whole = self.text(ids).strip(), backend.decode(ids).strip()
        if mine not in (_WORDS, whole):
            read = f"{_WORDS!r} becomes {mine!r}, and its own decoder reads {whole!r}"
            reason = f"the tokenizer's tokens cannot be read one by one: {read}"
            hint = "name a model whose tokens stand for fixed text, such as a byte-level BPE"
            raise VocabularyError(reason, hint=hint)

    def check_round_trip(self, text: str) -> None:
        back = self.text(self.encode_text(text))
        if back != text:
            offset = len(commonprefix([text, back]))
            before, after = (whole[offset : offset + 20] for whole in (text, back))
            change = f"{before!r} becomes {after!r} (character {offset + 1})"
            hint = "train with a tokenizer that keeps case, spaces and characters as they are"
            raise VocabularyError(f"the tokenizer changes text: {change}", hint=hint)
