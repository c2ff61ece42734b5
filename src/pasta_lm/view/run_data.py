"""A trace as the data of the page: tokens with their tags, what each could see, the critical path.

Of a finished run all at once, of one that is still decoded pass by pass. The page computes none
of these. Knows nothing of HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, TypedDict

from pasta_lm.interpreter.trace import Role, SyncRecord, ThreadRecord, TokenRecord, Trace, TraceNews
from pasta_lm.view.run_reading import RunReading, Seen, Spell


class TokenData(TypedDict):
    """One token of the page."""

    thread: int
    text: str
    role: str  # content, topic or tag; "given": what a prefix, which is fed, gives the answer
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


def run_data(
    trace: Trace, name: str, annotated: str | None = None, *, spell: Spell | None = None
) -> RunData:
    """Return what the page shows of a trace.

    Args:
        trace: The run.
        name: What to call it beside other runs.
        annotated: The answer in the annotator form, if the page is to edit it.
        spell: Spells ids; None: a tag that the grammar does not allow has lost its spelling.
    """
    reading = _read(trace, spell)
    critical = _critical_path(trace, reading)
    return {
        "name": name,
        "facts": {"kind": trace.kind.value, **{name: getattr(trace, name) for name in FACTS}},
        "prefill_s": trace.prefill_s,
        "step_s": trace.step_s,
        "threads": [
            {**_thread(read.record), "seen": read.seen if read.rows else None}
            for read in reading.threads
        ],
        "tokens": [
            {**_token(reading, token), "critical": id(token) in critical} for token in trace.tokens
        ],
        "syncs": [_sync(sync) for sync in trace.syncs if sync.step is not None],
        "annotated": annotated,
    }


class LiveRun:
    """A run that is still decoded, as the page takes it."""

    def __init__(self, num_prompt: int, spell: Spell) -> None:
        """Begin with nothing.

        Args:
            num_prompt: Tokens of the prompt.
            spell: Spells ids.
        """
        self._reading = RunReading(num_prompt, spell)
        self._tokens: list[TokenRecord] = []
        self._num_told: list[int] = []  # by thread: how many rows of ``seen`` the page has

    def take(self, news: TraceNews) -> dict[str, Any]:
        """Return what the page has to add: the parts of a ``RunData``, and two of their own.

        ``fed`` has pairs of a token's number and the pass that fed it, for tokens that came
        before; ``seen`` has rows for a thread's list of the same name.
        """
        for index, record in news.fed:
            token = self._tokens[index]
            token.fed_step, token.slot = record.fed_step, record.slot
        fed = [self._tokens[index] for index, _ in news.fed]
        fed += [token for token in news.tokens if token.slot is not None]
        self._tokens += news.tokens
        self._num_told += [0] * len(news.threads)
        reading = self._reading
        reading.take(news.threads, news.tokens, sorted(fed, key=_slot), news.syncs)
        return {
            "kind": news.kind.value,
            "prefill_s": news.prefill_s,
            "step_s": news.step_s,
            "threads": [_thread(one) for one in news.threads],
            "tokens": [_token(reading, token) for token in news.tokens],
            "fed": [[index, record.fed_step] for index, record in news.fed],
            "syncs": [_sync(sync) for sync in news.syncs],
            "seen": list(self._new_rows()),
        }

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        for number, read in enumerate(self._reading.threads):
            for row in read.seen[self._num_told[number] :]:
                yield {"thread": number, **row}
            self._num_told[number] = len(read.seen)


def tokens_in_reading_order(trace: Trace) -> Iterator[tuple[int, TokenRecord]]:
    """Yield all tokens, each with its index in its thread; a block stands behind its promise.

    Blocks that no promise forks (Skeleton-of-Thought) stand behind their parent's last token.
    """
    reading = _read(trace)
    forked = set(reading.forks.values())

    def of_thread(number: int) -> Iterator[tuple[int, TokenRecord]]:
        for index, token in enumerate(reading.threads[number].tokens):
            yield index, token
            if id(token) in reading.forks:
                yield from of_thread(reading.forks[id(token)])
        for other in trace.threads:
            if other.parent == number and other.id not in forked:
                yield from of_thread(other.id)

    return of_thread(0)


def _read(trace: Trace, spell: Spell | None = None) -> RunReading:
    reading = RunReading(trace.num_prompt_tokens, spell)
    fed = sorted((one for one in trace.tokens if one.slot is not None), key=_slot)
    reading.take(trace.threads, trace.tokens, fed, trace.syncs)
    reading.end()
    return reading


def _slot(token: TokenRecord) -> int:
    assert token.slot is not None
    return token.slot


def _thread(record: ThreadRecord) -> ThreadData:
    return {
        "id": record.id,
        "parent": record.parent,
        "topic": record.topic,
        "promised": record.promised_tokens,
        "finish_reason": record.finish_reason,
        "seen": None,
    }


def _token(reading: RunReading, token: TokenRecord) -> TokenData:
    return {
        "thread": token.thread,
        "text": reading.spelling.get(id(token), token.text),
        "role": "given" if token.role is Role.TAG and token.text else token.role.value,
        "decoded": token.decoded_step,
        "fed": token.fed_step,
        "critical": False,
        "forks": reading.forks.get(id(token)),
    }


def _sync(sync: SyncRecord) -> dict[str, int | list[int]]:
    return {"thread": sync.thread, "joined": sync.joined, "step": sync.step or 0}


def _critical_path(trace: Trace, reading: RunReading) -> set[int]:
    """Return the tokens of one longest chain of tokens that were decoded one by one."""
    fed = [token for token in trace.tokens if token.depth is not None]
    last = max(fed, key=lambda one: one.depth or 0, default=None)
    before: dict[int, TokenRecord] = {}
    for read in reading.threads:
        before |= {id(token): previous for previous, token in pairwise(read.tokens)}
    chain: set[int] = set()
    while last is not None:
        chain.add(id(last))
        last = _waited_for(reading, last, before.get(id(last)))
    return chain


def _waited_for(
    reading: RunReading, token: TokenRecord, previous: TokenRecord | None
) -> TokenRecord | None:
    """Return the token without which this one could not be decoded yet."""
    if previous is None:
        return reading.promise_ends.get(token.thread)
    sync = reading.syncs.get(id(token))
    waited: Iterable[TokenRecord] = [previous]
    if sync is not None:
        joined = (one for child in sync.joined for one in reading.threads[child].tokens)
        waited = [previous, *joined]
    depth = token.depth or 0
    deepest = [one for one in waited if one.depth is not None and one.depth < depth]
    return max(deepest, key=lambda one: one.depth or 0, default=None)
