"""A smaller model that guesses the tokens of a larger one: it decodes them first, greedily.

Keeps the small model's keys between guesses and computes only new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from pasta_lm.engines.gpu.decoder import PassPart, paged_decoder
from pasta_lm.engines.guesses import NUM_GUESSES
from pasta_lm.engines.local.batch import EntryTensors, join_slices
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.pool import Pool
from pasta_lm.engines.local.runner import Runner
from pasta_lm.engines.local.sampling import Choice, TokenMasks
from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.commands import PLAIN_TEXT
from pasta_lm.interpreter.placement import PROMPT_ROW, Entries, Entry, num_common
from pasta_lm.interpreter.positions import Epoch
from pasta_lm.interpreter.visibility import PROMPT_OWNER

NUM_SLOTS = 4096  # tokens that it can have read; beyond them it guesses nothing


class DraftModel:
    """A small model as a guesser."""

    def __init__(
        self, draft: LoadedModel, *, max_guesses: int = NUM_GUESSES, paged: bool | None = None
    ) -> None:
        """Allocate the cache of the small model; ``paged`` None stands for: on a GPU."""
        self.max_guesses, self._draft = max_guesses, draft
        last = draft.max_position
        self._num_slots = NUM_SLOTS if last is None else min(NUM_SLOTS, last + 1)
        pool = Pool(draft.layer_shapes, self._num_slots, dtype=draft.dtype, device=draft.device)
        self._run = pool.allocate(self._num_slots)
        self._runner = Runner(draft.logits, pool)
        masks = TokenMasks(draft.vocabulary, draft.eos_ids, draft.vocab_size, draft.device)
        self._legal_V = masks.row(PLAIN_TEXT)
        self._paged = paged_decoder(draft, pool, masks, draft.logits, paged)
        if self._paged is not None:
            self._paged.prepare(1, self._num_slots)  # nothing is captured while a request waits
        self._epoch, self._entries = Epoch(), Entries()
        self._tensors = EntryTensors(self._entries, draft.device)

    def check(self, num_tokens: int, name: str) -> None:
        """Refuse a model whose tokenizer has another number of tokens, as a ``UsageError``."""
        own = self._draft.vocabulary.num_tokens
        if own != num_tokens:
            raise UsageError(
                f"{self._draft.name} has {own} tokens and {name} has {num_tokens}: it cannot "
                "guess for it",
                hint="name a draft model with the same tokenizer",
            )

    def guess(self, context: Sequence[int]) -> Sequence[int]:
        """Return the tokens that the small model decodes next."""
        if len(context) + self.max_guesses > self._num_slots:
            return ()
        known = (entry.token for entry in self._entries.items)
        num_kept = num_common(known, context[:-1])  # the last one is always read
        self._entries.truncate(num_kept)
        self._tensors.truncate(num_kept)
        guesses = [self._read(context[num_kept:])]
        while len(guesses) < self.max_guesses:
            guesses.append(self._read(guesses[-1:]))
        return guesses

    def _read(self, tokens: Sequence[int]) -> int:
        first = len(self._entries)
        for position, token in enumerate(tokens, start=first):
            self._entries.append(Entry(token, PROMPT_OWNER, position, PROMPT_ROW, self._epoch))
        part = self._tensors.slice(0, first, len(self._entries), self._run)
        if self._paged is not None:
            choice = Choice(SamplingParams(), PLAIN_TEXT, 0.0)
            parts = [PassPart(self._entries, self._tensors, part)]
            chosen = self._paged.run(parts, [len(tokens) - 1], [choice]).tokens
            assert chosen is not None  # a greedy choice needs nothing that a pass lacks
            return chosen[0]
        batch = join_slices([(self._entries, part)], [len(tokens) - 1], self._draft.device)
        return int((self._runner.run(batch)[0] + self._legal_V).argmax())
