"""The threads of a running response, what an engine keeps beside them, and their record."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from pasta_lm.engines import TokenText
from pasta_lm.engines.request import Expansion, Start, StructuredOutputs
from pasta_lm.interpreter.interpreter import Command, Interpreter
from pasta_lm.interpreter.placement import Placer
from pasta_lm.interpreter.thread import Placement, Thread, ThreadState
from pasta_lm.interpreter.trace import Role, SyncRecord, ThreadRecord, TokenRecord, Trace, TraceNews

if TYPE_CHECKING:
    from pasta_lm.engines.grammars import Matcher
    from pasta_lm.models.thinking import Thought

Record = TypeVar("Record")
MatcherOf = Callable[[StructuredOutputs], "Matcher"]

END_OF_TEXT: Final = -1  # in place of a token's id


class StopWatch:
    """Finds stop strings in the text of one thread; holds back what may yet become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.has_matched = False

    def feed(self, text: str) -> str:
        """Take text and return the part that can be released: up to the first stop string."""
        if not self._stops or self.has_matched:
            return "" if self.has_matched else text
        text = self._held + text
        matches = [(text.find(stop), len(stop)) for stop in self._stops]
        # The first to be complete, as if the text had come one character at a time.
        first = min(((at + size, at) for at, size in matches if at >= 0), default=None)
        if first is not None:
            self.has_matched, self._held = True, ""
            return text[: first[1]]
        # Hold back the longest end of the text that begins a stop string.
        cuts = range(max(0, len(text) - self._longest + 1), len(text))
        begins_stop = (cut for cut in cuts if any(s.startswith(text[cut:]) for s in self._stops))
        cut = next(begins_stop, len(text))
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """Return the text that is held back: a tag or the end of the thread follows."""
        held, self._held = self._held, ""
        return held


@dataclass(slots=True, eq=False)
class LiveThread:
    """A thread and what the engine keeps beside it."""

    thread: Thread
    text: TokenText
    stops: StopWatch
    forced: Iterator[int] | None = None  # ids to decode instead of sampled ones
    next_token: int | None = None  # the decoded token that it feeds next
    prefix: Sequence[int] = ()  # fed in front of ``next_token``, in the same pass; not decoded
    guesses: Sequence[int] = ()  # fed behind it, in the same pass: right if decoded then
    placements: Sequence[Placement] = ()  # of the guesses
    num_right: int = 0  # the guesses that were decoded so far
    promised: Thread | None = None  # the thread that ``next_token`` forks
    joined: tuple[Thread, ...] | None = None  # the threads that ``next_token``, a sync, joins
    max_tokens: int | None = None  # its limit, beside those of the response
    is_scored: bool = False  # its first token ends it, and all that it may be have scores
    stops_alone: bool = False  # its stop strings end it, and not the answer
    matcher: Matcher | None = None  # holds its text to a schema
    thought: Thought | None = None  # that comes first; None: there is none, or it is over
    is_held: bool = False  # another thread of the response goes first; it stays out of the pass

    def ends_behind(self, token: int) -> bool:
        """Take a decoded token; return whether it is the last one by its start or its schema."""
        is_last = self.is_full or self.is_scored or (self.stops_alone and self.stops.has_matched)
        if self.matcher is None:
            return is_last
        self.matcher.consume(token)
        return is_last or self.matcher.is_complete

    @property
    def is_full(self) -> bool:
        return self.max_tokens is not None and self.thread.num_tokens >= self.max_tokens

    @property
    def feeds_next(self) -> bool:
        return self.next_token is not None and self.thread.state is not ThreadState.WAITING

    @property
    def decodes(self) -> bool:
        return self.thread.state is ThreadState.RUNNING


def expand(
    expansion: Expansion, interpreter: Interpreter, placer: Placer
) -> tuple[list[Command], dict[int, Start]]:
    """End main and start the threads that write the answer, by id; if none, it is main's text."""
    main, limits = interpreter.main, interpreter.limits
    starts = expansion.starts("".join(item for item in main.content if isinstance(item, str)))
    if not starts:
        return interpreter.end_of_text(main), {}
    firsts = (main.position if start.num_seen is None else start.num_seen for start in starts)
    pairs = zip(starts, firsts, strict=True)
    kept = [start for start, first in pairs if limits.has_room(first + len(start.prefix))]
    kept = kept[: limits.max_blocks]
    is_counted = not expansion.known
    threads = [(start.topic, is_counted * len(start.prefix), start.after) for start in kept]
    commands = interpreter.expand(threads, is_cut=len(kept) < len(starts))
    begun = list(zip(main.children, kept, strict=True))
    for child, start in begun:
        placer.start(child, start.num_seen)
    return commands, {child.id: start for child, start in begun}


class Recorder:
    """Fills the trace of a response while it runs; times are handed in, no clock is read."""

    def __init__(self, trace: Trace, main: Thread) -> None:
        self.trace = trace
        self.step = -1  # the pass to which all records belong; -1: the prefill
        self._pending: defaultdict[int, deque[TokenRecord]] = defaultdict(deque)
        self._known: dict[str, int] = {}  # numbers of records that ``news`` has returned, by list
        self._unfed: list[tuple[int, TokenRecord]] = []  # those tokens of them that were not fed
        self.thread_started(main)

    def thread_started(self, thread: Thread) -> None:
        if thread.id < len(self.trace.threads):
            return
        parent = None if thread.parent is None else thread.parent.id
        record = ThreadRecord(thread.id, parent, thread.topic, thread.promised_tokens)
        self.trace.threads.append(record)

    def decoded(
        self, thread: Thread, token: int | None, text: str, role: Role, *, t_s: float,
        is_forced: bool = False, tag: str | None = None,
    ) -> None:  # fmt: skip
        record = TokenRecord(thread.id, token, text, role, self.step, t_s, is_forced, tag=tag)
        self.trace.tokens.append(record)
        self._pending[thread.id].append(record)
        self.trace.threads[thread.id].num_tokens += 1

    def forked(self, parent: Thread, child: Thread) -> None:
        self._pending[parent.id][-1].forks = child.id
        self.thread_started(child)

    def fed(self, thread: Thread, placed: Placement) -> None:
        token = self._pending[thread.id].popleft()
        token.fed_step = self.step
        token.slot, token.position, token.depth = placed.slot, placed.position, placed.depth
        self.trace.critical_path = max(self.trace.critical_path, placed.depth)
        record = self.trace.threads[thread.id]
        record.end_step = self.step
        record.start_step = self.step if record.start_step is None else record.start_step

    def synced(self, thread: Thread, joined: Sequence[Thread], position: int) -> None:
        ids = [other.id for other in joined]
        self.trace.syncs.append(SyncRecord(thread.id, ids, self.step, position))

    def passed(self, t_s: float) -> None:
        self.trace.step_s.append(t_s)
        self.trace.forward_passes += 1

    def finished(self, threads: Sequence[Thread], reason: str, *, t_s: float) -> None:
        for thread in threads:
            self.thread_started(thread)
            if thread.finish_reason is not None:
                self.trace.threads[thread.id].finish_reason = thread.finish_reason.value
        self.trace.finish_reason = reason
        self.trace.wall_s = t_s

    def news(self) -> TraceNews | None:
        trace, first = self.trace, self._known.get("tokens", 0)
        threads, tokens = self._new("threads", trace.threads), self._new("tokens", trace.tokens)
        syncs, step_s = self._new("syncs", trace.syncs), self._new("step_s", trace.step_s)
        fed = [pair for pair in self._unfed if pair[1].fed_step is not None]
        waiting = [*self._unfed, *enumerate(tokens, first)]
        self._unfed = [pair for pair in waiting if pair[1].fed_step is None]
        if not (threads or tokens or fed or step_s):
            return None
        return TraceNews(
            kind=trace.kind, prefill_s=trace.prefill_s, step_s=tuple(step_s),
            threads=tuple(replace(record) for record in threads),
            tokens=tuple(replace(record) for record in tokens),
            fed=tuple((index, replace(record)) for index, record in fed),
            syncs=tuple(replace(record, joined=[*record.joined]) for record in syncs),
        )  # fmt: skip

    def _new(self, name: str, records: list[Record]) -> list[Record]:
        first, self._known[name] = self._known.get(name, 0), len(records)
        return records[first:]
