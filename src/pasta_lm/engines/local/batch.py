"""One forward pass as data: tokens, positions, slots, visibility, and the rows of its logits.

Prefill, decode, forced tags, a part of a long prompt, ten samples of one prompt, recomputing a
preempted request: all the same case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pasta_lm.engines.local.attention import cutoff_table, visible
from pasta_lm.engines.local.pool import Run
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED

# Legend: N tokens of the pass, Q tokens of one request in it, K entries of that request so far.


@dataclass(slots=True)
class RequestSlice:
    """The part of a pass that belongs to one request."""

    start: int
    stop: int  # its tokens are [start, stop) of the pass, in order of slot
    run: Run
    first_slot: int  # the slot of its first token in this pass; the others follow
    visible_QK: Tensor | None  # bool [Q, K]; None: a single query that sees everything
    key_positions: Tensor  # int64 [K]
    largest_distance: int  # no query is farther from a key than this, in positions
    is_sketch: bool = False  # without mask and key positions: for paged passes
    is_prompt: bool = False  # on a GPU, whose prompts need no mask: each token sees all before it

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    @property
    def num_entries(self) -> int:
        return self.first_slot + self.num_rows


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass."""

    tokens: Tensor  # int64 [N]
    positions: Tensor  # int64 [N]
    wanted: Tensor  # int64 [W]: indices of the tokens whose logits are wanted
    slices: tuple[RequestSlice, ...]


class EntryTensors:
    """The owners and positions of a request's entries as tensors, for its masks."""

    def __init__(self, entries: Entries, device: torch.device) -> None:
        self._entries, self._device = entries, device
        self._owners, self._positions = torch.empty(2, 64, dtype=torch.int64, device=device)
        self._num = 0
        self._table_key: tuple[int, ...] = ()
        self._table = torch.empty(0)
        self._has_all = False

    def sketch(self, start: int, first_slot: int, stop_slot: int, run: Run) -> RequestSlice:
        """Describe the same as ``slice``, but without a mask."""
        stop = start + stop_slot - first_slot
        return RequestSlice(start, stop, run, first_slot, None, torch.empty(0), 0, is_sketch=True)

    def owners_and_positions(self, first_slot: int, stop_slot: int) -> Tensor:
        """Return owner and position of entries [first_slot, stop_slot), int32 [2, K]."""
        self._extend(stop_slot)
        span = slice(first_slot, stop_slot)
        return torch.stack((self._owners[span], self._positions[span])).int()

    def slice(self, start: int, first_slot: int, stop_slot: int, run: Run) -> RequestSlice:
        """Describe entries [first_slot, stop_slot), placed already, as part of a pass."""
        self._extend(stop_slot)
        fed = self._entries.items[first_slot:stop_slot]
        is_prompt = self._device.type != "cpu" and fed[-1].owner == PROMPT_OWNER
        return RequestSlice(
            start, start + len(fed), run, first_slot,
            None if is_prompt else self._visible(first_slot, stop_slot),
            self._positions[:stop_slot],
            largest_distance=max(entry.position for entry in fed), is_prompt=is_prompt,
        )  # fmt: skip

    def truncate(self, num_entries: int) -> None:
        """Forget the entries from this slot on: others will stand there."""
        self._num = min(self._num, num_entries)

    def _extend(self, stop: int) -> None:
        if stop > len(self._owners):
            num_more = max(stop, 2 * len(self._owners)) - len(self._owners)
            self._owners = F.pad(self._owners, (0, num_more))
            self._positions = F.pad(self._positions, (0, num_more))
        if stop > self._num:
            fresh = self._entries.items[self._num : stop]
            values = torch.tensor([(e.owner, e.position) for e in fresh], device=self._device)
            self._owners[self._num : stop] = values[:, 0]
            self._positions[self._num : stop] = values[:, 1]
            self._num = stop

    def _visible(self, first_slot: int, stop_slot: int) -> Tensor | None:
        rows = [entry.row for entry in self._entries.items[first_slot:stop_slot]]
        num_owners = self._entries.num_owners
        key = (num_owners, *map(id, rows))
        if key != self._table_key:
            self._table_key = key
            self._table = cutoff_table(rows, num_owners, self._device)
            cutoffs = {rows[0].cutoff(owner) for owner in range(PROMPT_OWNER, num_owners)}
            self._has_all = len(rows) == 1 and cutoffs == {UNBOUNDED}
        if self._has_all:
            return None
        slots = torch.arange(first_slot, stop_slot, device=self._device)
        return visible(slots, self._table, self._owners[:stop_slot])


def join_slices(
    entries: Sequence[tuple[Entries, RequestSlice]], wanted: Sequence[int], device: torch.device
) -> Batch:
    """Make one pass of the slices of several requests; ``wanted`` are the tokens with logits."""
    fed = [
        (entry.token, entry.position)
        for request, part in entries
        for entry in request.items[part.first_slot : part.num_entries]
    ]
    tokens, positions = torch.tensor(fed, dtype=torch.int64, device=device).T
    wanted_W = torch.tensor(wanted, dtype=torch.int64, device=device)
    return Batch(tokens, positions, wanted_W, tuple(part for _, part in entries))
