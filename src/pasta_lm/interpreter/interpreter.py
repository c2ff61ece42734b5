"""The state machine of one response: decoded tokens in, commands out.

No engine, no clock, no I/O, no token ids, so that it runs under every engine; tags come as lexemes.
Nothing that a *model* emits is an error: an illegal tag has no effect and is counted.

Source: PASTA, section 3.2; decisions where the paper is silent are in ``docs/architecture.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from pasta_lm.errors import PastaSyntaxError
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.thread import Thread, ThreadState, descendants
from pasta_lm.language.document import Document
from pasta_lm.language.events import AsyncClose, Promise, Sync
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.parser import Form, Parser, State
from pasta_lm.language.tags import MAX_UNITS

ASYNC_CLOSE = Lexeme(LexemeKind.ASYNC_CLOSE)


@dataclass(frozen=True, slots=True)
class Fork:
    """The token just decoded ends a promise: ``child`` forks from its parent where it is fed."""

    child: Thread


@dataclass(frozen=True, slots=True)
class Begin:
    """A forked thread feeds ``<async>`` in the coming pass: at once, or later if deferred."""

    thread: Thread


@dataclass(frozen=True, slots=True)
class Resume:
    """This thread feeds its ``<sync/>`` next, in one pass with the last ``</async>`` it needs."""

    thread: Thread
    joined: tuple[Thread, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The thread decodes no more; a block still feeds ``</async>`` if the response goes on."""

    thread: Thread
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Finish:
    """The response is complete."""

    reason: FinishReason


Command = Fork | Begin | Resume | End | Finish


class Legal(NamedTuple):
    """The tokens a thread may decode next; hashable, so that engines can keep a mask for each."""

    kinds: frozenset[LexemeKind]
    end_of_text: bool
    units: int  # the largest legal promise
    in_topic: bool = False
    needs_text: bool = False  # not only white space, which no topic may consist of

    def allows(self, tag: Lexeme) -> bool:
        return tag.kind in self.kinds and (tag.units or 0) <= self.units


EVERYTHING = Legal(frozenset(LexemeKind), True, MAX_UNITS)  # where the mask is off
PLAIN_TEXT = Legal(frozenset({LexemeKind.TEXT}), True, 0)  # the legal set where nothing forks


class Interpreter:
    """Run one response.

    Engines call ``advance`` with every chosen token, within one pass in reading order
    (``Thread.reading_key``), so that limits favour earlier parts, and carry out the commands.
    """

    def __init__(
        self, limits: Limits, new_owner: Callable[[], int] | None = None, form: Form = Form.MAIN
    ) -> None:
        self.limits = limits
        self._form = form
        self._new_owner = new_owner or count(1).__next__
        self.main = Thread(0, self._new_owner(), Parser(form, limits.max_depth))
        self.threads: list[Thread] = [self.main]
        self.num_tokens = 0
        self.num_illegal = 0
        """Tags that a model emitted where the grammar has none; 0 means well-formed."""
        self.finish_reason: FinishReason | None = None
        self._stopped_at: Thread | None = None

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def runnable(self) -> Iterator[Thread]:
        return (thread for thread in self.threads if thread.state is ThreadState.RUNNING)

    # Legal tokens

    def legal(self, thread: Thread, ahead: int = 0) -> Legal:
        """Return the tokens that the thread may decode next, or ``ahead`` words of text later."""
        if thread.in_topic:
            assert ahead == 0
            return self._legal_in_topic(thread)
        kinds = set(thread.parser.legal) - {LexemeKind.ASYNC_OPEN}
        if not thread.unjoined:
            kinds.discard(LexemeKind.SYNC)
        if not self._may_promise(thread, ahead):
            kinds.discard(LexemeKind.PROMISE_OPEN)
        if thread.num_tokens + ahead == 1 and not thread.is_main:  # only <async> so far
            kinds.discard(LexemeKind.ASYNC_CLOSE)
        return Legal(frozenset(kinds), thread.is_main, 0)

    def _legal_in_topic(self, thread: Thread) -> Legal:
        assert thread.num_topic_tokens is not None
        kinds = {LexemeKind.PROMISE_CLOSE} if thread.has_topic_text else set()
        if thread.num_topic_tokens < self.limits.max_topic_tokens or not thread.has_topic_text:
            kinds.add(LexemeKind.TEXT)
        units = self.limits.largest_units(thread.position)
        is_last = thread.num_topic_tokens >= self.limits.max_topic_tokens - 1
        needs_text = is_last and not thread.has_topic_text
        return Legal(frozenset(kinds), False, max(1, units), in_topic=True, needs_text=needs_text)

    def _may_promise(self, thread: Thread, ahead: int) -> bool:
        if self._form is Form.FORKED and thread.num_tokens == thread.num_at_fork:
            return False  # APAR: no fork right behind a fork
        if len(self.threads) > self.limits.max_blocks or len(thread.path) >= self.limits.max_depth:
            return False
        farthest = thread.position + ahead + self.limits.max_topic_tokens + 3
        return self.limits.largest_units(farthest) >= 1

    def forced(self, thread: Thread) -> Lexeme | None:
        if thread.is_main:
            return None
        bound, last = self.limits.max_tokens_per_thread, self.limits.max_position
        is_full = bound is not None and thread.num_tokens >= bound - 1
        is_last = last is not None and thread.position >= last - 1  # so that a sync has a place
        return ASYNC_CLOSE if is_full or is_last else None

    # Decoded tokens

    def advance(self, thread: Thread, lexeme: Lexeme) -> list[Command]:
        """Take a decoded token; text outside topics is added to ``Thread.content`` instead."""
        assert thread.state is ThreadState.RUNNING
        is_forced = self.forced(thread) is not None
        thread.num_tokens += 1
        self.num_tokens += 1
        commands: list[Command] = []
        last = self.limits.max_position
        # ``position`` is where this token would be fed. Beyond the last, a tag has no effect.
        if thread.is_main and last is not None and thread.position > last:
            commands = self._end(thread, FinishReason.LENGTH)
        elif lexeme.kind is not LexemeKind.TEXT or thread.in_topic:
            commands = self._tag(thread, lexeme, is_forced)
        return commands + self._cut_if_full()

    def _tag(self, thread: Thread, lexeme: Lexeme, is_forced: bool) -> list[Command]:
        # A promise may close if its topic has text and its block has positions.
        may_close = thread.has_topic_text and self.limits.largest_units(thread.position) >= 1
        if lexeme.kind is LexemeKind.PROMISE_CLOSE and not may_close:
            self.num_illegal += 1
            return []
        try:
            events = thread.parser.feed(lexeme)
        except PastaSyntaxError:
            self.num_illegal += 1
            return []
        if lexeme.kind is LexemeKind.TEXT:
            assert thread.num_topic_tokens is not None
            thread.num_topic_tokens += 1
            thread.has_topic_text |= bool(lexeme.text.strip())
        elif thread.parser.state is State.TOPIC:
            thread.num_topic_tokens, thread.has_topic_text = 0, False
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

    def _fork(self, parent: Thread, promise: Promise) -> list[Command]:
        parent.num_topic_tokens, parent.num_at_fork = None, parent.num_tokens
        child = self._add(parent, promise.topic, promise.units, num_prefix=1)  # <async>
        return [Fork(child), *self._begin_deferred()]

    def _add(self, parent: Thread, topic: str | None, units: int | None, num_prefix: int) -> Thread:
        child = Thread(
            len(self.threads), self._new_owner(),
            Parser(Form.BLOCK, self.limits.max_depth - len(parent.path)), parent=parent,
            path=(*parent.path, len(parent.children) + 1), topic=topic, units=units,
            state=ThreadState.DEFERRED, num_prefix=num_prefix,
        )  # fmt: skip
        self.threads.append(child)
        parent.children.append(child)
        parent.unjoined.append(child)
        parent.content.append(child)
        return child

    def _begin_deferred(self) -> list[Command]:
        waiting = (thread for thread in self.threads if thread.state is ThreadState.DEFERRED)
        deferred = [t for t in waiting if not any(other.is_alive for other in t.after)]
        bound = self.limits.max_threads
        num_free = len(deferred) if bound is None else bound - sum(1 for _ in self.runnable())
        commands: list[Command] = []
        for child in deferred[: max(0, num_free)]:
            if self.num_tokens + child.num_prefix > self.limits.max_tokens:
                break
            child.state = ThreadState.RUNNING
            child.num_tokens += child.num_prefix
            self.num_tokens += child.num_prefix
            commands.append(Begin(child))
        return commands

    def expand(
        self, starts: Iterable[tuple[str | None, int, Sequence[int]]], *, is_cut: bool = False
    ) -> list[Command]:
        """End main and let others write the answer; ``is_cut``: a limit left some out.

        Each has a topic (None: it is no block of the answer), a number of prefix tokens, and the
        indices of those that end before it begins.
        """
        self.main.content.clear()
        waits = {self._add(self.main, topic, None, size): after for topic, size, after in starts}
        children = [*waits]
        for child, after in waits.items():
            child.after = tuple(children[index] for index in after)
        reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
        return self._end(self.main, reason) + self._cut_if_full()

    def _sync(self, thread: Thread) -> list[Command]:
        thread.content.append(Sync())
        if any(child.is_pending for child in thread.unjoined):
            thread.state = ThreadState.WAITING
            return self._begin_deferred()  # a waiting thread is one decoding thread fewer
        return [self._join(thread)]

    @staticmethod
    def _join(thread: Thread) -> Resume:
        joined = tuple(descendants(thread.unjoined))
        thread.unjoined.clear()
        return Resume(thread, joined)

    def end_of_text(self, thread: Thread, *, is_cut: bool = False) -> list[Command]:
        """End main, or (remote engines, no mask) a block; ``is_cut``: a limit of its own did."""
        reason = FinishReason.LENGTH if is_cut or self.forced(thread) else FinishReason.STOP
        return self._end(thread, reason) + self._cut_if_full()

    def _end(self, thread: Thread, reason: FinishReason) -> list[Command]:
        commands: list[Command] = [self._close(thread, reason)]
        is_pending = any(child.is_pending for child in self.main.unjoined)
        if self.main.state is ThreadState.WAITING and not is_pending:
            self.main.state = ThreadState.RUNNING
            commands.append(self._join(self.main))
        commands += self._begin_deferred()
        return commands + self._finish_if_done()

    def _finish_if_done(self) -> list[Command]:
        alive = [thread for thread in self.threads if thread.is_alive]
        if self.is_finished or any(other.state is not ThreadState.DEFERRED for other in alive):
            return []
        if alive:  # no room is left for their prefixes
            return self._end_all(FinishReason.LENGTH)
        reason = self.main.finish_reason if self._stopped_at is None else FinishReason.STOP
        assert reason is not None
        self.finish_reason = reason
        return [Finish(reason)]

    def _cut_if_full(self) -> list[Command]:
        if self.is_finished or self.num_tokens < self.limits.max_tokens:
            return []
        return self._end_all(FinishReason.LENGTH)

    def abort(self) -> list[Command]:
        return [] if self.is_finished else self._end_all(FinishReason.ABORT)

    def _end_all(self, reason: FinishReason) -> list[Command]:
        ended = [self._close(thread, reason) for thread in self.threads if thread.is_alive]
        self.finish_reason = reason
        return [*ended, Finish(reason)]

    @staticmethod
    def _close(thread: Thread, reason: FinishReason) -> End:
        thread.state, thread.finish_reason = ThreadState.ENDED, reason
        return End(thread, reason)

    def stop(self, thread: Thread) -> list[Command]:
        """Cut the answer at the end of this thread's text; later threads are aborted."""
        if self._stopped_at is not None and self._stopped_at.reading_key <= thread.reading_key:
            return []
        self._stopped_at = thread
        later = [other for other in self.threads if other.reading_key > thread.reading_key]
        aborted = [self._close(other, FinishReason.ABORT) for other in later if other.is_alive]
        if thread.is_alive:
            return [*aborted, *self._end(thread, FinishReason.STOP), *self._cut_if_full()]
        return [*aborted, *self._begin_deferred(), *self._finish_if_done()]

    # The answer

    def document(self) -> Document:
        return Document(self.main.items(self._stopped_at.path if self._stopped_at else ()))
