"""Logits to tokens: only legal tags, ties by id, one random number a token.

Randomness is counter-based (``uniform_number``): it never depends on what else is decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from pasta_lm.engines.request import SamplingParams, TokenLogprobs
from pasta_lm.interpreter.interpreter import Legal
from pasta_lm.language.lexer import LexemeKind
from pasta_lm.language.tags import PROMISE_OPEN
from pasta_lm.models.vocabulary import Vocabulary

CPU_DRAWS = 1  # rows that are drawn together: the numbers of one stay in a core's cache
MAX_LIKELY = 1024  # largest logits among which nearly every drawn token is

# Legend: W rows whose tokens are wanted, V vocabulary (rows of the model's output matrix).


@dataclass(frozen=True, slots=True)
class Choice:
    """Everything except the logits that determines one token."""

    params: SamplingParams
    legal: Legal
    uniform: float  # in [0, 1); not read where the choice is greedy
    seen: Tensor | None = None  # int64 on the host, ids that the thread sees, for the penalty
    added: Mapping[int, float] = field(default_factory=dict)  # to the logits of these ids
    fork_bias: float = 0.0  # to the logit of the piece that opens a promise
    allowed: Tensor | None = None  # bool [V] on the host, by a schema; None: all legal tokens


def uniform_number(seed: int, sample: int, path: tuple[int, ...], index: int) -> float:
    """Return the random number, a multiple of 2**-53 in [0, 1), of one token.

    It depends on the request's seed, the sample, the thread's path in document order (main is (),
    its k-th child (k,)) and the token's index in its thread.
    """
    key = ",".join(map(str, (seed, sample, index, *path))).encode()
    return (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 11) * 2.0**-53


class TokenMasks:
    """For each legal set one row to add to logits: 0 or minus infinity."""

    def __init__(
        self, vocabulary: Vocabulary, eos_ids: Collection[int], vocab_size: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._eos_ids = [token for token in sorted(eos_ids) if 0 <= token < vocab_size]
        self._vocabulary, self.vocab_size, self._device = vocabulary, vocab_size, device
        self.fork_id = vocabulary.piece_ids.get(PROMISE_OPEN, 0)  # 0: nothing is ever added to it
        self.row = cache(self._row)
        """From a legal set, and whether no end is allowed, to float32 [V]: 0 or minus infinity."""
        self._on_host = cache(lambda *key: self.row(*key).cpu())

    def allows(self, choice: Choice, token: int) -> bool:
        row = self._on_host(choice.legal, choice.params.ignore_eos)
        by_schema = choice.allowed is None or bool(choice.allowed.numpy()[token])
        return by_schema and float(row.numpy()[token]) == 0

    def legal(self, scores_WV: Tensor, choices: Sequence[Choice], rows: Sequence[int]) -> Tensor:
        """Return the scores of some rows [N, V], minus infinity where no token is legal."""
        some = [choices[row] for row in rows]
        masks = [self.row(choice.legal, choice.params.ignore_eos) for choice in some]
        masks_NV = masks[0] if len({*map(id, masks)}) == 1 else torch.stack(masks)
        if len(rows) < len(choices):
            scores_WV = scores_WV[torch.tensor(rows, device=scores_WV.device)]
        scores_NV = scores_WV + masks_NV
        if any(choice.allowed is not None for choice in some):
            everything = torch.ones(self.vocab_size, dtype=torch.bool)
            allowed = [everything if c.allowed is None else c.allowed for c in some]
            scores_NV.masked_fill_(~torch.stack(allowed).to(scores_NV.device), float("-inf"))
        return scores_NV

    def _row(self, legal: Legal, ignore_eos: bool = False) -> Tensor:
        vocabulary = self._vocabulary
        allowed = torch.zeros(max(self.vocab_size, vocabulary.num_tokens), dtype=torch.bool)
        if LexemeKind.TEXT in legal.kinds:
            allowed[: vocabulary.num_tokens] = True
            if legal.in_topic:
                allowed[[*vocabulary.topic_forbidden]] = False
            if legal.needs_text:
                allowed[[*{*range(vocabulary.num_tokens)} - vocabulary.non_space]] = False
        allowed[self._eos_ids] = legal.end_of_text and not ignore_eos
        for token_id in vocabulary.piece_ids.values():
            lexeme = vocabulary.id_to_lexeme(token_id)
            assert lexeme is not None
            allowed[token_id] = legal.allows(lexeme)
        # A tokenizer may know tokens for which the model has no row.
        forbidden = ~allowed[: self.vocab_size]
        return torch.zeros(self.vocab_size).masked_fill(forbidden, float("-inf")).to(self._device)


def choose(logits_WV: Tensor, choices: Sequence[Choice], masks: TokenMasks) -> list[int]:
    """Return a token id for each row of raw logits, float32 [W, V], in few operations."""
    scores_WV = adjusted(logits_WV, choices, masks.fork_id)
    tokens: list[int] = scores_WV.argmax(dim=-1).tolist()  # the first of equals: ties by id
    drawn = [row for row, choice in enumerate(choices) if choice.params.temperature > 0]
    greedy = [row for row, choice in enumerate(choices) if choice.params.temperature == 0]
    wrong = [row for row in greedy if not masks.allows(choices[row], tokens[row])]
    if wrong:  # seldom: so masks are not added to all rows
        legal_NV = masks.legal(scores_WV, choices, wrong)
        for row, token in zip(wrong, legal_NV.argmax(dim=-1).tolist(), strict=True):
            tokens[row] = token
    size = CPU_DRAWS if scores_WV.device.type == "cpu" else len(drawn)
    for rows in (drawn[first : first + size] for first in range(0, len(drawn), size or 1)):
        lines = [draw_settings(choices[row]) for row in rows]
        settings = torch.tensor(lines, dtype=torch.float64).T.to(scores_WV.device)
        drawn_N = draw(masks.legal(scores_WV, choices, rows), settings)
        for row, token in zip(rows, drawn_N.tolist(), strict=True):
            tokens[row] = token
    return tokens


def token_logprobs(logits_V: Tensor, token: int, num_top: int) -> TokenLogprobs:
    logprobs_V = logits_V.log_softmax(dim=-1)
    values, ids = logprobs_V.topk(min(num_top, len(logprobs_V)))
    top = zip(ids.tolist(), values.tolist(), strict=True)
    return TokenLogprobs(float(logprobs_V[token]), tuple(top))


def adjusted(logits_WV: Tensor, choices: Sequence[Choice], fork_id: int) -> Tensor:
    """Return logits with the penalties and biases of each row, if any has one.

    A seen token's logit is divided by the repetition penalty where positive, multiplied where
    negative. Source: Keskar et al. 2019 (CTRL), section 4.1.
    """
    if not any(c.seen is not None or c.added or c.fork_bias for c in choices):
        return logits_WV
    scores = logits_WV.clone()
    seen = [torch.empty(0, dtype=torch.int64) if c.seen is None else c.seen for c in choices]
    if any(map(len, seen)):
        owners = torch.arange(len(seen)).repeat_interleave(torch.tensor([*map(len, seen)]))
        rows, ids = torch.stack((owners, torch.cat(seen))).to(scores.device)
        penalty = scores.new_tensor([choice.params.repetition_penalty for choice in choices])[rows]
        old = scores[rows, ids]
        scores[rows, ids] = torch.where(old > 0, old / penalty, old * penalty)
    added = [(row, *pair) for row, choice in enumerate(choices) for pair in choice.added.items()]
    if added:
        rows, ids = torch.tensor([pair[:2] for pair in added], device=scores.device).T
        scores[rows, ids] += scores.new_tensor([amount for _, _, amount in added])
    if any(choice.fork_bias for choice in choices):
        scores[:, fork_id] += scores.new_tensor([choice.fork_bias for choice in choices])
    return scores


def draw_settings(choice: Choice) -> tuple[float, ...]:
    """Return the settings of a draw: temperature, top_p, uniform number, top_k (0: all), min_p."""
    params = choice.params
    return params.temperature, params.top_p, choice.uniform, params.top_k or 0, params.min_p


def draw(scores_NV: Tensor, settings: Tensor) -> Tensor:
    """Return the inverse CDF of each row's candidates in descending order of logit, ties by id.

    Illegal tokens have minus infinity. ``settings``: float64 [5, N], lines as in ``draw_settings``.
    """
    tokens_N = draw_likely(scores_NV, settings)
    for row in (tokens_N < 0).nonzero()[:, 0].tolist():
        span = slice(row, row + 1)
        tokens_N[span] = draw_likely(scores_NV[span], settings[:, span], scores_NV.shape[-1])
    return tokens_N


def draw_likely(scores_NV: Tensor, settings: Tensor, num_likely: int = MAX_LIKELY) -> Tensor:
    """Sample from the largest logits; -1 if the sample may lie outside of them: call ``draw``."""
    temperature, top_p, uniform, top_k, min_p = settings[..., None]
    num_tokens = scores_NV.shape[-1]
    num_likely = min(num_likely, num_tokens)
    has_all = num_likely == num_tokens
    top_k = torch.where(top_k > 0, top_k, num_tokens).long().clamp_max(num_tokens)
    ids = scores_NV.topk(num_likely).indices.sort().values  # ascending: a stable sort ties by id
    likely, order = scores_NV.gather(-1, ids).sort(descending=True, stable=True)
    # Equals of the last may be missing, so it is not known which of them comes first.
    is_known = torch.ones_like(likely, dtype=torch.bool) if has_all else likely > likely[:, -1:]
    # The largest first becomes 0: a temperature near 0 then makes no infinity of it.
    weights = ((likely.double() - likely[:, :1]) / temperature).exp()
    weights = weights.where(weights >= min_p, 0.0)
    all_likely = has_all | (weights[:, -1:] == 0)  # the rest is below ``min_p``
    weights = weights.where(torch.arange(num_likely, device=weights.device) < top_k, 0.0)
    cumulated, is_whole = weights.cumsum(-1), (top_k == num_tokens) & (min_p == 0)
    everything = ((scores_NV.double() - likely[:, :1]) / temperature).exp().sum(-1, keepdim=True)
    total = torch.where(is_whole, everything, cumulated[:, -1:])
    # The smallest set of likeliest tokens whose mass reaches top_p: always at least one.
    limit, is_cut = top_p * total, top_p < 1
    is_kept = (weights > 0) & ((cumulated - weights < limit) | ~is_cut)
    last = is_kept.sum(-1, keepdim=True).clamp_min(1) - 1
    target = uniform * torch.where(is_cut | ~is_whole, cumulated.gather(-1, last), total)
    index = torch.minimum(torch.searchsorted(cumulated, target, right=True), last)
    chosen = ids.gather(-1, order.gather(-1, index))
    if has_all:
        return chosen[:, 0]
    is_sure = is_known.gather(-1, index) & (is_whole | (top_k <= num_likely) | all_likely)
    is_sure &= (target < cumulated[:, -1:]) & (~is_cut | (cumulated[:, -1:] >= limit))
    return chosen.where(is_sure, -1)[:, 0]
