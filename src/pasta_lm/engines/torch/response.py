"""One response while it runs in the local engine: lanes of threads between passes.

Joins the pure parts (interpreter, placement, recorder) to token ids: what each thread feeds next,
what may be sampled, what a sampled id means. Knows nothing of tensors but the seen ids it names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from pasta_lm.engines.recorder import Recorder
from pasta_lm.engines.request import (
    Answer,
    Finished,
    Guess,
    Request,
    Start,
    StreamEvent,
    Synced,
    TextDelta,
    ThreadEnded,
    ThreadStarted,
)
from pasta_lm.engines.stops import StopWatch
from pasta_lm.engines.torch.lane import END_OF_TEXT, Lane, Special
from pasta_lm.engines.torch.sampling import EVERYTHING, PLAIN_TEXT
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.interpreter.commands import Command, End, Finish, Fork, Legal, Resume
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.placement import Placement
from pasta_lm.interpreter.thread import Thread
from pasta_lm.interpreter.trace import Role, Trace
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    TOKENS_PER_UNIT,
    bounded_topic,
    unescape_topic,
)


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
        self.interpreter = Interpreter(limits, entries.new_owner, request.form)
        self.placement = Placement(entries, request.positions, self.interpreter.main)
        self.recorder = Recorder(trace, self.interpreter.main)
        self.events: list[StreamEvent] = []
        self._vocabulary = vocabulary
        self._eos_ids = frozenset(eos_ids)
        self._counts_seen = request.params.repetition_penalty != 1.0
        self._seen_at_promise: dict[int, set[int]] = {}
        self._seen_at_end: dict[int, set[int]] = {}
        self._starts: dict[int, Start] = {}
        self._step = -1
        main = self._new_lane(self.interpreter.main)
        if request.expansion is not None:
            main.stops = StopWatch(())  # what it decodes is no part of the answer
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
        if lanes and self.request.guess is not None:
            self._guess(lanes[0], self.request.guess)
        return sorted(lanes, key=lambda lane: (lane.joined is not None, lane.thread.id))

    def feed(self, lane: Lane) -> None:
        """Place a lane's next tokens; the pass that is being made will feed them."""
        token, thread = lane.next_token, lane.thread
        assert token is not None
        for index, given in enumerate(lane.given):
            placed = self.placement.feed(thread, given, is_same_pass=index > 0)
            self.recorder.fed(thread, placed, step=self._step + 1)
        if lane.joined is None:
            placed = self.placement.feed(
                thread, token, promised=lane.promised, is_same_pass=bool(lane.given)
            )
        else:
            placed = self.placement.feed_sync(thread, token, lane.joined)
            step, position = self._step + 1, placed.position
            self.recorder.synced(thread, lane.joined, step=step, position=position)
        self.recorder.fed(thread, placed, step=self._step + 1)
        lane.next_token = lane.promised = lane.joined = None
        lane.given = ()
        lane.guessed = [
            self.placement.feed(thread, guess, is_same_pass=True) for guess in lane.guesses
        ]

    def _guess(self, lane: Lane, guess: Guess) -> None:
        """Let a lane feed what it may decode next, as far as it may still decode."""
        assert lane.next_token is not None
        thread, limits = lane.thread, self.interpreter.limits
        ids = [entry.token for entry in self.placement.entries.items]
        room = limits.max_tokens - thread.num_tokens
        if limits.max_position is not None:
            room = min(room, limits.max_position - thread.position)
        lane.guesses = tuple(guess([*ids, lane.next_token]))[: max(0, room)]

    def confirm(self, lane: Lane, num_guessed: int) -> bool:
        """Note that the token just taken was fed already, if it is what was guessed, and say so.

        Args:
            lane: Who decoded it.
            num_guessed: Which guess it would be, from 1.
        """
        were_right = len(lane.guesses) - len(lane.guessed) == num_guessed - 1
        if not were_right or lane.next_token != lane.guesses[num_guessed - 1]:
            return False
        self.recorder.fed(lane.thread, lane.guessed.pop(0), step=self._step)
        lane.next_token = None
        return True

    def take_back(self) -> int:
        """Forget the guesses of this pass that were wrong, and return how many they were."""
        num_wrong = 0
        for lane in self.lanes:
            num_wrong += len(lane.guessed)
            self.placement.take_back(lane.thread, len(lane.guessed))
            lane.guesses, lane.guessed = (), []
        return num_wrong

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
            if lane.thread.is_main or not self.request.forks:
                self._flush(lane)
                self._carry_out(self._end_of_text(lane), t_s)
                return
            token = self._vocabulary.piece_id(ASYNC_CLOSE)  # it ends the block that it is in
        self._take_id(lane, token, t_s, is_forced)

    def _forced_token(self, lane: Lane) -> int | Literal[Special.END_OF_TEXT] | None:
        """Return what a lane must decode next, whatever its logits say, or None."""
        thread, expansion = lane.thread, self.request.expansion
        if self.interpreter.forced(thread) is not None:
            forks = self.request.forks
            return self._vocabulary.piece_id(ASYNC_CLOSE) if forks else END_OF_TEXT
        is_long = expansion is not None and thread.num_tokens >= expansion.max_main_tokens
        if is_long and thread.is_main:
            return END_OF_TEXT
        return None if lane.forced is None else next(lane.forced, END_OF_TEXT)

    def _end_of_text(self, lane: Lane) -> list[Command]:
        """Take an end-of-text: the end of main may be where other threads begin."""
        main, expansion = lane.thread, self.request.expansion
        if expansion is None or not main.is_main:
            return self.interpreter.end_of_text(main)
        starts = expansion.starts("".join(part for part in main.content if isinstance(part, str)))
        if not starts:
            return self.interpreter.end_of_text(main)
        kept = [one for one in starts if self._has_room(main, one)]
        kept = kept[: self.interpreter.limits.max_blocks]
        commands = self.interpreter.expand(
            [(one.topic, len(one.given)) for one in kept], is_cut=len(kept) < len(starts)
        )
        for child, start in zip(main.children, kept, strict=True):
            self.placement.start(child, start.num_seen)
            self._starts[child.id] = start
            if self._counts_seen:
                seen = self.request.prompt[: start.num_seen]
                self._seen_at_promise[child.id] = {*seen, *start.given}
                if start.num_seen is None:
                    self._seen_at_promise[child.id] |= lane.seen
        return commands

    def _has_room(self, main: Thread, start: Start) -> bool:
        """Tell whether what a thread is given, and a token of its own, have positions."""
        last = self.interpreter.limits.max_position
        first = main.position if start.num_seen is None else start.num_seen
        return last is None or first + len(start.given) < last - 1  # where threads must end

    def _take_id(self, lane: Lane, token: int, t_s: float, is_forced: bool) -> None:
        thread, lexeme = lane.thread, self._vocabulary.id_to_lexeme(token)
        if lexeme is not None:
            self._flush(lane)
            text, role = "", Role.TAG
        else:
            text = lane.stream.feed(token)
            role = Role.TOPIC if thread.in_topic or self._writes_ahead(thread) else Role.CONTENT
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
        if role is Role.CONTENT or self._writes_ahead(thread):
            self._emit(lane, lane.stops.feed(text))
        if lane.stops.has_matched:
            commands += self.interpreter.stop(thread)
        self._carry_out(commands, t_s)

    def _writes_ahead(self, thread: Thread) -> bool:
        """Tell whether a thread writes what others will write out: it says what of, no content."""
        return thread.is_main and self.request.expansion is not None

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
        lane, start = self._new_lane(child), self._starts.pop(child.id, None)
        given = (self._vocabulary.piece_id(ASYNC_OPEN),) if start is None else start.given
        lane.given, lane.next_token = given[:-1], given[-1]
        lane.seen = self._seen_at_promise.pop(child.id, set())
        if self.request.forced is not None:
            lane.forced = iter(self._forced_block(child))
        self.lanes.append(lane)
        assert child.parent is not None
        promised = None if child.units is None else TOKENS_PER_UNIT * child.units
        for thread in self.interpreter.threads[: child.id + 1]:
            self.recorder.thread_started(thread)
        self.events.append(
            ThreadStarted(self.sample, child.id, child.parent.id, child.topic, promised)
        )
        for token in given:
            self.recorder.decoded(
                child, token, "", Role.TAG, step=self._step, t_s=t_s, is_forced=True
            )
        if start is not None:
            self._emit(lane, start.text)

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
