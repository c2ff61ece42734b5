"""Guessed tokens of a response's threads: proposed, fed in one pass, checked, kept or removed.

A guess is right if the thread then decodes that token, so guesses change the number of passes and
no token. A ``Guesser`` makes them: ``prompt_lookup``.

Source: Leviathan et al. 2023 (speculative decoding), arXiv 2211.17192; Saxena 2023 (prompt lookup).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile

from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.request import Guesser, Request
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.placement import Placer
from pasta_lm.interpreter.thread import Placement, Thread, ThreadState

MAX_GUESSES = 4  # fastest of 2, 4, 6, 8, 12 on development prompts
TOKENS_OF_PROMISE = 3  # the shortest: opening, topic, closing


def prompt_lookup(context: Sequence[int]) -> Sequence[int]:
    """Return the tokens that followed an earlier occurrence of the last few tokens."""
    for size in range(min(3, len(context) - 1), 0, -1):  # long matches are better
        ending = list(context[-size:])
        for end in range(len(context) - 1, size - 1, -1):  # a token follows each match
            # The last token is compared first: this runs in every pass, and slices cost time.
            if context[end - 1] == ending[-1] and list(context[end - size : end]) == ending:
                return context[end : end + MAX_GUESSES]
    return ()


class Contexts:
    """The token ids that each thread sees; kept if guesses or a repetition penalty read them."""

    def __init__(self, request: Request, is_tag: Callable[[int], bool]) -> None:
        self._params, self._is_tag = request.params, is_tag
        self._is_read = request.guesser is not None or request.params.penalises
        self._ids: dict[int, list[int]] = {0: [*request.prompt] if self._is_read else []}
        first = len(self._ids[0])
        self._starts = {0: (first, first)}  # the ids that a thread began with; those not decoded

    def of(self, thread: Thread) -> Sequence[int]:
        return self._ids[thread.id]

    def penalised_ids(self, live: LiveThread, ahead: int = 0) -> set[int]:
        """Return the ids that a thread sees, tag pieces apart; ``ahead`` guesses later."""
        ids = {*self.of(live.thread), *live.guesses[:ahead]}
        return {token for token in ids if not self._is_tag(token)}

    def added_to_logits(self, live: LiveThread, ahead: int = 0) -> Mapping[int, float]:
        """Return the biases of a thread's next token by id; ``ahead`` guesses later."""
        params, thread = self._params, live.thread.id
        if not (params.presence_penalty or params.frequency_penalty):
            return params.logit_bias
        answer = self._ids[thread][self._starts[thread][1] :]  # neither the prompt nor given
        added = dict(params.logit_bias)
        for token, count in Counter([*answer, *live.guesses[:ahead]]).items():
            if not self._is_tag(token):
                penalty = params.presence_penalty + count * params.frequency_penalty
                added[token] = added.get(token, 0.0) - penalty
        return added

    def fork(self, child: Thread) -> None:
        assert child.parent is not None
        if self._is_read:
            self._ids[child.id] = [*self.of(child.parent)]
            self._starts[child.id] = len(self._ids[child.id]), self._starts[child.parent.id][1]

    def begin(self, child: Thread, seen: Sequence[int], num_prefix: int) -> None:
        """Let a thread of an expansion see all that precedes it, none of which is of the answer."""
        if self._is_read:
            self._ids[child.id] = [*seen]
            self._starts[child.id] = len(seen), len(seen) + num_prefix

    def decoded(self, thread: Thread, tokens: Iterable[int]) -> None:
        if self._is_read:
            self._ids[thread.id].extend(tokens)

    def joined(self, thread: Thread, others: Iterable[Thread]) -> None:
        for other in others if self._is_read else ():
            self._ids[thread.id] += self._ids[other.id][self._starts[other.id][0] :]


class Pace:
    """Lets threads run ahead of each other without changing what any of them writes.

    Each has a *clock*: the pass that would have fed its last token if all had been fed in every
    pass. The limit on all tokens depends on that order, so a thread runs ahead as far as that limit
    is surely not reached there; near it all go in step, and always if a stop can abort threads.
    """

    def __init__(self, interpreter: Interpreter, *, is_uncut: bool, can_stop: bool) -> None:
        """Begin before the first token; ``is_uncut``: its tokens are known to stay in the limit."""
        self._interpreter = interpreter
        self._is_uncut, self._can_stop = is_uncut, can_stop
        self._clocks: dict[int, int] = {0: 0}

    @property
    def can_vary(self) -> bool:
        """Return whether threads may leave the common step: nothing else may depend on it."""
        limits = self._interpreter.limits
        is_bounded = limits.max_threads is not None and limits.max_threads <= limits.max_blocks
        return limits.max_depth <= 1 and not is_bounded and not self._can_stop

    def clock(self, thread: Thread) -> int:
        if thread.id not in self._clocks:  # ``<async>`` is fed with its promise's end
            assert thread.parent is not None
            self._clocks[thread.id] = self.clock(thread.parent)
        return self._clocks[thread.id]

    def fed(self, thread: Thread) -> None:
        self._clocks[thread.id] = self.clock(thread) + 1

    def synced(self, thread: Thread, joined: Iterable[Thread]) -> None:
        self._clocks[thread.id] = max([self.clock(thread) + 1, *map(self.clock, joined)])

    def can_feed(self, thread: Thread, num_guesses: int = 0) -> bool:
        """Return whether a thread may feed its next token, and guesses behind it, out of step."""
        clock, limits = self.clock(thread) + 1 + num_guesses, self._interpreter.limits
        return self._is_uncut or self._max_tokens_after(clock) < limits.max_tokens

    def going(self, threads: Sequence[Thread], width: int | None) -> list[Thread]:
        """Return the threads that go next, ``width`` at most; near the limit those of one step."""
        if not all(map(self.can_feed, threads)):
            first = min(map(self.clock, threads))
            return [thread for thread in threads if self.clock(thread) == first]
        # Main goes first, because it forks what can be decoded side by side; a thread begins
        # behind its promise's end. Then blocks in reading order.
        return sorted(threads, key=lambda thread: (not thread.is_main, thread.reading_key))[:width]

    def _max_tokens_after(self, clock: int) -> int:
        bound = self._interpreter.num_tokens
        for thread in self._interpreter.threads:
            if thread.state is not ThreadState.ENDED:
                left = max(0, clock - self.clock(thread))
                bound += left + (self._max_forked_tokens(thread, left) if thread.is_main else 0)
        return bound

    def _max_forked_tokens(self, main: Thread, left: int) -> int:
        limits, num_blocks = self._interpreter.limits, len(self._interpreter.threads) - 1
        first = 0 if main.in_topic else TOKENS_OF_PROMISE - 1
        sizes = range(left - first, 0, -TOKENS_OF_PROMISE)
        return sum(sizes[: max(0, limits.max_blocks - num_blocks)])


class Guesses:
    """Guessed tokens of a response's threads, fed and checked in one pass."""

    def __init__(
        self, guesser: Guesser | None, placer: Placer, pace: Pace, contexts: Contexts,
        is_text: Callable[[int], bool],
    ) -> None:  # fmt: skip
        """Begin; without a guesser nothing is guessed. ``is_text``: no tag and no end of text."""
        self._guesser, self._placer, self._pace = guesser, placer, pace
        self._contexts, self._is_text = contexts, is_text
        self._guessing: list[LiveThread] = []

    def propose(self, feeding: Sequence[LiveThread], limits: Limits, room: int) -> None:
        """Guess the next tokens of threads, ``room`` at most; none in a pass with a sync."""
        # Tags are not guessed, nor tokens of topics: what is legal there depends on every token.
        self.settle()  # a pass that was not run after all
        if self._guesser is None or any(live.joined is not None for live in feeding):
            return
        for live in feeding:
            thread = live.thread
            if not live.decodes or thread.in_topic or live.promised is not None:
                continue
            guesses = takewhile(self._is_text, self._guesser(self._contexts.of(thread)))
            live.guesses = tuple(guesses)[:room]
            if limits.max_position is not None:
                live.guesses = live.guesses[: max(0, limits.max_position - _first_position(thread))]
            while live.guesses and not self._pace.can_feed(thread, len(live.guesses)):
                live.guesses = live.guesses[:-1]
            room -= len(live.guesses)
            if live.guesses:
                self._guessing.append(live)

    def feed(self) -> None:
        for live in self._guessing:
            live.placements = self._placer.guess(live.thread, live.guesses)

    def confirm(self, live: LiveThread, number: int) -> bool:
        """Return whether the token just decoded is a thread's n-th guess, those before it right."""
        if live.num_right != number - 1 or live.next_token != live.guesses[number - 1]:
            return False
        live.next_token, live.num_right = None, number
        live.thread.position += 1
        self._pace.fed(live.thread)
        return True

    def settle(self) -> list[tuple[Thread, Placement]]:
        """Return the threads and placements of the right guesses of the pass; forget all."""
        right = list[tuple[Thread, Placement]]()
        for live in self._guessing:
            right += [(live.thread, placement) for placement in live.placements[: live.num_right]]
            live.guesses, live.placements, live.num_right = (), (), 0
        self._guessing = []
        return right


def _first_position(thread: Thread) -> int:
    if thread.row is not None:
        return thread.position
    if thread.fork_point is not None:
        return thread.fork_point.position + 1
    assert thread.parent is not None
    return thread.parent.position + 1  # its promise's end is fed in the coming pass
