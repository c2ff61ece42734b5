"""Guessed tokens of the threads of a response: proposed, fed in one pass, checked, kept or removed.

A guess is right if the thread then decodes that token, so guesses change the number of passes and
no token. They stand behind all other entries of their pass; those that are wrong are removed, and
the others move up.

Source: Leviathan et al. 2023 (speculative decoding), arXiv 2211.17192.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.pace import Pace
from pasta_lm.engines.request import Guess
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.placement import Placement, Placer
from pasta_lm.interpreter.thread import Thread

IsText = Callable[[int], bool]
"""Whether a token id is no tag and no end of text."""


@dataclass(slots=True)
class Proposal:
    """The guesses of one thread in one pass."""

    live: LiveThread
    placements: list[Placement]
    num_right: int = 0


class Guesses:
    """Guessed tokens of a response's threads, fed and checked in one pass."""

    def __init__(self, guess: Guess | None, placer: Placer, pace: Pace, is_text: IsText) -> None:
        """Begin behind the prompt; None of ``guess``: nothing is guessed, and nothing noted."""
        self._guess, self._placer, self._pace, self._is_text = guess, placer, pace, is_text
        prompt = [] if guess is None else [entry.token for entry in placer.entries.items]
        self._contexts = {0: prompt}
        """What each thread can see, by its id: what it sees of its parent, then its own tokens."""
        self._num_inherited = {0: len(prompt)}
        self._guessing: dict[int, LiveThread] = {}
        self._proposals: dict[int, Proposal] = {}

    @property
    def are_made(self) -> bool:
        """Return whether tokens are guessed at all."""
        return self._guess is not None

    def decoded(self, thread: Thread, token: int) -> None:
        """Note a token that a thread decoded, its prefix included."""
        if self._guess is None:
            return
        if thread.id not in self._contexts:
            assert thread.parent is not None
            self._contexts[thread.id] = [*self._contexts[thread.parent.id]]
            self._num_inherited[thread.id] = len(self._contexts[thread.id])
        self._contexts[thread.id].append(token)

    def joined(self, thread: Thread, others: Sequence[Thread]) -> None:
        """Note that a thread sees from now on what others decoded."""
        for other in others if self.are_made else ():
            own = self._contexts[other.id][self._num_inherited[other.id] :]
            self._contexts[thread.id] += own

    def propose(self, feeding: Sequence[LiveThread], limits: Limits, room: int) -> None:
        """Guess what threads decode next, ``room`` tokens at most; nothing in a pass with a sync.

        Tags are not guessed, nor tokens of topics: what is legal there depends on every token.
        """
        self.settle()  # a pass that was not run after all
        if self._guess is None or any(live.joined is not None for live in feeding):
            return
        for live in feeding:
            thread = live.thread
            if not live.decodes or thread.in_topic or live.promised is not None:
                continue
            guesses = tuple(takewhile(self._is_text, self._guess(self._contexts[thread.id])))
            most = min(len(guesses), room)
            if limits.max_position is not None:
                start = thread.position if thread.row is not None else self._start(thread)
                most = min(most, limits.max_position - start)
            live.guesses = guesses[: max(0, self._pace.room(thread, max(0, most)))]
            room -= len(live.guesses)
            if live.guesses:
                self._guessing[thread.id] = live

    @staticmethod
    def _start(thread: Thread) -> int:
        """Return where a thread that has fed nothing will stand."""
        point = thread.fork_point
        if point is not None:
            return point.position + 1
        assert thread.parent is not None
        return thread.parent.position + 1  # its promise's end is fed in the coming pass

    def feed(self) -> None:
        """Place the guesses of the threads that were just fed, behind all that is no guess."""
        for number, live in self._guessing.items():
            placements = self._placer.guess(live.thread, live.guesses)
            self._proposals[number] = Proposal(live, placements)

    def slots(self, live: LiveThread) -> list[int]:
        """Return where the guesses of a thread stand."""
        proposal = self._proposals.get(live.thread.id)
        return [] if proposal is None else [place.slot for place in proposal.placements]

    def confirm(self, live: LiveThread, number: int) -> bool:
        """Return whether the token just decoded is a guess of a thread, which was fed already.

        It is compared with one guess, counted from 1; all guesses before that one must be right.
        """
        proposal = self._proposals[live.thread.id]
        if proposal.num_right != number - 1 or live.next_token != live.guesses[number - 1]:
            return False
        live.next_token = None
        proposal.num_right = number
        live.thread.position += 1
        self._pace.fed(live.thread)
        return True

    def settle(self) -> list[tuple[Thread, Placement]]:
        """Return where the right guesses of the pass were fed, each with its thread; forget all."""
        right = [
            (one.live.thread, placement)
            for one in self._proposals.values()
            for placement in one.placements[: one.num_right]
        ]
        for live in self._guessing.values():
            live.guesses = ()
        self._guessing, self._proposals = {}, {}
        return right
