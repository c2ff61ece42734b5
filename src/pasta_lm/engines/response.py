"""One response while it runs, the same for every engine: its live threads between two passes.

Joins interpreter, placer and recorder to token ids; the engine decides when a thread feeds.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from pasta_lm.engines import Tokens, live_thread
from pasta_lm.engines import request as events
from pasta_lm.engines.guesses import Contexts, Guesses, Pace
from pasta_lm.engines.live_thread import END_OF_TEXT, LiveThread, MatcherOf, Recorder, StopWatch
from pasta_lm.engines.request import Answer, Request, Start, StreamEvent, TokenLogprobs
from pasta_lm.interpreter import interpreter
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.placement import Entries, Placer
from pasta_lm.interpreter.positions import Join
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.interpreter.trace import Role, Trace
from pasta_lm.language.lexer import Lexeme, LexemeKind, spelling
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, bounded_topic, unescape_topic
from pasta_lm.models.thinking import Thought


class Response:
    """One sample of one request.

    A pass calls ``begin_pass``, ``feed`` for every thread of ``threads_to_feed`` and ``passed``,
    then ``take`` for every thread of ``threads_to_decode``. Main's first token is taken before.
    """

    def __init__(
        self, request: Request, sample: int, entries: Entries, tokens: Tokens, *, limits: Limits,
        trace: Trace, eos_ids: Collection[int] = (), matcher_of: MatcherOf | None = None,
        num_tokens: int = sys.maxsize,
    ) -> None:  # fmt: skip
        self.request, self.sample, self.trace = request, sample, trace
        self.interpreter = interpreter.Interpreter(limits, entries.new_owner, request.form)
        self.placer = Placer(entries, request.positions, self.interpreter.main, request.join)
        self.recorder = Recorder(trace, self.interpreter.main)
        self.logprobs: dict[tuple[int, int], TokenLogprobs] = {}
        self.in_form: dict[tuple[int, int], TokenLogprobs] = {}  # as in ``Answer``
        self._tokens, self._num_tokens = tokens, num_tokens  # larger ids are not guessed
        self._eos_ids, self._matcher_of = frozenset(eos_ids), matcher_of
        forced, marks, bound = request.forced, request.thinking, request.params.max_thinking_tokens
        is_uncut = forced is not None and forced.num_tokens < limits.max_tokens
        self._thought = None if marks is None else Thought(marks, bound, self._begins_form)
        is_alone = not request.forks and request.expansion is None
        can_stop = bool(request.params.stop) and not is_alone
        self._pace = Pace(self.interpreter, is_uncut=is_uncut or is_alone, can_stop=can_stop)
        guesser = request.guesser if self._pace.can_vary else None
        self.contexts = Contexts(request, self._is_tag)
        self.guesses = Guesses(guesser, self.placer, self._pace, self.contexts, self._is_text)
        self._is_in_step = guesser is None  # whether all threads were fed in every pass
        self._starts: dict[int, Start] = {}  # how the threads of an expansion begin, by id
        self._forced = None if forced is None else forced.by_path(tokens.piece_id, limits.max_depth)
        self.live: dict[int, LiveThread] = {}  # threads with something left to feed, by id
        self.events: list[StreamEvent] = [events.ThreadStarted(sample, 0, None, None, None)]
        main = self._open(self.interpreter.main)
        if request.expansion is not None:
            main.stops = StopWatch(())  # the text of main is no part of the answer

    @property
    def is_finished(self) -> bool:
        return self.interpreter.is_finished

    def _open(self, thread: Thread) -> LiveThread:
        start = self._starts.get(thread.id)
        stop = None if start is None else start.stop
        stops = StopWatch(self.request.params.stop if stop is None else stop)
        live = LiveThread(thread, self._tokens.text_stream(), stops, stops_alone=stop is not None)
        if start is not None:
            live.max_tokens, live.is_scored = start.max_tokens, start.is_scored
        if self._forced is not None:
            live.forced = iter(self._forced.get(thread.path, ()))
        live.thought = self._thought if thread.is_main else None
        if live.thought is None:
            self._match(live)
        self.live[thread.id] = live
        return live

    def _match(self, live: LiveThread, text: str = "") -> bool:
        """Start the matcher of a thread's form, if any, with a text; return whether it is whole."""
        start = self._starts.get(live.thread.id)
        form = (start or self.request.params).structured_outputs
        if form and self._matcher_of and (start or self.request.expansion is None):
            live.matcher = self._matcher_of(form)
            live.matcher.begin(text)
        return live.matcher is not None and live.matcher.is_complete

    def _begins_form(self, text: str) -> bool:
        form = None if self.request.expansion else self.request.params.structured_outputs
        return bool(form and self._matcher_of and self._matcher_of(form).allows_text(text))

    # Feeding

    def threads_to_feed(self, width: int | None = None) -> list[LiveThread]:
        """Return the threads of the coming pass, syncs last; ``width`` bounds those that decode."""
        threads = [live for live in self.live.values() if live.feeds_next]
        going = [live.thread for live in threads if live.decodes]
        width = width if self.request.forks and self._pace.can_vary else None
        self._is_in_step &= width is None
        if not self._is_in_step:
            going = self._pace.going(going, width)
        for live in threads:
            live.is_held = live.decodes and live.thread not in going
        threads = [live for live in threads if not live.is_held]
        room = self.interpreter.limits.max_tokens - self.interpreter.num_tokens
        self.guesses.propose(threads, self.interpreter.limits, room)
        return sorted(threads, key=lambda live: (live.joined is not None, live.thread.id))

    def _is_text(self, token: int) -> bool:
        if not 0 <= token < self._num_tokens or token in self._eos_ids or self._is_tag(token):
            return False
        text = self._tokens.text_stream().feed(token)
        return self._thought is None or self._thought.keeps(token, text)

    def _is_tag(self, token: int) -> bool:
        return self._tokens.id_to_lexeme(token) is not None

    def max_to_feed(self, live: LiveThread) -> int:
        feeds_again = live.joined is not None and self.request.join is Join.RECOMPUTE
        return len(live.prefix) + 1 + len(live.guesses) + feeds_again * self.interpreter.num_tokens

    def begin_pass(self) -> None:
        self.recorder.step += 1

    def feed(self, live: LiveThread) -> None:
        """Place a thread's next tokens; the pass that is being made computes them."""
        thread, token, prefix = live.thread, live.next_token, live.prefix
        assert token is not None
        feed = self.placer.feed
        placements = [feed(thread, first, is_same_pass=i > 0) for i, first in enumerate(prefix)]
        if live.joined is None:
            last = feed(thread, token, promised=live.promised, is_same_pass=bool(prefix))
            self._pace.fed(thread)
        else:
            last = self.placer.feed_sync(thread, token, live.joined)
            self._pace.synced(thread, live.joined)
            self.recorder.synced(thread, live.joined, last.position)
            self.trace.num_recomputed = self.placer.num_recomputed
        if thread.after and self.trace.threads[thread.id].start_step is None:
            self.recorder.synced(thread, thread.after, (*placements, last)[0].position)
        for placement in (*placements, last):
            self.recorder.fed(thread, placement)
        live.next_token = live.promised = live.joined = None
        live.prefix = ()

    def passed(self, t_s: float) -> None:
        self.recorder.passed(t_s)
        lives = self.live.items()
        self.live = {n: live for n, live in lives if live.thread.is_alive or live.feeds_next}

    # Decoding

    def threads_to_decode(self) -> list[LiveThread]:
        """Return the threads that decode a token, in reading order: limits favour the first."""
        threads = [live for live in self.live.values() if live.decodes and not live.is_held]
        return sorted(threads, key=lambda live: live.thread.reading_key)

    def legal(self, live: LiveThread, ahead: int = 0) -> interpreter.Legal:
        """Return the tokens that may be sampled for a thread, or ``ahead`` words of text later."""
        thought, form = live.thought, self.request.params.structured_outputs
        if not self.request.forks or not (thought is None or thought.may_fork):
            must_go_on = form is not None and thought is not None and not thought.has_ended
            return interpreter.PLAIN_TEXT._replace(end_of_text=not must_go_on)
        if not self.request.params.mask:
            return interpreter.EVERYTHING
        return self.interpreter.legal(live.thread, ahead)

    def take(self, live: LiveThread, sampled: int, *, t_s: float) -> None:
        """Take the token that was sampled for a thread, unless another is forced; act on it."""
        forced = self._forced_token(live)
        token = sampled if forced is None else forced
        if token == END_OF_TEXT or token in self._eos_ids:
            if live.thread.is_main or not self.request.forks:
                self._end_text(live, t_s)
                return
            token = self._tokens.piece_id(ASYNC_CLOSE)  # it ends the block that it is in
        thought = live.thought
        self._take_id(live, token, t_s, is_forced=forced is not None or token != sampled)
        is_last = live.ends_behind(token)
        if thought is not None and thought.has_ended and live.matcher is None:
            last = self.trace.tokens[-1]  # it may end the thought and begin the answer
            is_last |= self._match(live, last.text if last.role is Role.CONTENT else "")
        if live.thread.is_alive and is_last:
            live.next_token = None
            self._end_text(live, t_s)

    def _forced_token(self, live: LiveThread) -> int | None:
        if self.interpreter.forced(live.thread) is not None:
            return self._tokens.piece_id(ASYNC_CLOSE) if self.request.forks else END_OF_TEXT
        expansion, thread = self.request.expansion, live.thread
        if expansion and thread.is_main and thread.num_tokens >= expansion.max_main_tokens:
            return END_OF_TEXT
        if live.thought and (token := live.thought.forced()) is not None:
            return token
        return None if live.forced is None else next(live.forced, END_OF_TEXT)

    def _end_text(self, live: LiveThread, t_s: float) -> None:
        self._flush(live)
        expansion, thread = self.request.expansion, live.thread
        if expansion is not None and thread.is_main:
            commands, self._starts = live_thread.expand(expansion, self.interpreter, self.placer)
        else:
            is_cut = live.is_full and live.matcher is not None and not live.matcher.is_complete
            commands = self.interpreter.end_of_text(thread, is_cut=is_cut)
        self._carry_out(commands, t_s)

    def _take_id(self, live: LiveThread, token: int, t_s: float, *, is_forced: bool) -> None:
        thread, lexeme = live.thread, self._tokens.id_to_lexeme(token)
        if lexeme is not None and live.thought and not live.thought.may_fork:
            self.interpreter.num_illegal += 1  # servers have no mask
            lexeme = None
        is_skeleton = thread.is_main and self.request.expansion is not None
        tag = None
        if lexeme is not None:
            self._flush(live)
            text, role, tag = "", Role.TAG, spelling(lexeme)
        else:
            text = live.text.feed(token)
            role = Role.TOPIC if thread.in_topic or is_skeleton else Role.CONTENT
            if live.thought is not None:
                thought, text = self._think(live, *live.thought.feed(token, text))
                role, text = (role, text) if text else (Role.THOUGHT, thought)
        if live.stops.has_matched:
            lexeme = None  # a stop string ended before this tag: it is never fed and has no effect
        if is_forced:  # another may have been sampled
            self.logprobs.pop((thread.id, self.trace.threads[thread.id].num_tokens), None)
        self.recorder.decoded(thread, token, text, role, t_s=t_s, is_forced=is_forced, tag=tag)
        live.next_token = token
        self.contexts.decoded(thread, (token,))
        commands = self.interpreter.advance(thread, lexeme or Lexeme(LexemeKind.TEXT, text))
        if role is Role.CONTENT or is_skeleton:
            self._emit(live, live.stops.feed(text))
        if live.stops.has_matched and not live.stops_alone:
            commands += self.interpreter.stop(thread)
        self._carry_out(commands, t_s)

    def _flush(self, live: LiveThread) -> None:
        left = live.text.close()
        if live.thought is not None:
            _, left = self._think(live, *live.thought.close(left))
        if not live.thread.in_topic:  # the rest of a topic is an incomplete character
            self._emit(live, live.stops.feed(left) + live.stops.flush())

    def _think(self, live: LiveThread, thought: str, answer: str) -> tuple[str, str]:
        if thought:
            self.events.append(events.ThoughtDelta(self.sample, live.thread.id, thought))
        if live.thought is not None and live.thought.is_over:
            live.thought = None
        return thought, answer

    def _emit(self, live: LiveThread, text: str) -> None:
        if text:
            live.thread.content.append(text)
            self.events.append(events.TextDelta(self.sample, live.thread.id, text))

    # Commands of the interpreter

    def _carry_out(self, commands: Sequence[interpreter.Command], t_s: float) -> None:
        for command in commands:
            match command:
                case interpreter.Fork(child):
                    self._fork(child)
                case interpreter.Begin(thread):
                    self._begin(thread, t_s)
                case interpreter.Resume(thread, joined):
                    self.live[thread.id].joined = joined
                    self.contexts.joined(thread, joined)
                    ids = tuple(other.id for other in joined)
                    self.events.append(events.Synced(self.sample, thread.id, ids))
                case interpreter.End(thread, reason):
                    self._end(thread, reason)
                case interpreter.Finish(reason):
                    self._finish(reason, t_s)

    def _fork(self, child: Thread) -> None:
        assert child.parent is not None
        child.topic = bounded_topic(unescape_topic(child.topic or ""))  # ids spell it escaped
        self.recorder.forked(child.parent, child)
        self.live[child.parent.id].promised = child
        self._pace.clock(child)  # it stands where its parent stands now
        self.contexts.fork(child)
        if child.state is ThreadState.DEFERRED:
            self.events.append(events.Deferred(self.sample, child.id, child.parent.id))
        if self._forced is not None:
            child.block_length = len(self._forced.get(child.path, ())) + 2

    def _begin(self, child: Thread, t_s: float) -> None:
        assert child.parent is not None
        start = self._starts.get(child.id)
        prefix = self._given(child, start) if start else (self._tokens.piece_id(ASYNC_OPEN),)
        tag, last_text = (ASYNC_OPEN, "") if start is None else (None, start.text)
        if not prefix:
            if child.is_alive:
                self._carry_out(self.interpreter.end_of_text(child, is_cut=True), t_s)
            return
        live = self._open(child)
        live.prefix, live.next_token = prefix[:-1], prefix[-1]
        for thread in self.interpreter.threads[len(self.trace.threads) : child.id]:
            self.recorder.thread_started(thread)  # deferred threads before it, too: ids are dense
            self.events.append(events.Deferred(self.sample, thread.id, child.parent.id))
        self.recorder.thread_started(child)
        facts = child.id, child.parent.id, child.topic, child.promised_tokens
        self.events.append(events.ThreadStarted(self.sample, *facts))
        self.contexts.decoded(child, prefix)
        for index, token in enumerate(prefix, start=1):
            text = last_text if index == len(prefix) else ""
            self.recorder.decoded(child, token, text, Role.TAG, t_s=t_s, is_forced=True, tag=tag)
        self._emit(live, last_text)

    def _given(self, child: Thread, start: Start) -> Sequence[int]:
        """Return the first tokens of a thread of an expansion; none if a limit keeps it out."""
        assert child.parent is not None
        prompt, prefix, num_seen = self.request.prompt, start.prefix, start.num_seen
        seen = self.contexts.of(child.parent) if num_seen is None else prompt[:num_seen]
        if start.behind is not None:
            texts = (self.trace.tokens_of(other.id) for other in child.after)
            decoded = [[t.token or 0 for t in text if t.role is Role.CONTENT] for text in texts]
            whole = (*prompt, *start.behind(decoded))
            num_seen = self.placer.start_behind(child, whole, child.after)
            seen, prefix = whole[:num_seen], whole[num_seen:]
            is_cut = any(other.finish_reason is FinishReason.LENGTH for other in child.after)
            has_room = self.interpreter.limits.has_room(len(whole))
            if is_cut or not has_room or len(prefix) > start.max_fed:
                return ()
        self.contexts.begin(child, seen, len(prefix))
        return prefix

    def _end(self, thread: Thread, reason: FinishReason) -> None:
        if live := self.live.get(thread.id):
            self._flush(live)
            if thread.is_main or reason is FinishReason.ABORT:
                live.next_token = None
        self.events.append(events.ThreadEnded(self.sample, thread.id, reason))

    def _finish(self, reason: FinishReason, t_s: float) -> None:
        self.live.clear()
        self.trace.num_illegal = self.interpreter.num_illegal
        self.recorder.finished(self.interpreter.threads, reason.value, t_s=t_s)
        document = self.interpreter.document()
        reasoning = self._thought.text or None if self._thought else None
        sizes = [thread.num_tokens for thread in self.trace.threads]  # no ends, no wrong guesses
        logprobs = {key: value for key, value in self.logprobs.items() if key[1] < sizes[key[0]]}
        answer = Answer(document, self.trace, logprobs, reasoning, self.in_form)
        self.events.append(events.Finished(self.sample, answer))

    def abort(self, t_s: float) -> None:
        self._carry_out(self.interpreter.abort(), t_s)

    def drain(self) -> list[StreamEvent]:
        """Return the events since the last call; what is new in the trace comes first."""
        since, self.events = self.events, []
        news = self.recorder.news() if self.request.traces else None
        return since if news is None else [events.Traced(self.sample, news), *since]
