"""The tokens that each thread could see when it wrote its own, by the interpreter's rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict

from pasta_lm.interpreter.trace import SyncRecord, ThreadRecord, TokenRecord
from pasta_lm.interpreter.visibility import PROMPT_OWNER, Row
from pasta_lm.language.tags import SYNC


class Seen(TypedDict):
    """The tokens that a thread could see from its token ``index`` on, its own ones apart."""

    index: int
    prompt: int  # tokens of the prompt
    threads: dict[int, int]  # by thread: its number of tokens, counted from its first


@dataclass(slots=True)
class ThreadSight:
    """The tokens of a thread, and its rows so far."""

    record: ThreadRecord
    tokens: list[TokenRecord] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # of its fed tokens
    rows: list[tuple[int, Row]] = field(default_factory=list)  # each with the slot it holds from
    seen: list[Seen] = field(default_factory=list)  # equal neighbours as one
    num_done: int = 0  # tokens that ``seen`` covers

    @property
    def owner(self) -> int:
        """Return an owner number for its entries, apart from the prompt's."""
        return PROMPT_OWNER + 1 + self.record.id


class Sight:
    """All threads of a run, whole or as it grows."""

    def __init__(self, num_prompt: int) -> None:
        self.threads: list[ThreadSight] = []
        self._num_prompt = num_prompt
        self._promise_ends: dict[int, TokenRecord] = {}  # by the forked thread

    def grow(
        self,
        threads: Iterable[ThreadRecord],
        tokens: Iterable[TokenRecord],
        fed: Iterable[TokenRecord],
        syncs: Iterable[SyncRecord],
    ) -> None:
        """Add new threads, tokens as they were decoded and as they were fed, and syncs."""
        self.threads += map(ThreadSight, threads)
        for token in tokens:
            self.threads[token.thread].tokens.append(token)
            if token.forks is not None:
                self._promise_ends[token.forks] = token
        joins = {(sync.thread, sync.step): sync for sync in syncs}
        for token in fed:
            if token.slot is None:
                continue
            thread = self.threads[token.thread]
            thread.slots.append(token.slot)
            sync = joins.get((token.thread, token.fed_step))
            if sync is not None and token.tag == SYNC and (rows := self._rows(thread)):
                joined = [self.threads[child].owner for child in sync.joined]
                rows.append((token.slot, rows[-1][1].sync(joined)))
        for thread in self.threads:
            self._look(thread)

    def _look(self, thread: ThreadSight) -> None:
        """Find the view of each new token.

        A token is written by the query of the token before it: it sees what that one sees. The
        first tokens of main come from the prefill, and ``<async>`` from the promise's end.
        """
        if not self._rows(thread):
            return
        first = self._promise_ends.get(thread.record.id)
        while thread.num_done < len(thread.tokens):
            index = thread.num_done
            query = thread.tokens[index - 1] if index else first
            slot = self._num_prompt - 1 if query is None else query.slot
            if slot is None:
                return  # it is not fed, so nothing is known of the token behind it
            seen = self._seen(thread, index, slot)
            last = thread.seen[-1] if thread.seen else None
            if last is None or {**last, "index": index} != seen:
                thread.seen.append(seen)
            thread.num_done += 1

    def _rows(self, thread: ThreadSight) -> list[tuple[int, Row]]:
        """Return a thread's rows; empty if the trace does not name its promise's end."""
        record = thread.record
        if record.parent is None and not thread.rows:
            thread.rows.append((0, Row.of_main(thread.owner)))
        elif record.parent is not None and not thread.rows:
            end, parent = self._promise_ends.get(record.id), self.threads[record.parent]
            above = self._rows(parent)
            if above and end is not None and end.slot is not None:
                row = [row for slot, row in above if slot <= end.slot][-1]
                child = row.fork(parent=parent.owner, child=thread.owner, promise_end_slot=end.slot)
                thread.rows.append((0, child))
        return thread.rows

    def _seen(self, thread: ThreadSight, index: int, query: int) -> Seen:
        place = bisect_right(thread.rows, query, key=lambda held: held[0]) - 1
        row = thread.rows[max(place, 0)][1]
        owners = row.cutoffs.keys() - {PROMPT_OWNER, thread.owner}  # of others nothing is seen
        others = [self.threads[owner - PROMPT_OWNER - 1] for owner in sorted(owners)]
        counts = {
            other.record.id: count
            for other in others
            if (count := bisect_left(other.slots, row.end(query_slot=query, owner=other.owner)))
        }
        prompt = min(row.end(query_slot=query, owner=PROMPT_OWNER), self._num_prompt)
        return {"index": index, "prompt": prompt, "threads": counts}
