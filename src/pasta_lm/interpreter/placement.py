"""Assign a slot, position, row and depth to every fed token.

Joins the interpreter's threads to the request's entries: called once for each fed token, in order
of slot. Knows token ids as numbers to keep, nothing of their text and nothing of tensors.

Source: PASTA, section 3.3 (positions), section 5 (critical path); ``docs/architecture.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pasta_lm.interpreter.entries import Entries, Entry
from pasta_lm.interpreter.join import Join, check_join, num_kept
from pasta_lm.interpreter.positions import (
    PositionStrategy,
    position_after_promise,
    position_of_sync,
)
from pasta_lm.interpreter.thread import ForkPoint, Thread
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED, Row


@dataclass(frozen=True, slots=True)
class Placement:
    """Slot, position and depth of one fed token."""

    slot: int
    position: int
    depth: int  # length of the longest chain of tokens that must be decoded one by one


class Placer:
    """Place the tokens of one response."""

    def __init__(
        self, entries: Entries, strategy: PositionStrategy, main: Thread, join: Join = Join.SHARED
    ) -> None:
        check_join(join, strategy)
        self.entries = entries
        self.strategy = strategy
        self.join = join
        self.num_recomputed = 0
        """Entries that syncs fed again (join ``recompute``)."""
        self._written: list[int] = []
        """Slots of the written form up to the last sync that fed it again, in reading order."""
        main.row = Row.of_main(main.owner)
        main.position = sum(1 for entry in entries.items if entry.owner == PROMPT_OWNER)

    def feed(
        self,
        thread: Thread,
        token: int,
        *,
        promised: Thread | None = None,
        is_same_pass: bool = False,
    ) -> Placement:
        """Place the next token of a thread.

        Args:
            thread: The thread that feeds it.
            token: The id of the token.
            promised: The thread that this token, the closing piece of a promise, forks.
            is_same_pass: Whether the thread's last token is fed in the same pass; this one then did
                not have to wait for it, so it is no deeper.
        """
        if thread.row is None:
            self._begin(thread)
        assert thread.row is not None
        depth = thread.depth + (0 if is_same_pass else 1)
        placement = self._append(thread, token, thread.position, depth)
        thread.position += 1
        if promised is not None:
            promised.fork_point = ForkPoint(placement.slot, placement.position, depth)
            thread.position = position_after_promise(
                self.strategy, placement.position, promised.units or 0, promised.block_length
            )
        return placement

    def guess(self, thread: Thread, tokens: Sequence[int]) -> list[Placement]:
        """Place guesses behind the token that a thread has just fed; the thread does not move.

        All tokens of the pass that are no guesses are placed before. The guesses that are right
        are ``confirmed`` one by one; then ``Entries.keep`` removes the others.
        """
        assert thread.row is not None
        placements = []
        for position, token in enumerate(tokens, start=thread.position):
            entry = Entry(token, thread.owner, position, thread.row, thread.epoch)
            placements.append(Placement(self.entries.append(entry), position, thread.depth))
        return placements

    def start(self, thread: Thread, num_seen: int | None) -> None:
        """Let a thread that no promise forked begin, once its parent has fed its last token.

        It sees ``num_seen`` tokens of the prompt and stands behind them; with None it stands behind
        its parent and sees what its parent sees.
        """
        parent = thread.parent
        assert parent is not None
        assert parent.row is not None
        thread.epoch, thread.depth = parent.epoch, parent.depth
        if num_seen is None:
            last = len(self.entries) - 1
            thread.position = parent.position
            thread.row = parent.row.fork(
                parent=parent.owner, child=thread.owner, promise_end_slot=last
            )
        else:
            thread.position = num_seen
            thread.row = Row({PROMPT_OWNER: num_seen, thread.owner: UNBOUNDED})

    def feed_sync(self, thread: Thread, token: int, joined: Sequence[Thread]) -> Placement:
        """Place a ``<sync/>``: from it on, its thread sees all that it joins.

        With join ``recompute`` the entries that the sync feeds again come first.
        """
        assert thread.row is not None
        thread.row = thread.row.sync(other.owner for other in joined)
        if self.join is Join.RECOMPUTE:
            self._feed_again(thread)
        positions: Iterable[int] = ()
        if self.strategy is PositionStrategy.ROTATE:
            # Every entry that the thread sees moves to its reading-order position.
            order = reading_order(self.entries, self._visible_slots(thread.row), thread)
            positions = range(len(order))
            thread.epoch = self.entries.new_epoch(dict(zip(order, positions, strict=True)))
        elif self.strategy is PositionStrategy.CONTINUE:
            slots = self._visible_slots(thread.row)
            positions = [self.entries[slot].position for slot in slots]
        position = position_of_sync(self.strategy, thread.position, positions)
        # </async> was fed before the sync or with it: it stands one behind the last content token.
        depth = max([thread.depth + 1, *(other.depth for other in joined)])
        placement = self._append(thread, token, position, depth)
        thread.position = position + 1
        return placement

    def _feed_again(self, main: Thread) -> None:
        assert main.row is not None
        visible, known = self._visible_slots(main.row), set(self._written)
        fresh = [slot for slot in visible if slot not in known]
        written = [*self._written, *reading_order(self.entries, fresh, main)]
        assert len(written) == len(visible), "a thread has no place in the written form"
        first = num_kept(self.entries, written)
        cutoffs = {self.entries[slot].owner: slot + 1 for slot in written[:first]}
        main.owner = self.entries.new_owner()
        main.row = Row({**cutoffs, main.owner: UNBOUNDED})
        for position in range(first, len(written)):
            token = self.entries[written[position]].token
            entry = Entry(token, main.owner, position, main.row, main.epoch)
            written[position] = self.entries.append(entry)
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
        thread.epoch = parent.epoch
        thread.position = point.position + 1
        thread.depth = point.depth - 1  # <async> has its promise end's depth

    def _append(self, thread: Thread, token: int, position: int, depth: int) -> Placement:
        assert thread.row is not None
        slot = self.entries.append(Entry(token, thread.owner, position, thread.row, thread.epoch))
        thread.depth = depth
        return Placement(slot, position, depth)

    def _visible_slots(self, row: Row) -> list[int]:
        items = self.entries.items
        return [slot for slot, entry in enumerate(items) if slot < row.cutoff(entry.owner)]


def reading_order(entries: Entries, slots: Sequence[int], thread: Thread) -> list[int]:
    """Return slots in the order of the written form: prompt, then main with its blocks inside.

    ``slots`` are ascending, and all visible to ``thread``.
    """
    by_owner: dict[int, list[int]] = {}
    for slot in slots:
        by_owner.setdefault(entries[slot].owner, []).append(slot)
    root = thread
    while root.parent is not None:
        root = root.parent
    return [*by_owner.get(PROMPT_OWNER, []), *_written(root, by_owner)]


def _written(thread: Thread, by_owner: dict[int, list[int]]) -> Iterator[int]:
    forked = {child.fork_point.slot: child for child in thread.children if child.fork_point}
    for slot in by_owner.get(thread.owner, []):
        yield slot
        if slot in forked:
            yield from _written(forked[slot], by_owner)
