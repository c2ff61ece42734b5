"""A trace as the data of the page: tokens with their tags, what each could see, the critical path.

The page computes none of these: visibility is asked of the interpreter's ``Row``, and tags are
spelled by ``language.tags``. Knows nothing of HTML.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypedDict

from pasta_lm.interpreter.trace import Role, SyncRecord, ThreadRecord, TokenRecord, Trace
from pasta_lm.interpreter.visibility import PROMPT_OWNER, Row
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    PROMISE_OPEN,
    SYNC,
    TOKENS_PER_UNIT,
    closing_piece,
)

ILLEGAL_TAG = "<?>"  # a tag that the model wrote where the grammar has none: its spelling is lost


class Seen(TypedDict):
    """What a thread could see when it wrote its tokens from ``index`` on, its own ones apart."""

    index: int
    prompt: int  # tokens of the prompt
    threads: dict[int, int]  # by thread: how many of its tokens, counted from its first


class TokenData(TypedDict):
    """One token of the page."""

    thread: int
    text: str
    role: str
    decoded: int  # the pass that wrote it; -1 is the prefill
    fed: int | None  # the pass that fed it
    critical: bool  # whether it is on the critical path
    forks: int | None  # the thread that this token, the end of a promise, forks


class ThreadData(TypedDict):
    """One thread of the page."""

    id: int
    parent: int | None
    topic: str | None
    promised: int | None
    finish_reason: str | None
    seen: list[Seen] | None  # None: the trace does not tell where the thread was forked


class RunData(TypedDict):
    """One run of the page."""

    name: str
    facts: dict[str, str | int | float | None]
    prefill_s: float
    step_s: list[float]
    threads: list[ThreadData]
    tokens: list[TokenData]  # in the order in which they were decoded
    syncs: list[dict[str, int | list[int]]]
    annotated: str | None  # the answer in the annotator form, for its tags to be edited


FACTS = (
    "model",
    "engine",
    "strategy",
    "positions",
    "finish_reason",
    "num_prompt_tokens",
    "num_content_tokens",
    "num_tokens",
    "forward_passes",
    "critical_path",
    "parallelism",
    "num_illegal",
    "wall_s",
)


def run_data(trace: Trace, name: str, annotated: str | None = None) -> RunData:
    """Return what the page shows of a trace.

    Args:
        trace: The run.
        name: What to call it beside other runs.
        annotated: The answer in the annotator form, if the page is to edit it.
    """
    reading = _Reading(trace)
    critical = reading.critical_path()
    return {
        "name": name,
        "facts": {"kind": trace.kind.value, **{name: getattr(trace, name) for name in FACTS}},
        "prefill_s": trace.prefill_s,
        "step_s": trace.step_s,
        "threads": [
            {
                "id": thread.id,
                "parent": thread.parent,
                "topic": thread.topic,
                "promised": thread.promised_tokens,
                "finish_reason": thread.finish_reason,
                "seen": reading.seen_by(thread),
            }
            for thread in trace.threads
        ],
        "tokens": [
            {
                "thread": token.thread,
                "text": reading.spelling.get(id(token), token.text),
                "role": token.role.value,
                "decoded": token.decoded_step,
                "fed": token.fed_step,
                "critical": id(token) in critical,
                "forks": reading.forks.get(id(token)),
            }
            for token in trace.tokens
        ],
        "syncs": [
            {"thread": sync.thread, "joined": sync.joined, "step": sync.step}
            for sync in trace.syncs
            if sync.step is not None
        ],
        "annotated": annotated,
    }


def tokens_in_reading_order(trace: Trace) -> Iterator[tuple[int, TokenRecord]]:
    """Yield all tokens, each with its index in its thread; a block stands behind its promise.

    Blocks that no promise forks (Skeleton-of-Thought) stand behind their parent's last token.
    """
    reading = _Reading(trace)
    forked = set(reading.forks.values())

    def of_thread(number: int) -> Iterator[tuple[int, TokenRecord]]:
        for index, token in enumerate(reading.tokens[number]):
            yield index, token
            if id(token) in reading.forks:
                yield from of_thread(reading.forks[id(token)])
        for other in trace.threads:
            if other.parent == number and other.id not in forked:
                yield from of_thread(other.id)

    return of_thread(0)


@dataclass
class _Reading:
    """A trace with its tags told apart, which it does not record; tokens are keyed by ``id``."""

    trace: Trace
    tokens: list[list[TokenRecord]] = field(init=False)  # of each thread, in order
    spelling: dict[int, str] = field(default_factory=dict)
    forks: dict[int, int] = field(default_factory=dict)
    promise_ends: dict[int, TokenRecord] = field(default_factory=dict)  # by the thread they fork
    syncs: dict[int, SyncRecord] = field(default_factory=dict)
    rows: dict[int, list[tuple[int, Row]]] = field(default_factory=dict)
    slots: list[list[int]] = field(init=False)  # of each thread's fed tokens

    def __post_init__(self) -> None:
        by_thread: dict[int, list[TokenRecord]] = {one.id: [] for one in self.trace.threads}
        for token in self.trace.tokens:
            by_thread[token.thread].append(token)
        self.tokens = [by_thread[thread.id] for thread in self.trace.threads]
        self.slots = [[one.slot for one in row if one.slot is not None] for row in self.tokens]
        for thread in self.trace.threads:
            self._tell_tags(thread)

    def _tell_tags(self, thread: ThreadRecord) -> None:
        """Find out which tag each tag is, by what stands beside it."""
        tokens = self.tokens[thread.id]
        children = (one for one in self.trace.threads if one.parent == thread.id)
        syncs = {one.step: one for one in self.trace.syncs if one.thread == thread.id}
        for index, token in enumerate(tokens):
            if token.role is not Role.TAG:
                continue
            before = tokens[index - 1].role if index else None
            after = tokens[index + 1].role if index + 1 < len(tokens) else None
            if before is Role.TOPIC and (child := next(children, None)):
                units = (child.promised_tokens or TOKENS_PER_UNIT) // TOKENS_PER_UNIT
                self.spelling[id(token)] = closing_piece(units)
                self.forks[id(token)] = child.id
                self.promise_ends[child.id] = token
            elif after is Role.TOPIC:
                self.spelling[id(token)] = PROMISE_OPEN
            elif token.fed_step is not None and token.fed_step in syncs:
                self.spelling[id(token)] = SYNC
                self.syncs[id(token)] = syncs[token.fed_step]
            elif thread.parent is not None and index == 0:
                self.spelling[id(token)] = ASYNC_OPEN
            elif thread.parent is not None and after is None:
                self.spelling[id(token)] = ASYNC_CLOSE
            else:
                self.spelling[id(token)] = ILLEGAL_TAG

    # Visibility

    def seen_by(self, thread: ThreadRecord) -> list[Seen] | None:
        """Return what a thread could see when it wrote each token, equal neighbours as one.

        A token is written by the query of the token before it: it sees what that one sees. The
        first tokens of main come from the prefill, and ``<async>`` from the promise's end.
        """
        rows = self._rows(thread)
        if rows is None:
            return None
        first = self.promise_ends.get(thread.id)
        queries = [None if first is None else first.slot]
        queries += [token.slot for token in self.tokens[thread.id][:-1]]
        found: list[Seen] = []
        for index, query in enumerate(queries):
            if index and query is None:
                break  # it was never fed, so nothing was written behind it
            row = rows[max(bisect_left(rows, (query or 0) + 1, key=lambda one: one[0]) - 1, 0)][1]
            seen = self._seen(thread, row, query)
            if not found or (seen["threads"], seen["prompt"]) != (
                found[-1]["threads"],
                found[-1]["prompt"],
            ):
                found.append({**seen, "index": index})
        return found

    def _rows(self, thread: ThreadRecord) -> list[tuple[int, Row]] | None:
        """Return a thread's rows, each with the slot from which it held."""
        if thread.id in self.rows:
            return self.rows[thread.id]
        owner = _owner(thread.id)
        if thread.parent is None:
            rows = [(0, Row.of_main(owner))]
        else:
            end = self.promise_ends.get(thread.id)
            above = self._rows(self.trace.threads[thread.parent])
            if above is None or end is None or end.slot is None:
                return None
            row = [row for slot, row in above if slot <= end.slot][-1]
            parent = _owner(thread.parent)
            rows = [(0, row.fork(parent=parent, child=owner, promise_end_slot=end.slot))]
        for token in self.tokens[thread.id]:
            sync = self.syncs.get(id(token))
            if sync is not None and token.slot is not None:
                joined = map(_owner, sync.joined)
                rows.append((token.slot, rows[-1][1].sync(joined)))
        self.rows[thread.id] = rows
        return rows

    def _seen(self, thread: ThreadRecord, row: Row, query: int | None) -> Seen:
        num_prompt = self.trace.num_prompt_tokens
        query_slot = num_prompt - 1 if query is None else query
        counts = {
            other: count
            for other, slots in enumerate(self.slots)
            if other != thread.id
            and (count := _num_seen(row, query_slot, slots, owner=_owner(other)))
        }
        prompt = _num_seen(row, query_slot, range(num_prompt), owner=PROMPT_OWNER)
        return {"index": 0, "prompt": prompt, "threads": counts}

    # The critical path

    def critical_path(self) -> set[int]:
        """Return the tokens of one longest chain of tokens that were decoded one by one."""
        fed = [token for token in self.trace.tokens if token.depth is not None]
        last = max(fed, key=lambda one: one.depth or 0, default=None)
        before: dict[int, TokenRecord] = {}
        for tokens in self.tokens:
            before |= {id(token): previous for previous, token in pairwise(tokens)}
        chain: set[int] = set()
        while last is not None:
            chain.add(id(last))
            last = self._waited_for(last, before.get(id(last)))
        return chain

    def _waited_for(self, token: TokenRecord, previous: TokenRecord | None) -> TokenRecord | None:
        """Return the token without which this one could not be decoded yet."""
        if previous is None:
            return self.promise_ends.get(token.thread)
        sync = self.syncs.get(id(token))
        waited: Iterable[TokenRecord] = [previous]
        if sync is not None:
            waited = [previous, *(one for child in sync.joined for one in self.tokens[child])]
        depth = token.depth or 0
        deepest = [one for one in waited if one.depth is not None and one.depth < depth]
        return max(deepest, key=lambda one: one.depth or 0, default=None)


def _owner(thread: int) -> int:
    """Return an owner number for the entries of a thread, apart from the prompt's."""
    return PROMPT_OWNER + 1 + thread


def _num_seen(row: Row, query_slot: int, slots: Sequence[int], *, owner: int) -> int:
    """Return how many of an owner's entries, given in ascending order, a query sees."""
    return bisect_left(
        slots,
        True,
        key=lambda slot: not row.sees(query_slot=query_slot, entry_slot=slot, entry_owner=owner),
    )
