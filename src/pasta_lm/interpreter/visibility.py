"""The rule of visibility between threads, the only definition: decoding and training use it.

Every fed token is an entry with an owner thread and a slot; slots grow with time. A query sees an
entry that is not later than itself and lies below the cutoff that its thread's row held for the
entry's owner when the query was fed. Source: PASTA, section 3.2; see ``docs/architecture.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

UNBOUNDED = sys.maxsize  # the cutoff of an owner all of whose entries are visible, now and later

PROMPT_OWNER = 0  # owns the prompt's entries; no thread, so that samples share them


@dataclass(frozen=True, slots=True)
class Row:
    """The visibility of one thread: for each owner the first slot that it may not see."""

    cutoffs: Mapping[int, int]

    @classmethod
    def of_main(cls, owner: int) -> Row:
        return cls({PROMPT_OWNER: UNBOUNDED, owner: UNBOUNDED})

    def fork(self, *, parent: int, child: int, promise_end_slot: int) -> Row:
        """Return the row of a thread forked here: its parent's, cut behind the promise."""
        return Row({**self.cutoffs, parent: promise_end_slot + 1, child: UNBOUNDED})

    def sync(self, joined: Iterable[int]) -> Row:
        """Return the row after a sync: the joined owners become visible as a whole."""
        return Row({**self.cutoffs, **dict.fromkeys(joined, UNBOUNDED)})

    def cutoff(self, owner: int) -> int:
        """Return the first slot of this owner that may not be seen (0: none may)."""
        return self.cutoffs.get(owner, 0)

    def end(self, *, query_slot: int, owner: int) -> int:
        """Return the first slot of this owner that a query fed under this row does not see."""
        return min(query_slot + 1, self.cutoff(owner))

    def sees(self, *, query_slot: int, entry_slot: int, entry_owner: int) -> bool:
        return entry_slot < self.end(query_slot=query_slot, owner=entry_owner)
