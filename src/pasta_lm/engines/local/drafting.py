"""Speculative decoding with a smaller model: it decodes the next tokens first, greedily.

Keeps the small model's keys between guesses and computes only new tokens. Knows nothing of the
model whose tokens it guesses, but that both have the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from pasta_lm.engines.local.batch import EntryTensors, join_slices
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.pool import Pool
from pasta_lm.engines.local.runner import Runner
from pasta_lm.engines.local.sampling import TokenMasks
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.commands import PLAIN_TEXT
from pasta_lm.interpreter.entries import PROMPT_ROW, Entries, Entry
from pasta_lm.interpreter.positions import Epoch
from pasta_lm.interpreter.visibility import PROMPT_OWNER

NUM_GUESSES = 4  # fastest of 2, 4, 6, 8, 12 on development prompts
NUM_SLOTS = 4096  # tokens that it can have read; beyond them it guesses nothing


class DraftModel:
    """A small model that guesses the tokens of a larger one."""

    def __init__(
        self, draft: LoadedModel, model: LoadedModel, *, num_guesses: int = NUM_GUESSES
    ) -> None:
        """Allocate the cache of ``draft``, which guesses ``num_guesses`` tokens at a time.

        Raises:
            UsageError: draft and model have different tokenizers.
        """
        if draft.vocabulary.num_tokens != model.vocabulary.num_tokens:
            raise UsageError(
                f"{draft.name} has {draft.vocabulary.num_tokens} tokens and {model.name} has "
                f"{model.vocabulary.num_tokens}: it cannot guess for it",
                hint="name a draft model with the same tokenizer",
            )
        num_slots = NUM_SLOTS
        if draft.max_position is not None:
            num_slots = min(num_slots, draft.max_position + 1)
        self._num_slots, self._num_guesses = num_slots, num_guesses
        self._device = draft.device
        pool = Pool(draft.layer_shapes, num_slots, dtype=draft.dtype, device=draft.device)
        self._run = pool.allocate(num_slots)
        self._runner = Runner(draft.model, pool, draft.fast_logits)
        masks = TokenMasks(draft.vocabulary, draft.eos_ids, draft.vocab_size, draft.device)
        self._legal_V = masks.row(PLAIN_TEXT)
        self._epoch = Epoch()
        self._entries = Entries()
        self._tensors = EntryTensors(self._entries, draft.device)

    def __call__(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens that the small model decodes after these ids."""
        if len(ids) + self._num_guesses > self._num_slots:
            return ()
        read = zip(self._entries.items, ids[:-1], strict=False)  # the last one's logits are wanted
        num_kept = next(
            (index for index, (entry, token) in enumerate(read) if entry.token != token),
            min(len(self._entries), len(ids) - 1),
        )
        self._entries.truncate(num_kept)
        self._tensors.truncate(num_kept)
        guesses = [self._read(ids[num_kept:])]
        while len(guesses) < self._num_guesses:
            guesses.append(self._read(guesses[-1:]))
        return guesses

    def _read(self, tokens: Sequence[int]) -> int:
        """Read tokens and return the likeliest next one."""
        first = len(self._entries)
        for position, token in enumerate(tokens, start=first):
            self._entries.append(Entry(token, PROMPT_OWNER, position, PROMPT_ROW, self._epoch))
        part = self._tensors.slice(0, first, len(self._entries), self._run)
        batch = join_slices([(self._entries, part)], [len(tokens) - 1], self._device)
        return int((self._runner.run(batch)[0] + self._legal_V).argmax())
