"""Text that matches a schema: which tokens each thread may decode next, by llguidance."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from pasta_lm.engines.request import StructuredOutputs
from pasta_lm.engines.schemas import MARKS, checked_schema
from pasta_lm.errors import MissingExtraError, RequestError, UsageError
from pasta_lm.models.vocabulary import Vocabulary

try:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
except ImportError:  # only for answers that must match a form
    TokenizerWrapper = None  # type: ignore[assignment,misc]

MAX_COMPILED = 256  # grammars that are kept: of a request's threads, and of those that repeat it
LAST_BYTES = "LAST: /[,}\\]\\n]/"
"""What may follow a value inside an object or a list, in the grammar of llguidance."""
BEHIND = re.compile(rb"( ?[,}\]\n]| )\Z")
ASCII = {bytes([byte]) for byte in range(32, 127)}
BEYOND = {bytes([byte]) for byte in (*range(128, 192), *range(194, 245))}  # in other characters
MAX_MISSING = 16  # SmolLM2 lacks two, which begin characters that Unicode leaves out
_DIGIT = re.compile(r"(?<!\\)((?:\\\\)*)\\d")
"""An escaped d: 0 to 9, as in a schema's pattern, where llguidance takes digits of all scripts."""


class FormTokens:
    """The tokens of a tokenizer for llguidance: a text is never cut into tags or special tokens."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_id: int) -> None:
        """Refuse (``RequestError``) a tokenizer with which not every text can be written."""
        self.eos_token_id, self._encode = eos_id, vocabulary.encode_text
        self._bytes = [vocabulary.token_bytes(token) for token in range(vocabulary.num_tokens)]
        self._bytes_to_id = {text: token for token, text in enumerate(self._bytes)}
        self._alike = defaultdict[bytes, list[int]](list)
        for token, text in enumerate(self._bytes):
            self._alike[text].append(token)
        backend = vocabulary.tokenizer.backend_tokenizer
        missing, others = ASCII - self._bytes_to_id.keys(), BEYOND - self._bytes_to_id.keys()
        if missing or len(missing := others) > MAX_MISSING:
            kind = type(backend.model).__name__
            lacks = f"it has no token for {len(missing)} bytes, such as {min(missing)!r}"
            problem = f"no form can be held with this tokenizer, a {kind}: {lacks}"
            hint = "use a model with a byte-level tokenizer, or one that falls back to bytes"
            raise RequestError(problem, hint=hint)
        self.special_token_ids = [token for token, text in enumerate(self._bytes) if not text]
        names = {i: (backend.id_to_token(i) or "").encode() for i in self.special_token_ids}
        self.tokens = [names.get(token, text) for token, text in enumerate(self._bytes)]

    def endings(self, token: int) -> list[int]:
        """Return the token, and those that differ from it in what stands behind a JSON value."""
        text = self._bytes[token]
        marks = [f"{space}{mark}".encode() for space in ("", " ") for mark in MARKS]
        texts = {base + mark for base in {text, BEHIND.sub(b"", text)} for mark in marks}
        return [token, *(other for text in texts - {b""} for other in self._alike.get(text, ()))]

    def __call__(self, text: str) -> list[int]:
        text_bytes, ids = text.encode(), self._encode(text)
        if b"".join(self._bytes[token] for token in ids) == text_bytes:
            return ids
        alone = (bytes([byte]) for byte in text_bytes)
        return [self._bytes_to_id[byte] for byte in alone if byte in self._bytes_to_id]


class Matcher:
    """The state of one thread's text."""

    def __init__(
        self, matcher: LLMatcher, words: FormTokens, vocab_size: int, eos_ids: Sequence[int],
        tag_ids: Sequence[int],
    ) -> None:  # fmt: skip
        self._matcher, self._words, self._vocab_size = matcher, words, vocab_size
        self._tag_ids, self._eos_ids = tag_ids, [token for token in eos_ids if token < vocab_size]

    def allowed(self, guesses: Sequence[int] = ()) -> Tensor:
        """Return bool [V] of the tokens that may come next, or behind these guesses.

        Wrong guesses allow everything: the tokens behind them are never used. A ``RequestError`` if
        nothing may come.
        """
        matcher = self._matcher
        if guesses:
            matcher = matcher.deep_copy()
            if matcher.try_consume_tokens([*guesses]) < len(guesses):
                return torch.ones(self._vocab_size, dtype=torch.bool)
        bits = torch.frombuffer(bytearray(matcher.compute_bitmask()), dtype=torch.uint8)
        shifts = torch.arange(8, dtype=torch.uint8)
        allowed = ((bits[:, None] >> shifts) & 1).flatten().bool()[: self._vocab_size]
        allowed = torch.nn.functional.pad(allowed, (0, self._vocab_size - len(allowed)))
        allowed[[*self._tag_ids]] = False
        allowed[self._eos_ids] = matcher.is_accepting()
        if not allowed.any():
            raise self._fault(matcher)
        return allowed

    @staticmethod
    def _fault(matcher: LLMatcher) -> RequestError:
        cause = (matcher.get_error() or "it leaves no token").partition("\n")[0]
        is_large = re.search("complex|limit|large", cause, re.IGNORECASE)
        hint = "make it simpler" if is_large else "it asks for text that the model has no token for"
        return RequestError(f"the form of the answer cannot be followed: {cause}", hint=hint)

    def consume(self, token: int) -> None:
        if not self._matcher.consume_token(token):  # it would read as complete
            raise self._fault(self._matcher)

    def begin(self, text: str) -> None:
        """Take text that stands behind the thought in its last token; a RequestError if illegal."""
        if self._matcher.try_consume_tokens(ids := self._words(text)) < len(ids):
            problem = f"with the end of its thought the model wrote {text!r}, against the form"
            raise RequestError(problem, hint="ask with another seed, or without a thought")

    def allows_text(self, text: str) -> bool:
        return bool(self._matcher.validate_tokens(ids := self._words(text)) == len(ids))

    def allows(self, token: int) -> bool:
        matcher, is_end = self._matcher, token in self._eos_ids
        return bool(matcher.is_accepting() if is_end else matcher.validate_tokens([token]))

    def endings(self, token: int) -> list[int]:
        """Return the tokens that may end the same JSON value as this one, it among them."""
        return [*dict.fromkeys((*self._words.endings(token), *self._eos_ids))]

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_stopped())


class Grammars:
    """Matchers for the tokenizer of a model."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._vocabulary, self._vocab_size, self._eos_ids = vocabulary, vocab_size, sorted(eos_ids)
        self._tag_ids = [i for i in vocabulary.piece_ids.values() if i < vocab_size]
        self._compiled = lru_cache(MAX_COMPILED)(self._compile)

    @cached_property
    def _tokens(self) -> LLTokenizer:
        if TokenizerWrapper is None:
            raise MissingExtraError("a schema for the answer (llguidance)", "schemas")
        size = max(self._vocab_size, self._vocabulary.num_tokens)
        ends = self._eos_ids or [size]  # a model without an end gets one that it never samples
        self._words = FormTokens(self._vocabulary, ends[0])
        return LLTokenizer(
            TokenizerWrapper(self._words), n_vocab=max(size, ends[-1] + 1), eos_token=ends
        )

    def matcher(self, form: StructuredOutputs, name: str = "") -> Matcher:
        """Return a matcher at its beginning; a UsageError says why the form of a text has none."""
        tokens, fault = self._tokens, f"{name}the {form.kind} of the answer cannot be used"
        try:
            matcher = self._compiled(tokens, _grammar_of(form))
        except UsageError as exc:
            raise UsageError(f"{fault}: {exc.message}", hint=exc.hint) from exc
        sizes = self._vocab_size, self._eos_ids, self._tag_ids
        return Matcher(matcher.deep_copy(), self._words, *sizes)

    @staticmethod
    def _compile(tokens: LLTokenizer, grammar: str) -> LLMatcher:
        matcher = LLMatcher(tokens, grammar)
        if fault := matcher.get_error():
            raise UsageError(fault.strip())
        return matcher


def allowed_bytes(form: StructuredOutputs) -> Callable[[bytes], int]:
    """Return a counter of the leading bytes of a text that a form allows, with any tokenizer."""
    matcher = Grammars._compile(LLTokenizer("byte", slices=[]), _grammar_of(form))
    return lambda text_bytes: matcher.validate_tokens([*text_bytes])


def _grammar_of(form: StructuredOutputs) -> str:
    if form.json is not None:
        schema = checked_schema(form.json)
        if not form.is_inside:
            return LLMatcher.grammar_from_json_schema(schema)
        start = "start: / ?/ value (/ ?/ LAST)?"
        return LLMatcher.grammar_from_lark(f"{start}\nvalue: %json {schema}\n{LAST_BYTES}")
    if form.regex is not None:
        return LLMatcher.grammar_from_regex(_DIGIT.sub(r"\1[0-9]", form.regex))
    if form.choice is not None:
        return LLMatcher.grammar_from_lark(f"start: {' | '.join(map(json.dumps, form.choice))}")
    return LLMatcher.grammar_from_lark(form.grammar or "")
