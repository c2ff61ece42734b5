"""The choice of tokens as tensor operations of fixed shape: what a captured graph can hold.

The rules are those of ``local/sampling.py``; penalties and biases of other tokens stay there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pasta_lm.engines.local.sampling import Choice, TokenMasks, draw_likely, draw_settings
from pasta_lm.interpreter.commands import Legal

MAX_MASKS = 64  # rows of the table of legal tokens: a grammar needs about a dozen
NUM_LINES = 7  # of settings: those of a draw, then the bias of a fork and the mask

# Legend: W rows whose logits are wanted, V vocabulary, M masks.


class MaskTable:
    """Masks of legal tokens side by side, so that a row of a pass names one by its number."""

    def __init__(self, masks: TokenMasks, vocab_size: int, device: torch.device) -> None:
        """Reserve the table; masks enter it on first use."""
        self._masks, self.fork_id = masks, masks.fork_id
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


def settings_of(choices: Sequence[Choice], masks: MaskTable) -> list[tuple[float, ...]] | None:
    """Return the settings of each choice; None: some need more than settings."""
    lines = []
    for choice in choices:
        number = masks.number(choice)
        if number is None or choice.seen is not None or choice.added or choice.allowed is not None:
            return None
        lines.append((*draw_settings(choice), choice.fork_bias, number))
    return lines


def choose_rows(logits_WV: Tensor, settings: Tensor, masks: MaskTable, *, draws: bool) -> Tensor:
    """Return a token for each row, int64 [W]; with ``draws`` some rows have a temperature.

    ``settings`` are float64 [7, W]; zeros are greedy. A token of -1 is not among the likeliest: it
    must be drawn from all logits.
    """
    *_, fork_bias, mask = settings
    scores_WV = logits_WV + masks.table_MV[mask.long()]
    scores_WV[:, masks.fork_id] += fork_bias.to(scores_WV.dtype)
    best_W = scores_WV.argmax(dim=-1)  # the first of equals: ties by id
    if not draws:
        return best_W
    has_temperature = settings[0] > 0
    temperature = torch.where(has_temperature, settings[0], 1.0)  # greedy rows are not read
    drawn_W = draw_likely(scores_WV, torch.stack((temperature, *settings[1:5])))
    return torch.where(has_temperature, drawn_W, best_W)
