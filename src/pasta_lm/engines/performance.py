"""One response of the scripted engine while it runs: lanes of threads that read their script.

Each step gives every thread credit for as many tokens as its speed says. A token costs one; the
``</async>`` of a thread that has ended is free, as is the ``<async>`` of one that begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

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
from pasta_lm.engines.script import Script, ScriptToken
from pasta_lm.engines.stops import StopWatch
from pasta_lm.interpreter.commands import Command, End, Finish, Fork, Resume
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.placement import Placement
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.interpreter.trace import Kind, Role, Trace
from pasta_lm.language.document import Block, Item
from pasta_lm.language.tags import TOKENS_PER_UNIT

ENOUGH = 1 - 1e-9  # ten times a tenth is not quite one


@dataclass(slots=True, eq=False)
class Lane:
    """A thread and what the engine keeps beside it."""

    thread: Thread
    script: Script
    tokens: Iterator[ScriptToken]
    stops: StopWatch
    speed: float
    """Tokens in a step."""
    credit: float = 0.0
    """Tokens that it may feed now."""
    next_token: ScriptToken | None = None
    """What it feeds next."""
    promised: Thread | None = None
    """The thread that ``next_token`` forks."""
    joined: tuple[Thread, ...] | None = None
    """The threads that ``next_token``, a sync, joins."""

    @property
    def is_ready(self) -> bool:
        """Tell whether it feeds a token in the coming pass."""
        thread = self.thread
        has_begun = thread.row is not None or thread.fork_point is not None
        is_waiting = thread.state is ThreadState.WAITING
        return (
            self.next_token is not None and self.credit >= ENOUGH and has_begun and not is_waiting
        )

    def add_credit(self) -> None:
        """Let it decode as much as its speed says; what it could not use does not add up."""
        if self.thread.is_alive:
            self.credit = min(self.credit + self.speed, max(1.0, self.speed))
        else:
            self.credit = 1.0


class Performance:
    """One sample of one request."""

    def __init__(
        self,
        request: Request,
        sample: int,
        entries: Entries,
        script: Script,
        speed: Callable[[int], float],
    ) -> None:
        """Begin with what the prefill gives: main's first token."""
        limits = replace(request.params.limits(), max_depth=max(1, _depth(script.items)))
        trace = Trace(
            kind=Kind.SIMULATED,
            model="script",
            engine="scripted",
            strategy=request.strategy,
            positions=request.positions.value,
            num_prompt_tokens=len(request.prompt),
        )
        self.interpreter = Interpreter(limits, entries.new_owner)
        self._sample = sample
        self._placement = Placement(entries, request.positions, self.interpreter.main)
        self._recorder = Recorder(trace, self.interpreter.main)
        self._stops = request.params.stop
        self._speed = speed
        self._step = -1
        self._now_s = 0.0
        self._events: list[StreamEvent] = [ThreadStarted(sample, 0, None, None, None)]
        self._lanes: list[Lane] = []
        self._take(self._open(self.interpreter.main, script))

    @property
    def is_finished(self) -> bool:
        """Tell whether the response is complete."""
        return self.interpreter.is_finished

    def drain(self) -> list[StreamEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def step(self, now_s: float) -> None:
        """Let every thread decode what its speed allows."""
        if self.is_finished:
            return
        self._step, self._now_s = self._step + 1, now_s
        self._recorder.passed(now_s)
        for lane in self._lanes:
            lane.add_credit()
        while fed := self._feed_ready():
            self._take_from(fed)
        self._lanes = [lane for lane in self._lanes if lane.thread.is_alive or lane.next_token]

    def _feed_ready(self) -> list[Lane]:
        """Let each ready thread feed one token: threads by birth, then syncs."""
        fed: list[Lane] = []
        order = sorted(self._lanes, key=lambda lane: (lane.joined is not None, lane.thread.id))
        for lane in order:
            # Asked only now: what was fed before may have made it so.
            if lane.is_ready and not self._is_owed(lane):
                self._feed(lane)
                fed.append(lane)
        return fed

    def _is_owed(self, lane: Lane) -> bool:
        """Tell whether a lane's sync must wait for an ``</async>`` that has not been fed."""
        owing = [other.thread for other in self._lanes if other.next_token is not None]
        return any(thread in owing for thread in lane.joined or ())

    def _feed(self, lane: Lane) -> None:
        assert lane.next_token is not None
        thread, token = lane.thread, lane.next_token.id
        if lane.joined is None:
            placed = self._placement.feed(thread, token, promised=lane.promised)
        else:
            placed = self._placement.feed_sync(thread, token, lane.joined)
            position = placed.position
            self._recorder.synced(thread, lane.joined, step=self._step, position=position)
        self._recorder.fed(thread, placed, step=self._step)
        lane.credit -= 1
        lane.next_token = lane.promised = lane.joined = None

    def _take_from(self, lanes: Sequence[Lane]) -> None:
        for lane in sorted(lanes, key=lambda lane: lane.thread.reading_key):
            if lane.thread.state is ThreadState.RUNNING and not self.is_finished:
                self._take(lane)

    def _take(self, lane: Lane) -> None:
        """Read the next token of a thread's script and act on it."""
        thread, is_forced = lane.thread, self.interpreter.forced(lane.thread) is not None
        token = lane.script.block_close() if is_forced else next(lane.tokens, None)
        if token is None and thread.is_main:
            self._emit(lane, lane.stops.flush())
            self._carry_out(self.interpreter.end_of_text(thread))
            return
        token = token or lane.script.block_close()
        if token.role is Role.TAG:
            self._emit(lane, lane.stops.flush())
        self._record(thread, token)
        lane.next_token = token
        num_children = len(thread.children)
        commands = self.interpreter.advance(thread, token.lexeme)
        if len(thread.children) > num_children:
            lane.promised = thread.children[-1]
        if token.role is Role.CONTENT:
            self._emit(lane, lane.stops.feed(token.text))
        self._carry_out(commands)
        if lane.stops.has_matched and not self.is_finished:
            self._carry_out(self.interpreter.stop(thread))

    def _record(self, thread: Thread, token: ScriptToken) -> None:
        text, role = token.text, token.role
        self._recorder.decoded(
            thread, token.id, text, role, step=self._step, t_s=self._now_s, is_forced=True
        )

    def _emit(self, lane: Lane, text: str) -> None:
        if text:
            self.interpreter.write(lane.thread, text)
            self._events.append(TextDelta(self._sample, lane.thread.id, text))

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Fork(child):
                    self._start(child)
                case Resume(thread, joined):
                    self._lane(thread).joined = joined
                    ids = tuple(other.id for other in joined)
                    self._events.append(Synced(self._sample, thread.id, ids))
                case End(thread, reason):
                    self._end(thread, reason)
                case Finish(reason):
                    self._finish(reason)

    def _open(self, thread: Thread, script: Script) -> Lane:
        speed, stops = self._speed(thread.id), StopWatch(self._stops)
        lane = Lane(thread, script, script.tokens(), stops, speed, max(0.0, 1 - speed))
        self._lanes.append(lane)
        return lane

    def _start(self, child: Thread) -> None:
        assert child.parent is not None
        lane = self._open(child, self._lane(child.parent).script.child(child.path[-1]))
        for thread in self.interpreter.threads[: child.id + 1]:
            self._recorder.thread_started(thread)
        promised = TOKENS_PER_UNIT * (child.units or 0)
        self._events.append(
            ThreadStarted(self._sample, child.id, child.parent.id, child.topic, promised)
        )
        lane.next_token = lane.script.block_open()
        self._record(child, lane.next_token)

    def _end(self, thread: Thread, reason: FinishReason) -> None:
        lane = next((lane for lane in self._lanes if lane.thread is thread), None)
        if lane is not None:
            self._emit(lane, lane.stops.flush())
            if thread.is_main or reason is FinishReason.ABORT:
                lane.next_token = None
        self._events.append(ThreadEnded(self._sample, thread.id, reason))

    def _lane(self, thread: Thread) -> Lane:
        return next(lane for lane in self._lanes if lane.thread is thread)

    def _finish(self, reason: FinishReason) -> None:
        trace = self._recorder.trace
        trace.num_illegal = self.interpreter.num_illegal
        self._recorder.finished(self.interpreter.threads, reason.value, t_s=self._now_s)
        self._events.append(Finished(self._sample, Answer(self.interpreter.document(), trace)))


def _depth(items: Sequence[Item]) -> int:
    return max((1 + _depth(item.items) for item in items if isinstance(item, Block)), default=0)
