"""Text that matches a schema: which tokens each thread may decode next, by llguidance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from pasta_lm.engines.request import StructuredOutputs, compact_schema
from pasta_lm.errors import MissingExtraError, RequestError, UsageError

try:
    from llguidance import LLMatcher, LLTokenizer, hf
except ImportError:  # only for answers that must match a form
    hf = None  # type: ignore[assignment]

MAX_COMPILED = 256  # grammars that are kept: of a request's threads, and of those that repeat it
LAST_BYTES = "LAST: /[,}\\]\\n]/"
"""What may follow a value inside an object or a list, in the grammar of llguidance."""


class Matcher:
    """The state of one thread's text."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._eos_ids = [token for token in eos_ids if token < vocab_size]

    def allowed(self, guesses: Sequence[int] = ()) -> Tensor:
        """Return bool [V] of the tokens that may come next, or behind these guesses.

        Wrong guesses allow everything: the tokens behind them are never used.
        """
        matcher = self._matcher
        if guesses:
            matcher = matcher.deep_copy()
            if matcher.try_consume_tokens([*guesses]) < len(guesses):
                return torch.ones(self._vocab_size, dtype=torch.bool)
        bits = torch.frombuffer(bytearray(matcher.compute_bitmask()), dtype=torch.uint8)
        places = torch.arange(8, dtype=torch.uint8)
        allowed = ((bits[:, None] >> places) & 1).flatten().bool()[: self._vocab_size]
        allowed = torch.nn.functional.pad(allowed, (0, self._vocab_size - len(allowed)))
        allowed[self._eos_ids] = matcher.is_accepting()
        return allowed

    def consume(self, token: int) -> None:
        if not self._matcher.consume_token(token):  # it would read as complete
            raise RequestError(f"the schema cannot be followed: {self._matcher.get_error()}")

    def allows(self, token: int) -> bool:
        if token in self._eos_ids:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]))

    def allowed_ids(self) -> list[int]:
        ids: list[int] = self.allowed().nonzero().flatten().tolist()
        return ids

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_stopped())


class Grammars:
    """Matchers for the tokenizer of a model."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, vocab_size: int, eos_ids: Sequence[int]
    ) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, sorted(eos_ids)
        self._compiled = lru_cache(MAX_COMPILED)(self._compile)

    @cached_property
    def _tokens(self) -> LLTokenizer:
        if hf is None:
            raise MissingExtraError("a schema for the answer (llguidance)", "schemas")
        size = max(self._vocab_size, len(self._tokenizer))
        return hf.from_tokenizer(self._tokenizer, n_vocab=size, eos_token=self._eos_ids)

    def matcher(self, wanted: StructuredOutputs) -> Matcher:
        """Return a matcher at its beginning; a UsageError says why a schema has none."""
        tokens = self._tokens
        try:
            matcher = self._compiled(tokens, _grammar_of(wanted))
        except ValueError as exc:
            fault = f"the {wanted.kind} of the answer cannot be used: {str(exc).strip()}"
            raise UsageError(fault) from exc
        return Matcher(matcher.deep_copy(), self._vocab_size, self._eos_ids)

    @staticmethod
    def _compile(tokens: LLTokenizer, grammar: str) -> LLMatcher:
        matcher = LLMatcher(tokens, grammar)
        if fault := matcher.get_error():
            raise ValueError(fault)
        return matcher


def _grammar_of(wanted: StructuredOutputs) -> str:
    if wanted.json is not None:
        if "draft-03" in str(wanted.json.get("$schema")):
            raise ValueError("draft 3 of JSON Schema: rules would be left out")
        schema = compact_schema(wanted.json)
        if wanted.is_inside:
            return LLMatcher.grammar_from_lark(
                f"start: / ?/ value (/ ?/ LAST)?\nvalue: %json {schema}\n{LAST_BYTES}"
            )
        return LLMatcher.grammar_from_json_schema(schema)
    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.choice is not None:
        choices = " | ".join(json.dumps(choice) for choice in wanted.choice)
        return LLMatcher.grammar_from_lark(f"start: {choices}")
    return LLMatcher.grammar_from_lark(wanted.grammar or "")
