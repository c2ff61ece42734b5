"""The state machine of one response: what a thread decoded in, commands out.

No engine, no clock, no I/O, no token ids: the same machine runs under a local engine that decodes
many threads in one forward pass and under remote servers that stream one thread each. Tags come
as lexemes; what a *model* emits is never an error: a tag that is illegal here has no effect and is
counted.

Source: PASTA, section 3.2; decisions where the paper is silent are in ``docs/architecture.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from pasta_lm.errors import PastaSyntaxError
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.language.document import Document, Item
from pasta_lm.language.events import AsyncClose, Promise, Sync
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.parser import Form, Parser

ASYNC_OPEN = Lexeme(LexemeKind.ASYNC_OPEN)
ASYNC_CLOSE = Lexeme(LexemeKind.ASYNC_CLOSE)
SYNC = Lexeme(LexemeKind.SYNC)


@dataclass(frozen=True, slots=True)
class Fork:
    """Start a thread: ``forced`` is the first token that it feeds, in the coming pass."""

    child: Thread
    parent: Thread
    forced: Lexeme = ASYNC_OPEN


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this thread feed nothing until it is resumed."""

    thread: Thread


@dataclass(frozen=True, slots=True)
class Resume:
    """Let this thread feed ``forced`` next, together with the last block that it waited for."""

    thread: Thread
    joined: tuple[Thread, ...]
    forced: Lexeme = SYNC


@dataclass(frozen=True, slots=True)
class End:
    """The thread decodes no more; a block still feeds its ``</async>`` if the response goes on."""

    thread: Thread
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Finish:
    """The response is complete."""

    reason: FinishReason


Command = Fork | Wait | Resume | End | Finish


class Legal(NamedTuple):
    """What a thread may decode next; hashable, so that engines can keep a mask for each."""

    kinds: frozenset[LexemeKind]
    end_of_text: bool
    units: int
    """The largest legal promise."""
    in_topic: bool = False
    needs_text: bool = False
    """Only text with a character other than space: a topic may not end without one."""


class Interpreter:
    """Run one response.

    Engines call ``legal`` and ``forced`` before they choose a token, ``advance`` with what they
    chose, and carry out the commands. Within one pass they call ``advance`` in reading order
    (``Thread.reading_key``), so that limits favour what stands earlier in the answer.
    """

    def __init__(self, limits: Limits, new_owner: Callable[[], int] | None = None) -> None:
        """Start with a main thread that has decoded nothing.

        Args:
            limits: The bounds of this response.
            new_owner: Gives owner numbers; samples of one prompt share it. Counts from 1 if None.
        """
        self.limits = limits
        self._new_owner = new_owner or count(1).__next__
        self.main = Thread(0, self._new_owner(), Parser(Form.MAIN, limits.max_depth))
        self.threads: list[Thread] = [self.main]
        self.num_tokens = 0
        self.num_illegal = 0
        """Tags that a model emitted where the grammar has none; 0 means well-formed."""
        self.finish_reason: FinishReason | None = None
        self._stopped_at: Thread | None = None

    @property
    def is_finished(self) -> bool:
        """Tell whether the response is complete."""
        return self.finish_reason is not None

    def runnable(self) -> Iterator[Thread]:
        """Yield the threads that decode in the coming pass, in order of birth."""
        return (thread for thread in self.threads if thread.state is ThreadState.RUNNING)

    # What may come next

    def legal(self, thread: Thread) -> Legal:
        """Return what the thread may decode next."""
        if thread.in_topic:
            return self._legal_in_topic(thread)
        kinds = set(thread.parser.legal()) - {LexemeKind.ASYNC_OPEN}
        if not thread.unjoined:
            kinds.discard(LexemeKind.SYNC)
        if not self._may_promise(thread):
            kinds.discard(LexemeKind.PROMISE_OPEN)
        if thread.num_tokens == 1 and not thread.is_main:  # only <async> so far
            kinds.discard(LexemeKind.ASYNC_CLOSE)
        return Legal(frozenset(kinds), thread.is_main, 0)

    def _legal_in_topic(self, thread: Thread) -> Legal:
        assert thread.num_topic_tokens is not None
        kinds = set()
        if thread.num_topic_tokens < self.limits.max_topic_tokens or not thread.has_topic_text:
            kinds.add(LexemeKind.TEXT)
        if thread.has_topic_text:
            kinds.add(LexemeKind.PROMISE_CLOSE)
        units = self.limits.largest_units(thread.position)
        is_last = thread.num_topic_tokens >= self.limits.max_topic_tokens - 1
        needs_text = is_last and not thread.has_topic_text
        return Legal(frozenset(kinds), False, max(1, units), in_topic=True, needs_text=needs_text)

    def _may_promise(self, thread: Thread) -> bool:
        if len(self.threads) > self.limits.max_blocks:
            return False
        if len(thread.path) >= self.limits.max_depth:
            return False
        farthest = thread.position + self.limits.max_topic_tokens + 3
        return self.limits.largest_units(farthest) >= 1

    def forced(self, thread: Thread) -> Lexeme | None:
        """Return the token that a limit forces on this thread next, or None.

        A block ends one token before its own limit, or so that a sync can still stand behind it.
        """
        if thread.is_main:
            return None
        bound = self.limits.max_tokens_per_thread
        last = self.limits.max_position
        is_full = bound is not None and thread.num_tokens >= bound - 1
        is_last = last is not None and thread.position >= last - 1
        return ASYNC_CLOSE if is_full or is_last else None

    def _is_beyond_last_position(self, thread: Thread) -> bool:
        # ``position`` is where the token decoded now would be fed.
        last = self.limits.max_position
        return last is not None and thread.position > last

    # What was decoded

    def advance(self, thread: Thread, lexeme: Lexeme) -> list[Command]:
        """Take the token that a thread decoded, chosen or forced; return what follows from it.

        Outside topics the text of TEXT lexemes is not read: engines add it with ``write``, in
        whole characters.
        """
        assert thread.state is ThreadState.RUNNING
        is_forced = self.forced(thread) is not None
        thread.num_tokens += 1
        self.num_tokens += 1
        commands: list[Command] = []
        if thread.is_main and self._is_beyond_last_position(thread):
            commands = self._end(thread, FinishReason.LENGTH)  # never fed, so a tag has no effect
        elif lexeme.kind is not LexemeKind.TEXT or thread.in_topic:
            commands = self._tag(thread, lexeme, is_forced)
        return commands + self._cut_if_full()

    def write(self, thread: Thread, text: str) -> None:
        """Append decoded text to a thread's content."""
        thread.write(text)

    def _tag(self, thread: Thread, lexeme: Lexeme, is_forced: bool) -> list[Command]:
        if lexeme.kind is LexemeKind.PROMISE_CLOSE and not self._may_close(thread):
            self.num_illegal += 1
            return []
        try:
            events = thread.parser.feed(lexeme)
        except PastaSyntaxError:
            self.num_illegal += 1
            return []
        if lexeme.kind is LexemeKind.PROMISE_OPEN:
            thread.num_topic_tokens, thread.has_topic_text = 0, False
        elif lexeme.kind is LexemeKind.TEXT:
            assert thread.num_topic_tokens is not None
            thread.num_topic_tokens += 1
            thread.has_topic_text |= bool(lexeme.text.strip())
        commands: list[Command] = []
        for event in events:
            match event:
                case Promise():
                    commands += self._fork(thread, event)
                case AsyncClose():
                    reason = FinishReason.LENGTH if is_forced else FinishReason.STOP
                    commands += self._end(thread, reason)
                case Sync():
                    commands += self._sync(thread)
        return commands

    def _may_close(self, thread: Thread) -> bool:
        """Tell whether the topic is one, and whether its block would have a place to stand."""
        return thread.has_topic_text and self.limits.largest_units(thread.position) >= 1

    def _fork(self, parent: Thread, promise: Promise) -> list[Command]:
        parent.num_topic_tokens = None
        child = Thread(
            len(self.threads),
            self._new_owner(),
            Parser(Form.BLOCK, self.limits.max_depth - len(parent.path)),
            parent=parent,
            path=(*parent.path, len(parent.children) + 1),
            topic=promise.topic,
            units=promise.units,
            state=ThreadState.DEFERRED,
        )
        self.threads.append(child)
        parent.children.append(child)
        parent.unjoined.append(child)
        parent.content.append(child)
        return self._start_deferred()

    def _start_deferred(self) -> list[Command]:
        """Start deferred threads, the oldest first, while ``max_threads`` allows."""
        deferred = [thread for thread in self.threads if thread.state is ThreadState.DEFERRED]
        if not deferred:
            return []
        bound = self.limits.max_threads
        num_free = len(deferred) if bound is None else bound - sum(1 for _ in self.runnable())
        num_free = min(num_free, self.limits.max_tokens - self.num_tokens)  # <async> counts
        commands: list[Command] = []
        for child in deferred[: max(0, num_free)]:
            assert child.parent is not None
            child.state = ThreadState.RUNNING
            child.num_tokens += 1
            self.num_tokens += 1
            commands.append(Fork(child, child.parent))
        return commands

    def _sync(self, thread: Thread) -> list[Command]:
        thread.content.append(Sync())
        if any(child.is_pending for child in thread.unjoined):
            thread.state = ThreadState.WAITING
            return [Wait(thread), *self._start_deferred()]
        return [self._join(thread)]

    @staticmethod
    def _join(thread: Thread) -> Resume:
        joined = tuple(_descendants(thread.unjoined))
        thread.unjoined.clear()
        return Resume(thread, joined)

    def end_of_text(self, thread: Thread) -> list[Command]:
        """Take an end-of-text: it ends main, and (remote engines, no mask) the block it is in."""
        return self._end(thread, FinishReason.STOP) + self._cut_if_full()

    def _end(self, thread: Thread, reason: FinishReason) -> list[Command]:
        thread.state = ThreadState.ENDED
        thread.finish_reason = reason
        commands: list[Command] = [End(thread, reason)]
        if self.main.is_awaiting_nobody:
            self.main.state = ThreadState.RUNNING
            commands.append(self._join(self.main))
        commands += self._start_deferred()
        return commands + self._finish_if_done()

    def _finish_if_done(self) -> list[Command]:
        if self.is_finished or any(thread.is_alive for thread in self.threads):
            return []
        stopped = self._stopped_at is not None
        reason = FinishReason.STOP if stopped else self.main.finish_reason
        assert reason is not None
        return self._finish(reason)

    def _finish(self, reason: FinishReason) -> list[Command]:
        self.finish_reason = reason
        return [Finish(reason)]

    def _cut_if_full(self) -> list[Command]:
        """End everything if the response has all the tokens that it may have."""
        if self.is_finished or self.num_tokens < self.limits.max_tokens:
            return []
        return [*self._end_alive(FinishReason.LENGTH), *self._finish(FinishReason.LENGTH)]

    def abort(self) -> list[Command]:
        """End everything: nobody wants the response any more."""
        if self.is_finished:
            return []
        return [*self._end_alive(FinishReason.ABORT), *self._finish(FinishReason.ABORT)]

    def _end_alive(self, reason: FinishReason) -> list[Command]:
        ended: list[Command] = []
        for thread in self.threads:
            if thread.is_alive:
                thread.state = ThreadState.ENDED
                thread.finish_reason = reason
                ended.append(End(thread, reason))
        return ended

    def stop(self, thread: Thread) -> list[Command]:
        """Cut the answer at the end of this thread's text: a ``stop`` string was found there.

        What stands later in reading order is aborted, what stands earlier finishes.
        """
        if self._stopped_at is not None and self._stopped_at.reading_key <= thread.reading_key:
            return []
        self._stopped_at = thread
        commands: list[Command] = []
        for other in self.threads:
            if other.is_alive and other.reading_key > thread.reading_key:
                other.state = ThreadState.ENDED
                other.finish_reason = FinishReason.ABORT
                commands.append(End(other, FinishReason.ABORT))
        if thread.is_alive:
            return commands + self._end(thread, FinishReason.STOP) + self._cut_if_full()
        return commands + self._finish_if_done()

    # The answer

    def document(self) -> Document:
        """Return the answer as it stands, cut where a ``stop`` string was found."""
        if self._stopped_at is None:
            return Document(self.main.items())
        return Document(_until(self.main, self._stopped_at))


def _descendants(threads: list[Thread]) -> Iterator[Thread]:
    for thread in threads:
        yield thread
        yield from _descendants(thread.children)


def _until(thread: Thread, last: Thread) -> tuple[Item, ...]:
    """Return a thread's items up to the end of ``last``, which stands in it or in a descendant."""
    if thread is last:
        return thread.items()
    kept = Thread(thread.id, thread.owner, thread.parser, topic=thread.topic, units=thread.units)
    for part in thread.content:
        if isinstance(part, Thread) and part.path == last.path[: len(part.path)]:
            inner = _until(part, last)
            block = part.block()
            return (*kept.items(), type(block)(block.topic, block.units, inner))
        kept.content.append(part)
    return kept.items()
