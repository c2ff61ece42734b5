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

from pasta_lm.engines.passes.attention import cutoff_table, visible
from pasta_lm.engines.passes.pool import Run
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED

# Legend: N tokens of the pass, Q tokens of one request in it, K entries of that request so far.


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """The part of a pass that belongs to one request."""

    start: int  # the index of its first token in the pass; the others follow in order of slot
    first_slot: int
    num_entries: int  # the request's, those of this pass included
    run: Run

    @property
    def num_rows(self) -> int:
        return self.num_entries - self.first_slot

    @property
    def stop(self) -> int:
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True)
class RequestSlice(RequestSpan):
    """The same with what attention over a view of the pool needs."""

    visible_QK: Tensor | None  # bool [Q, K]; None: a single query that sees everything
    key_positions: Tensor  # int64 [K]
    largest_distance: int  # no query is farther from a key than this, in positions
    is_prompt: bool = False  # on a GPU, whose prompts need no mask: each token sees all before it


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass."""

    tokens: Tensor  # int64 [N]
    positions: Tensor  # int64 [N]
    wanted: Tensor  # int64 [W]: indices of the tokens whose logits are wanted
    slices: tuple[RequestSlice, ...]


class EntryTensors:
    """The owners and positions of a request's entries as tensors, while it keeps its keys."""

    def __init__(self, entries: Entries, device: torch.device) -> None:
        self._entries, self._device = entries, device
        self._lines = torch.empty(2, 64, dtype=torch.int64, device=device)
        self._num = 0
        self._table_key: tuple[int, ...] = ()
        self._table = torch.empty(0)
        self._has_all = False
        self.num_placed = 0  # entries beside the pool's keys
        self.first_page: int | None = None  # their page in the pool; None: there are none

    def owners_and_positions(self, first_slot: int, stop_slot: int) -> Tensor:
        """Return owner and position of entries [first_slot, stop_slot), int32 [2, K]."""
        self._extend(stop_slot)
        return self._lines[:, first_slot:stop_slot].int()

    def slice(self, span: RequestSpan) -> RequestSlice:
        """Return the part of a pass with its mask; its entries are placed already."""
        first_slot, stop_slot = span.first_slot, span.num_entries
        self._extend(stop_slot)
        fed = self._entries.items[first_slot:stop_slot]
        is_prompt = self._device.type != "cpu" and fed[-1].owner == PROMPT_OWNER
        return RequestSlice(
            span.start, first_slot, stop_slot, span.run,
            None if is_prompt else self._visible(first_slot, stop_slot),
            self._lines[1, :stop_slot],
            largest_distance=max(entry.position for entry in fed), is_prompt=is_prompt,
        )  # fmt: skip

    def truncate(self, num_entries: int) -> None:
        """Forget the entries from this slot on: others will stand there."""
        self._num, self.num_placed = min(self._num, num_entries), min(self.num_placed, num_entries)

    def _extend(self, stop: int) -> None:
        size = self._lines.shape[1]
        if stop > size:
            self._lines = F.pad(self._lines, (0, max(stop, 2 * size) - size))
        if stop > self._num:
            fresh = self._entries.items[self._num : stop]
            values = torch.tensor([(e.owner, e.position) for e in fresh], device=self._device)
            self._lines[:, self._num : stop] = values.T
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
        return visible(slots, self._table, self._lines[0, :stop_slot])


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
