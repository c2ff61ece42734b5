"""Assign a slot, position, row and depth to every fed token; keep them as the request's entries.

The list index of an entry is its slot. The prompt has an owner of its own, so that several samples
of one prompt share its entries. A KV cache holds the same, as tensors.

Source: PASTA, section 3.3 (positions), section 5 (critical path); ``docs/architecture.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile

from pasta_lm.interpreter import positions
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.thread import Placement, Thread
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED, Row

PROMPT_ROW = Row({PROMPT_OWNER: UNBOUNDED})


@dataclass(frozen=True, slots=True)
class Entry:
    """One fed token."""

    token: int
    owner: int
    position: int
    row: Row  # the row as it stood when the token was fed


@dataclass(slots=True)
class Entries:
    """The entries of one request in order of slot; only wrong guesses are ever removed."""

    items: list[Entry] = field(default_factory=list)
    num_owners: int = 1

    @classmethod
    def of_prompt(cls, tokens: Sequence[int]) -> Entries:
        return cls([Entry(token, PROMPT_OWNER, i, PROMPT_ROW) for i, token in enumerate(tokens)])

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, slot: int) -> Entry:
        return self.items[slot]

    def new_owner(self) -> int:
        self.num_owners += 1
        return self.num_owners - 1

    def append(self, entry: Entry) -> int:
        self.items.append(entry)
        return len(self.items) - 1

    def keep(self, first: int, slots: Sequence[int]) -> None:
        """Keep the entries before a slot, and those in these slots, which move up in order."""
        self.items[first:] = [self.items[slot] for slot in slots]

    def visible(self, row: Row, stop: int | None = None) -> list[int]:
        """Return the slots that a row sees, of those before ``stop``, in order of position."""
        pairs = enumerate(self.items[:stop])
        seen = [slot for slot, entry in pairs if slot < row.cutoff(entry.owner)]
        return sorted(seen, key=lambda slot: self.items[slot].position)


class Placer:
    """Place the tokens of one response behind the prompt, which is in the entries already."""

    def __init__(
        self, entries: Entries, strategy: PositionStrategy, main: Thread, join: Join = Join.SHARED
    ) -> None:
        positions.check_join(join, strategy)
        self.entries = entries
        self.strategy = strategy
        self.join = join
        self.num_recomputed = 0  # entries that syncs fed again (join ``recompute``)
        self._written: list[int] = []
        """Slots of the written form up to the last sync that fed it again, in reading order."""
        main.row = Row.of_main(main.owner)
        main.position = sum(1 for entry in entries.items if entry.owner == PROMPT_OWNER)

    def feed(
        self, thread: Thread, token: int, *, promised: Thread | None = None,
        is_same_pass: bool = False,
    ) -> Placement:  # fmt: skip
        """Place the next token of a thread; ``promised`` is the thread that it forks.

        ``is_same_pass``: the thread's last token is fed in the same pass, so this is no deeper.
        """
        if thread.row is None:
            self._begin(thread)
        assert thread.row is not None
        depth = thread.depth + (0 if is_same_pass else 1)
        placement = self._append(thread, token, thread.position, depth)
        thread.position += 1
        if promised is not None:
            promised.fork_point = placement
            thread.position = positions.position_after_promise(
                self.strategy, placement.position, promised.units or 0, promised.block_length
            )
        return placement

    def guess(self, thread: Thread, tokens: Sequence[int]) -> list[Placement]:
        """Place guesses behind all else that the pass feeds; wrong ones are removed later."""
        pairs = enumerate(tokens, start=thread.position)
        return [self._append(thread, token, position, thread.depth) for position, token in pairs]

    def start(self, thread: Thread, num_seen: int | None) -> None:
        """Let a thread that no promise forked begin behind ``num_seen`` tokens of the prompt.

        It sees no others; with None it stands behind its parent and sees all that its parent sees.
        """
        parent, last = thread.parent, len(self.entries) - 1
        assert parent is not None
        thread.depth = parent.depth
        if num_seen is None:
            thread.fork_point = Placement(last, parent.position - 1, parent.depth + 1)
        else:
            thread.position = num_seen
            thread.row = Row({PROMPT_OWNER: num_seen, thread.owner: UNBOUNDED})

    def start_behind(self, thread: Thread, tokens: Sequence[int], others: Iterable[Thread]) -> int:
        """Let a thread begin behind the longest beginning of some tokens that another has fed.

        Those that begin have ended; the last token is left to be fed. Return how many it sees.
        """
        best: list[int] = []
        for other in others:
            thread.depth = max(thread.depth, other.depth)
            seen = self.entries.visible(other.row) if other.row else []
            same = num_common((self.entries[slot].token for slot in seen), tokens[:-1])
            best = max(best, seen[:same], key=len)
        cutoffs = {self.entries[slot].owner: slot + 1 for slot in best}
        thread.row, thread.position = Row({**cutoffs, thread.owner: UNBOUNDED}), len(best)
        return len(best)

    def feed_sync(self, thread: Thread, token: int, joined: Sequence[Thread]) -> Placement:
        """Place a ``<sync/>`` (behind what it feeds again): its thread sees all that it joins."""
        assert thread.row is not None
        thread.row = thread.row.sync(other.owner for other in joined)
        if self.join is Join.RECOMPUTE:
            self._feed_again(thread)
        visible = (self.entries[slot].position for slot in self.entries.visible(thread.row))
        position = positions.position_of_sync(self.strategy, thread.position, visible)
        # </async> was fed before the sync or with it: it stands one behind the last content token.
        depth = max([thread.depth + 1, *(other.depth for other in joined)])
        placement = self._append(thread, token, position, depth)
        thread.position = position + 1
        return placement

    def _feed_again(self, main: Thread) -> None:
        assert main.row is not None
        visible, fresh = self.entries.visible(main.row), dict[int, list[int]]()  # by owner
        for slot in sorted({*visible} - {*self._written}):
            fresh.setdefault(self.entries[slot].owner, []).append(slot)
        written = [*self._written, *fresh.get(PROMPT_OWNER, []), *_written(main, fresh)]
        assert len(written) == len(visible), "a thread has no place in the written form"
        # With positions ``continue`` an entry stands at the position that is its place in the
        # written form exactly if it saw everything before it: it is what a plain causal pass would
        # compute. This holds up to the end of the first block, and for all that an earlier sync fed
        # again, so that no token is fed more than twice.
        first = num_common((self.entries[slot].position for slot in written), count())
        cutoffs = {self.entries[slot].owner: slot + 1 for slot in written[:first]}
        main.owner = self.entries.new_owner()
        main.row = Row({**cutoffs, main.owner: UNBOUNDED})
        for position in range(first, len(written)):
            token = self.entries[written[position]].token
            written[position] = self.entries.append(Entry(token, main.owner, position, main.row))
        self.num_recomputed += len(written) - first
        self._written = written

    def _begin(self, thread: Thread) -> None:
        parent, point = thread.parent, thread.fork_point
        assert parent is not None
        assert parent.row is not None
        assert point is not None
        thread.row = parent.row.fork(
            parent=parent.owner, child=thread.owner, promise_end_slot=point.slot
        )
        thread.position = point.position + 1
        thread.depth = point.depth - 1  # <async> has its promise end's depth

    def _append(self, thread: Thread, token: int, position: int, depth: int) -> Placement:
        assert thread.row is not None
        slot = self.entries.append(Entry(token, thread.owner, position, thread.row))
        thread.depth = depth
        return Placement(slot, position, depth)


def num_common(first: Iterable[object], second: Iterable[object]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _written(thread: Thread, by_owner: Mapping[int, Sequence[int]]) -> Iterator[int]:
    """Yield the slots of a thread and its blocks in the order of the written form."""
    forked = {child.fork_point.slot: child for child in thread.children if child.fork_point}
    for slot in by_owner.get(thread.owner, []):
        yield slot
        if slot in forked:
            yield from _written(forked[slot], by_owner)
