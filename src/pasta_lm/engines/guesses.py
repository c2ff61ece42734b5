"""Guessed tokens of the threads of a response: proposed, fed in one pass, checked, kept or removed.

A guess is right if the thread then decodes that token, so guesses change the number of passes and
no token. They stand behind all other entries of their pass; wrong ones are removed, and the others
move up. A ``Guesser`` makes them: ``PromptLookup`` here, a draft model in ``local/drafting.py``.

Source: Leviathan et al. 2023 (speculative decoding), arXiv 2211.17192; Saxena 2023 (prompt lookup).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pasta_lm.engines.contexts import Contexts
from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.pace import Pace
from pasta_lm.engines.request import Guesser
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.placement import Placement, Placer
from pasta_lm.interpreter.thread import Thread

NUM_GUESSES = 4  # fastest of 2, 4, 6, 8, 12 on development prompts


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Guesses the tokens that followed an earlier occurrence of the last few tokens."""

    max_guesses: int = NUM_GUESSES
    max_match: int = 3  # tokens that are looked up at first; then one fewer, down to one

    def check(self, num_tokens: int, name: str) -> None:
        """Accept any model: guesses are tokens of the context."""

    def guess(self, context: Sequence[int]) -> Sequence[int]:
        """Return the tokens that followed the newest earlier match of the last tokens."""
        for size in range(min(self.max_match, len(context) - 1), 0, -1):  # long matches are better
            ending = list(context[-size:])
            for end in range(len(context) - 1, size - 1, -1):  # a token follows each match
                # The last token is compared first: this runs in every pass, and slices cost time.
                if context[end - 1] == ending[-1] and list(context[end - size : end]) == ending:
                    return context[end : end + self.max_guesses]
        return ()


@dataclass(slots=True)
class Proposal:
    """The guesses of one thread in one pass."""

    live: LiveThread
    placements: list[Placement]
    num_right: int = 0


class Guesses:
    """Guessed tokens of a response's threads, fed and checked in one pass."""

    def __init__(
        self,
        guesser: Guesser | None,
        placer: Placer,
        pace: Pace,
        contexts: Contexts,
        is_text: Callable[[int], bool],
    ) -> None:
        self._guesser, self._placer, self._pace = guesser, placer, pace
        self._contexts, self._is_text = contexts, is_text
        self._guessing: dict[int, LiveThread] = {}
        self._proposals: dict[int, Proposal] = {}

    @property
    def are_made(self) -> bool:
        """Return whether tokens are guessed at all."""
        return self._guesser is not None

    def propose(self, feeding: Sequence[LiveThread], limits: Limits, room: int) -> None:
        """Guess the next tokens of threads, ``room`` at most; none in a pass with a sync.

        Tags are not guessed, nor tokens of topics: what is legal there depends on every token.
        """
        self.settle()  # a pass that was not run after all
        if self._guesser is None or any(live.joined is not None for live in feeding):
            return
        for live in feeding:
            thread = live.thread
            if not live.decodes or thread.in_topic or live.promised is not None:
                continue
            guesses = takewhile(self._is_text, self._guesser.guess(self._contexts.of(thread)))
            live.guesses = tuple(guesses)[:room]
            num_kept = len(live.guesses)
            if limits.max_position is not None:
                num_kept = min(num_kept, limits.max_position - self._first_position(thread))
            live.guesses = live.guesses[: max(0, self._pace.room(thread, max(0, num_kept)))]
            room -= len(live.guesses)
            if live.guesses:
                self._guessing[thread.id] = live

    @staticmethod
    def _first_position(thread: Thread) -> int:
        if thread.row is not None:
            return thread.position
        if thread.fork_point is not None:
            return thread.fork_point.position + 1
        assert thread.parent is not None
        return thread.parent.position + 1  # its promise's end is fed in the coming pass

    def feed(self) -> None:
        """Place the guesses of the threads that were just fed, behind all that is no guess."""
        for number, live in self._guessing.items():
            placements = self._placer.guess(live.thread, live.guesses)
            self._proposals[number] = Proposal(live, placements)

    def slots(self, live: LiveThread) -> list[int]:
        """Return the slots of a thread's guesses."""
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
        """Return the threads and placements of the right guesses of the pass; forget all."""
        right = [
            (proposal.live.thread, placement)
            for proposal in self._proposals.values()
            for placement in proposal.placements[: proposal.num_right]
        ]
        for live in self._guessing.values():
            live.guesses = ()
        self._guessing, self._proposals = {}, {}
        return right
