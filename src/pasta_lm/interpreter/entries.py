"""Every fed token of one request: its owner, slot, position and row.

The list index of an entry is its slot. The prompt has an owner of its own, so that several samples
of one prompt share its entries. A KV cache holds the same, as tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pasta_lm.interpreter.positions import Epoch
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED, Row

PROMPT_ROW = Row({PROMPT_OWNER: UNBOUNDED})


@dataclass(frozen=True, slots=True)
class Entry:
    """One fed token."""

    token: int
    owner: int
    position: int
    row: Row  # the row as it stood when the token was fed
    epoch: Epoch


@dataclass(slots=True)
class Entries:
    """The entries of one request in order of slot; only wrong guesses are ever removed."""

    items: list[Entry] = field(default_factory=list)
    num_owners: int = 1
    num_epochs: int = 1

    @classmethod
    def of_prompt(cls, tokens: Sequence[int]) -> Entries:
        """Return the entries of a prompt: positions from 0, one owner."""
        epoch = Epoch()
        return cls(
            [Entry(token, PROMPT_OWNER, i, PROMPT_ROW, epoch) for i, token in enumerate(tokens)]
        )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, slot: int) -> Entry:
        return self.items[slot]

    def new_owner(self) -> int:
        """Return an unused owner number."""
        self.num_owners += 1
        return self.num_owners - 1

    def new_epoch(self, moved: dict[int, int]) -> Epoch:
        """Return the epoch that begins at a sync which moves these slots to these positions."""
        self.num_epochs += 1
        return Epoch(self.num_epochs - 1, moved)

    def append(self, entry: Entry) -> int:
        """Add an entry and return its slot."""
        self.items.append(entry)
        return len(self.items) - 1

    def truncate(self, num_entries: int) -> None:
        """Forget the entries from this slot on."""
        del self.items[num_entries:]

    def keep(self, first: int, slots: Sequence[int]) -> None:
        """Of the entries from a slot on, keep those in these slots; they move up in their order."""
        self.items[first:] = [self.items[slot] for slot in slots]
