"""What a query saw, read from the entries one by one: the plain form of every mask."""

from __future__ import annotations

from pasta_lm.interpreter.placement import Entries


def is_visible(entries: Entries, query_slot: int, slot: int) -> bool:
    """Return whether the query in one slot saw the entry in another when it was fed."""
    row, owner = entries[query_slot].row, entries[slot].owner
    return row.sees(query_slot=query_slot, entry_slot=slot, entry_owner=owner)
