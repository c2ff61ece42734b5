"""The choice of tokens as tensor operations of fixed shape: what a captured graph can hold.

The rules are those of ``engines.torch.sampling``: greedy among the legal tokens, ties by id, or the
inverse distribution function in descending order of logit. Choices that need more (a repetition
penalty, draws between structure and text) stay there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pasta_lm.engines.local.sampling import Choice, TokenMasks
from pasta_lm.interpreter.commands import Legal

MAX_MASKS = 64  # rows of the table of legal tokens: a grammar needs about a dozen
_TEMPERATURE, _TOP_P, _UNIFORM, _TOP_K, _MASK = range(5)
NUM_LINES = 5

# Legend: N rows, V vocabulary, M masks.


class MaskTable:
    """Masks of legal tokens side by side, so that a row of a pass names one by its number."""

    def __init__(self, masks: TokenMasks, vocab_size: int, device: torch.device) -> None:
        """Reserve the table; masks enter it on first use."""
        self._masks = masks
        self._numbers: dict[tuple[Legal, bool], int] = {}
        self.table_MV = torch.zeros(MAX_MASKS, vocab_size, device=device)

    def number(self, choice: Choice) -> int | None:
        """Return the number of a choice's mask; None if the table is full."""
        key = choice.legal, choice.params.ignore_eos
        if key not in self._numbers:
            if len(self._numbers) == MAX_MASKS:
                return None
            number = len(self._numbers)
            self.table_MV[number] = self._masks.row(choice.legal, ignore_eos=key[1])
            self._numbers[key] = number
        return self._numbers[key]


def is_simple(choice: Choice) -> bool:
    """Return whether a choice needs nothing but its row of logits, and a number or none."""
    draws = choice.params.temperature > 0
    return choice.seen is None and not (draws and choice.params.sampled == "structure")


def settings_of(
    choices: Sequence[Choice], rows: Sequence[int], masks: MaskTable, settings: Tensor
) -> bool:
    """Write the settings of choices into float64 [5, N] on the host; other rows are greedy.

    Returns:
        Whether all of them can be made from these settings.
    """
    settings.zero_()
    if len(set(rows)) < len(rows):  # samples of one prompt begin at its last row
        return False
    lines = []
    for choice in choices:
        number = masks.number(choice)
        if number is None or not is_simple(choice):
            return False
        params = choice.params
        # 0 stands for all tokens.
        lines.append((params.temperature, params.top_p, choice.uniform, params.top_k or 0, number))
    if lines:
        settings.numpy().T[list(rows)] = lines  # as a tensor the list would take twice the time
    return True


def choose_rows(logits_NV: Tensor, settings: Tensor, masks_MV: Tensor, *, draws: bool) -> Tensor:
    """Return a token for each row, int64 [N]; with ``draws`` some rows have a temperature."""
    scores_NV = logits_NV + masks_MV[settings[_MASK].long()]
    best_N = scores_NV.argmax(dim=-1)  # the first of equals: ties by id
    if not draws:
        return best_N
    return torch.where(settings[_TEMPERATURE] > 0, _drawn(scores_NV, settings), best_N)


def _drawn(scores_NV: Tensor, settings: Tensor) -> Tensor:
    """Return what ``sampling.choose`` draws, for all rows at once."""
    num_tokens = scores_NV.shape[-1]
    top_k = settings[_TOP_K, :, None]
    top_k = torch.where(top_k > 0, top_k, num_tokens).long()
    temperature = settings[_TEMPERATURE, :, None]
    temperature = torch.where(temperature > 0, temperature, 1.0)  # greedy rows are not read
    scores, ids = scores_NV.sort(descending=True, stable=True)
    is_left = torch.arange(num_tokens, device=scores.device) < top_k
    scores = scores.masked_fill(~is_left, float("-inf")).double()
    weights = torch.softmax((scores - scores[:, :1]) / temperature, dim=-1)
    cumulated = weights.cumsum(-1)
    num_kept = (cumulated - weights < settings[_TOP_P, :, None]).sum(-1, keepdim=True)
    last = torch.minimum(num_kept, top_k).clamp_min(1) - 1
    target = settings[_UNIFORM, :, None] * cumulated.gather(-1, last)
    index = torch.searchsorted(cumulated, target, right=True)
    return ids.gather(-1, torch.minimum(index, last))[:, 0]
