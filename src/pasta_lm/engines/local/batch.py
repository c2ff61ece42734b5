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


@dataclass(frozen=True, slots=True)
class KeyRotation:
    """A sync under 'rotate': all keys of the request move, once, inside the pass."""

    num_queries_before: int  # queries of the request in this pass that still see the old positions
    offsets_K: Tensor  # int64 [K]: new position minus old


@dataclass(slots=True)
class RequestSlice:
    """The part of a pass that belongs to one request."""

    start: int
    stop: int  # its tokens are [start, stop) of the pass, in order of slot
    run: Run
    first_slot: int  # the slot of its first token in this pass; the others follow
    visible_QK: Tensor | None  # bool [Q, K]; None: a single query that sees everything
    key_positions: Tensor  # int64 [K], or [Q, K] if queries of several epochs differ
    largest_distance: int  # no query is farther from a key than this, in positions
    rotation: KeyRotation | None = None
    is_sketch: bool = False  # without mask and key positions: for paged passes

    @property
    def num_entries(self) -> int:
        return self.first_slot + self.stop - self.start


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
        self._epochs: set[int] = set()

    def sketch(self, start: int, first_slot: int, stop_slot: int, run: Run) -> RequestSlice:
        """Describe the same as ``slice``, but without a mask where no key moves."""
        if any(self._moves_keys(slot) for slot in range(first_slot, stop_slot)):
            return self.slice(start, first_slot, stop_slot, run)
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
        rotation = self._rotation(first_slot, stop_slot)
        keys = self._positions[:stop_slot]
        if rotation is not None:
            keys += rotation.offsets_K  # in place: a view of all positions
            before = (keys - rotation.offsets_K).expand(rotation.num_queries_before, -1)
            after = keys.expand(len(fed) - rotation.num_queries_before, -1)
            keys = torch.cat((before, after))
        return RequestSlice(
            start, start + len(fed), run, first_slot,
            self._visible(first_slot, stop_slot), keys,
            largest_distance=max(entry.position for entry in fed), rotation=rotation,
        )  # fmt: skip

    def truncate(self, num_entries: int) -> None:
        """Forget the entries from this slot on: others will stand there."""
        self._num = min(self._num, num_entries)

    def chunk_stop(self, first_slot: int, stop_slot: int) -> int:
        """Return where a pass of placed entries must end: behind the next sync that moves keys."""
        ends = (slot + 1 for slot in range(first_slot, stop_slot) if self._moves_keys(slot))
        return next(ends, stop_slot)

    def _moves_keys(self, slot: int) -> bool:
        # The entry begins an epoch that no pass has begun.
        epoch = self._entries[slot].epoch
        return bool(epoch.moved) and epoch.index not in self._epochs

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

    def _rotation(self, first_slot: int, stop_slot: int) -> KeyRotation | None:
        fed = self._entries.items[first_slot:stop_slot]
        is_new = [self._moves_keys(slot) for slot in range(first_slot, stop_slot)]
        if not any(is_new):
            return None
        self._epochs.update(entry.epoch.index for entry in fed)
        num_before = is_new.index(True)
        assert all(is_new[num_before:]), "syncs that begin an epoch come last in their pass"
        offsets = torch.zeros(stop_slot, dtype=torch.int64)
        stands = self._positions[:stop_slot].tolist()
        for entry in fed[num_before:]:
            for slot, position in entry.epoch.moved.items():
                offsets[slot] = position - stands[slot]
        return KeyRotation(num_before, offsets.to(self._device))


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
