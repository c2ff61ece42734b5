"""One response while it runs in the local engine: lanes of threads between passes.

Joins the pure parts (interpreter, placement, recorder) to token ids: what each thread feeds next,
what may be sampled, what a sampled id means. Knows nothing of tensors but the seen ids it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from pasta_lm.engines.recorder import Recorder
from pasta_lm.engines.request import (
    Answer,
    Finished,
    Request,
    StreamEvent,
    Synced,
    TextDelta,
    ThreadEnded,
    ThreadStarted,
)
from pasta_lm.engines.stops import StopWatch
from pasta_lm.engines.text_stream import TextStream
from pasta_lm.engines.torch.sampling import EVERYTHING, PLAIN_TEXT
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.interpreter import (
    Command,
    End,
    Finish,
    Fork,
    Interpreter,
    Legal,
    Resume,
)
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.placement import Placement
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.interpreter.trace import Role, Trace
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    TOKENS_PER_UNIT,
    bounded_topic,
    unescape_topic,
)


class Special(Enum):
    """What is not a token id, but stands where one could."""

    END_OF_TEXT = "end of text"


END_OF_TEXT: Final = Special.END_OF_TEXT


@dataclass(slots=True, eq=False)
class Lane:
    """A thread and what the engine keeps beside it."""

    thread: Thread
    stream: TextStream
    stops: StopWatch
    forced: Iterator[int] | None = None
    """Ids to decode instead of sampled ones; then its end."""
    next_token: int | None = None
    """What it feeds next."""
    promised: Thread | None = None
    """The thread that ``next_token`` forks."""
    joined: tuple[Thread, ...] | None = None
    """The threads that ``next_token``, a sync, joins."""
    seen: set[int] = field(default_factory=set)
    """Ordinary ids that the thread sees; kept only where a repetition penalty counts them."""

    @property
    def feeds_next(self) -> bool:
        """Tell whether it takes part in the coming pass."""
        return self.next_token is not None and self.thread.state is not ThreadState.WAITING

    @property
    def decodes(self) -> bool:
        """Tell whether a token is wanted of it."""
        return self.thread.state is ThreadState.RUNNING


class Response:
    """One sample of one request."""

    def __init__(
        self,
        request: Request,
        sample: int,
        entries: Entries,
        vocabulary: Vocabulary,
        eos_ids: Collection[int],
        limits: Limits,
        trace: Trace,
    ) -> None:
        """Begin with a main thread behind the prompt."""
        self.request = request
        self.sample = sample
        self.interpreter = Interpreter(limits, entries.new_owner)
        self.placement = Placement(entries, request.positions, self.interpreter.main)
        self.recorder = Recorder(trace, self.interpreter.main)
        self.events: list[StreamEvent] = []
        self._vocabulary = vocabulary
        self._eos_ids = frozenset(eos_ids)
        self._counts_seen = request.params.repetition_penalty != 1.0
        self._seen_at_promise: dict[int, set[int]] = {}
        self._seen_at_end: dict[int, set[int]] = {}
        self._step = -1
        main = self._new_lane(self.interpreter.main)
        if self._counts_seen:
            main.seen.update(request.prompt)
        if request.forced is not None:
            main.forced = iter(request.forced.main)
        self.lanes = [main]
        self.events.append(ThreadStarted(sample, 0, None, None, None))

    @property
    def trace(self) -> Trace:
        """Return the trace as it stands."""
        return self.recorder.trace

    @property
    def is_finished(self) -> bool:
        """Tell whether the response is complete."""
        return self.interpreter.is_finished

    def _new_lane(self, thread: Thread) -> Lane:
        stops = StopWatch(self.request.params.stop)
        return Lane(thread, self._vocabulary.text_stream(), stops)

    # Feeding

    def lanes_to_feed(self) -> list[Lane]:
        """Return the lanes that take part in the coming pass: threads by birth, then syncs."""
        lanes = [lane for lane in self.lanes if lane.feeds_next]
        return sorted(lanes, key=lambda lane: (lane.joined is not None, lane.thread.id))

    def feed(self, lane: Lane) -> None:
        """Place a lane's next token; the pass that is being made will feed it."""
        token, thread = lane.next_token, lane.thread
        assert token is not None
        if lane.joined is None:
            placed = self.placement.feed(thread, token, promised=lane.promised)
        else:
            placed = self.placement.feed_sync(thread, token, lane.joined)
            step, position = self._step + 1, placed.position
            self.recorder.synced(thread, lane.joined, step=step, position=position)
        self.recorder.fed(thread, placed, step=self._step + 1)
        lane.next_token = lane.promised = lane.joined = None

    def passed(self, t_s: float) -> None:
        """Note that the pass is over; drop lanes whose last token it fed."""
        self._step += 1
        self.recorder.passed(t_s)
        self.lanes = [lane for lane in self.lanes if lane.thread.is_alive or lane.feeds_next]

    # Choosing

    def lanes_to_decode(self) -> list[Lane]:
        """Return the lanes of which a token is wanted, in reading order."""
        lanes = [lane for lane in self.lanes if lane.decodes]
        return sorted(lanes, key=lambda lane: lane.thread.reading_key)

    def legal(self, lane: Lane) -> Legal:
        """Return what may be sampled for a lane."""
        if not self.request.forks:
            return PLAIN_TEXT
        return self.interpreter.legal(lane.thread) if self.request.params.mask else EVERYTHING

    # Taking what was chosen

    def take(self, lane: Lane, sampled: int, *, t_s: float) -> None:
        """Take the token that was sampled for a lane, unless another is forced; act on it.

        Args:
            lane: Whose token.
            sampled: Its id.
            t_s: When, in seconds since the request began.
        """
        token = self._forced_token(lane)
        is_forced = token is not None
        if token is None:
            token = sampled
        if token is END_OF_TEXT or token in self._eos_ids:
            if lane.thread.is_main:
                self._flush(lane)
                self._carry_out(self.interpreter.end_of_text(lane.thread), t_s)
                return
            token = self._vocabulary.piece_id(ASYNC_CLOSE)  # it ends the block that it is in
        self._take_id(lane, token, t_s, is_forced)

    def _forced_token(self, lane: Lane) -> int | Literal[Special.END_OF_TEXT] | None:
        """Return what a lane must decode next, whatever its logits say, or None."""
        if self.interpreter.forced(lane.thread) is not None:
            return self._vocabulary.piece_id(ASYNC_CLOSE)
        return None if lane.forced is None else next(lane.forced, END_OF_TEXT)

    def _take_id(self, lane: Lane, token: int, t_s: float, is_forced: bool) -> None:
        thread, lexeme = lane.thread, self._vocabulary.id_to_lexeme(token)
        if lexeme is not None:
            self._flush(lane)
            text, role = "", Role.TAG
        else:
            text = lane.stream.feed(token)
            role = Role.TOPIC if thread.in_topic else Role.CONTENT
        if lane.stops.has_matched:
            lexeme = None  # a stop before a tag: it is never fed, so it has no effect
        step = self._step
        self.recorder.decoded(thread, token, text, role, step=step, t_s=t_s, is_forced=is_forced)
        lane.next_token = token
        if self._counts_seen and lexeme is None:
            lane.seen.add(token)
        num_children = len(thread.children)
        commands = self.interpreter.advance(thread, lexeme or Lexeme(LexemeKind.TEXT, text))
        if len(thread.children) > num_children:
            self._promise(lane, thread.children[-1])
        if role is Role.CONTENT:
            self._emit(lane, lane.stops.feed(text))
        if lane.stops.has_matched:
            commands += self.interpreter.stop(thread)
        self._carry_out(commands, t_s)

    def _promise(self, lane: Lane, child: Thread) -> None:
        child.topic = bounded_topic(unescape_topic(child.topic or ""))  # ids spell it escaped
        lane.promised = child
        if self.request.forced is not None:
            child.block_length = len(self._forced_block(child)) + 2
        if self._counts_seen:
            self._seen_at_promise[child.id] = set(lane.seen)

    def _forced_block(self, child: Thread) -> tuple[int, ...]:
        """Return the ids of a block of the given answer; none for a promise that has no block."""
        assert self.request.forced is not None
        blocks = self.request.forced.blocks
        return blocks[child.id - 1] if child.id <= len(blocks) else ()

    def _flush(self, lane: Lane) -> None:
        """Write what is held back; a tag or an end follows, so nothing can complete it."""
        left = lane.stream.close()
        if lane.thread.in_topic:
            return  # what is left of a topic is no character
        self._emit(lane, lane.stops.feed(left) + lane.stops.flush())

    def _emit(self, lane: Lane, text: str) -> None:
        if text:
            self.interpreter.write(lane.thread, text)
            self.events.append(TextDelta(self.sample, lane.thread.id, text))

    # Carrying out

    def _carry_out(self, commands: Sequence[Command], t_s: float) -> None:
        for command in commands:
            match command:
                case Fork(child):
                    self._start(child, t_s)
                case Resume(thread, joined):
                    lane = self._lane(thread)
                    lane.joined = joined
                    lane.seen.update(*(self._seen_at_end.pop(other.id, ()) for other in joined))
                    ids = tuple(other.id for other in joined)
                    self.events.append(Synced(self.sample, thread.id, ids))
                case End(thread, reason):
                    self._end(thread, reason)
                case Finish(reason):
                    self._finish(reason, t_s)

    def _start(self, child: Thread, t_s: float) -> None:
        lane = self._new_lane(child)
        lane.next_token = self._vocabulary.piece_id(ASYNC_OPEN)
        lane.seen = self._seen_at_promise.pop(child.id, set())
        if self.request.forced is not None:
            lane.forced = iter(self._forced_block(child))
        self.lanes.append(lane)
        assert child.parent is not None
        parent, units = child.parent.id, child.units or 0
        for thread in self.interpreter.threads[: child.id + 1]:
            self.recorder.thread_started(thread)
        self.events.append(
            ThreadStarted(self.sample, child.id, parent, child.topic, TOKENS_PER_UNIT * units)
        )
        token, step = lane.next_token, self._step
        self.recorder.decoded(child, token, "", Role.TAG, step=step, t_s=t_s, is_forced=True)

    def _end(self, thread: Thread, reason: FinishReason) -> None:
        lane = next((lane for lane in self.lanes if lane.thread is thread), None)
        if lane is not None:
            self._flush(lane)
            if thread.is_main or reason is FinishReason.ABORT:
                lane.next_token = None
            self._seen_at_end[thread.id] = lane.seen
        self.events.append(ThreadEnded(self.sample, thread.id, reason))

    def _lane(self, thread: Thread) -> Lane:
        return next(lane for lane in self.lanes if lane.thread is thread)

    def _finish(self, reason: FinishReason, t_s: float) -> None:
        self.lanes.clear()
        self.trace.num_illegal = self.interpreter.num_illegal
        self.recorder.finished(self.interpreter.threads, reason.value, t_s=t_s)
        self.events.append(Finished(self.sample, Answer(self.interpreter.document(), self.trace)))

    def abort(self, t_s: float) -> None:
        """Give the response up."""
        self._carry_out(self.interpreter.abort(), t_s)

    def drain(self) -> list[StreamEvent]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events
