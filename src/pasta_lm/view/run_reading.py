"""A trace told apart, whole or as it grows: which tag each tag is, and what each token could see.

Visibility is asked of the interpreter's ``Row``, and tags are spelled by ``language.tags``. Knows
nothing of the page or of JSON.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from pasta_lm.interpreter.trace import Role, SyncRecord, ThreadRecord, TokenRecord
from pasta_lm.interpreter.visibility import PROMPT_OWNER, Row
from pasta_lm.language.parser import FORK_TOPIC
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    PROMISE_OPEN,
    SYNC,
    TOKENS_PER_UNIT,
    closing_piece,
)

ILLEGAL_TAG = "<?>"  # a tag that the model wrote where the grammar has none: its spelling is lost

Spell = Callable[[int], bytes]
"""From a token's id to its bytes."""


class Seen(TypedDict):
    """What a thread could see when it wrote its tokens from ``index`` on, its own ones apart."""

    index: int
    prompt: int  # tokens of the prompt
    threads: dict[int, int]  # by thread: how many of its tokens, counted from its first


@dataclass(slots=True, eq=False)
class ReadThread:
    """A thread with its tokens in order, and what has been found out about it."""

    record: ThreadRecord
    tokens: list[TokenRecord] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # of its fed tokens
    unforked: list[ThreadRecord] = field(default_factory=list)  # children without a promise's end
    rows: list[tuple[int, Row]] = field(default_factory=list)  # each with the slot it holds from
    seen: list[Seen] = field(default_factory=list)
    num_told: int = 0  # of how many tokens ``seen`` tells

    @property
    def owner(self) -> int:
        """Return an owner number for its entries, apart from the prompt's."""
        return PROMPT_OWNER + 1 + self.record.id


class RunReading:
    """The threads of one run; tokens are keyed by ``id``."""

    def __init__(self, num_prompt: int, spell: Spell | None = None) -> None:
        """Begin with nothing.

        Args:
            num_prompt: Tokens of the prompt.
            spell: Spells ids; None: a tag is told by what stands beside it, after ``end``.
        """
        self.threads: list[ReadThread] = []
        self.spelling: dict[int, str] = {}
        self.forks: dict[int, int] = {}
        self.promise_ends: dict[int, TokenRecord] = {}  # by the thread that they fork
        self.syncs: dict[int, SyncRecord] = {}
        self._num_prompt = num_prompt
        self._spell = spell
        self._unknown: list[tuple[TokenRecord, TokenRecord | None]] = []  # with the one before

    def take(
        self,
        threads: Sequence[ThreadRecord],
        tokens: Sequence[TokenRecord],
        fed: Sequence[TokenRecord],
        syncs: Sequence[SyncRecord],
    ) -> None:
        """Take what has come: tokens in the order of decoding; ``fed`` ones in that of feeding."""
        for thread in threads:
            self.threads.append(ReadThread(thread))
            if thread.parent is not None:
                self.threads[thread.parent].unforked.append(thread)
        for token in tokens:
            self._tell_tag(token)
        joins = {(one.thread, one.step): one for one in syncs}
        for token in fed:
            if token.slot is None:
                continue
            read = self.threads[token.thread]
            read.slots.append(token.slot)
            sync = joins.get((token.thread, token.fed_step))
            if sync is not None and token.role is Role.TAG and id(token) not in self.forks:
                self._join(read, token, token.slot, sync)
        for read in self.threads:
            self._see(read)

    def end(self) -> None:
        """Spell the tags whose ids nobody spelled: nothing follows any more."""
        after = {
            id(one): other
            for read in self.threads
            for one, other in zip(read.tokens, read.tokens[1:], strict=False)
        }
        for token, before in self._unknown:
            next_one = after.get(id(token))
            if id(token) in self.syncs:
                continue
            if next_one is not None and next_one.role is Role.TOPIC:
                self.spelling[id(token)] = PROMISE_OPEN
            elif token.thread and before is not None and next_one is None:
                self.spelling[id(token)] = ASYNC_CLOSE
            else:
                self.spelling[id(token)] = ILLEGAL_TAG

    # Tags

    def _tell_tag(self, token: TokenRecord) -> None:
        read = self.threads[token.thread]
        before = read.tokens[-1] if read.tokens else None
        read.tokens.append(token)
        if token.role is not Role.TAG:
            return
        follows_topic = before is not None and before.role is Role.TOPIC
        if read.unforked and (follows_topic or _is_of_apar(read.unforked[0])):
            child = read.unforked.pop(0)
            units = (child.promised_tokens or TOKENS_PER_UNIT) // TOKENS_PER_UNIT
            self.spelling[id(token)] = closing_piece(units) if follows_topic else PROMISE_OPEN
            self.forks[id(token)] = child.id
            self.promise_ends[child.id] = token
        elif token.thread and token.thread not in self.promise_ends:
            self.spelling[id(token)] = token.text  # of a prefix: no promise forked this thread
        elif token.thread and before is None:
            self.spelling[id(token)] = ASYNC_OPEN
        elif self._spell is not None and token.token is not None:
            self.spelling[id(token)] = self._spell(token.token).decode("utf-8", "replace")
        else:
            self._unknown.append((token, before))

    # Visibility

    def _see(self, read: ReadThread) -> None:
        """Tell what a thread could see when it wrote each token, equal neighbours as one.

        A token is written by the query of the token before it: it sees what that one sees. The
        first tokens of main come from the prefill, and ``<async>`` from the promise's end.
        """
        if not self._rows(read):
            return
        first = self.promise_ends.get(read.record.id)
        while read.num_told < len(read.tokens):
            index = read.num_told
            query = read.tokens[index - 1] if index else first
            slot = self._num_prompt - 1 if query is None else query.slot
            if slot is None:
                return  # it is not fed, so nothing is known of what is written behind it
            seen = self._seen(read, index, slot)
            last = read.seen[-1] if read.seen else None
            if last is None or {**last, "index": index} != seen:
                read.seen.append(seen)
            read.num_told += 1

    def _rows(self, read: ReadThread) -> list[tuple[int, Row]]:
        """Return a thread's rows, each with the slot from which it held; none yet: empty."""
        record = read.record
        if read.rows:
            pass
        elif record.parent is None:
            read.rows.append((0, Row.of_main(read.owner)))
        else:
            end, parent = self.promise_ends.get(record.id), self.threads[record.parent]
            above = self._rows(parent)
            if above and end is not None and end.slot is not None:
                row = [row for slot, row in above if slot <= end.slot][-1]
                child = row.fork(parent=parent.owner, child=read.owner, promise_end_slot=end.slot)
                read.rows.append((0, child))
        return read.rows

    def _join(self, read: ReadThread, token: TokenRecord, slot: int, sync: SyncRecord) -> None:
        self.syncs[id(token)] = sync
        self.spelling[id(token)] = SYNC
        if rows := self._rows(read):
            joined = [self.threads[one].owner for one in sync.joined]
            rows.append((slot, rows[-1][1].sync(joined)))

    def _seen(self, read: ReadThread, index: int, query: int) -> Seen:
        row = read.rows[max(bisect_right(read.rows, query, key=lambda one: one[0]) - 1, 0)][1]
        owners = row.cutoffs.keys() - {PROMPT_OWNER, read.owner}  # of others nothing is seen
        others = [self.threads[owner - PROMPT_OWNER - 1] for owner in sorted(owners)]
        counts = {
            other.record.id: count
            for other in others
            if (count := bisect_left(other.slots, row.end(query_slot=query, owner=other.owner)))
        }
        prompt = min(row.end(query_slot=query, owner=PROMPT_OWNER), self._num_prompt)
        return {"index": index, "prompt": prompt, "threads": counts}


def _is_of_apar(child: ThreadRecord) -> bool:
    return child.promised_tokens is None and child.topic == FORK_TOPIC
