"""Two extensions of a response: guessed tokens, and threads that begin when main has ended.

A response calls them where a request asks for them; without them it decodes plain threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.request import Expansion, Guess, Start
from pasta_lm.interpreter.commands import Command
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.placement import Placement, Placer
from pasta_lm.interpreter.thread import Thread


@dataclass(slots=True)
class Guesses:
    """Guessed tokens of a response's only thread, fed and checked in one pass."""

    guess: Guess
    placer: Placer
    unchecked: list[Placement] = field(default_factory=list)

    def propose(self, live: LiveThread, interpreter: Interpreter) -> None:
        """Guess the tokens behind the thread's next one, as far as it may still decode."""
        assert live.next_token is not None
        thread, limits = live.thread, interpreter.limits
        ids = [entry.token for entry in self.placer.entries.items]
        room = limits.max_tokens - thread.num_tokens
        if limits.max_position is not None:
            room = min(room, limits.max_position - thread.position)
        live.guesses = tuple(self.guess([*ids, live.next_token]))[: max(0, room)]

    def feed(self, live: LiveThread) -> None:
        """Place the guesses behind the token that was just placed."""
        feed, thread = self.placer.feed, live.thread
        self.unchecked = [feed(thread, token, is_same_pass=True) for token in live.guesses]

    def confirm(self, live: LiveThread, number: int) -> Placement | None:
        """Return where the decoded token was fed already, or None if it was not guessed.

        Args:
            live: The thread that decoded it, as its ``next_token``.
            number: The guess that it is compared with, from 1; all before it must be right.
        """
        num_right = len(live.guesses) - len(self.unchecked)
        if num_right != number - 1 or live.next_token != live.guesses[number - 1]:
            return None
        live.next_token = None
        return self.unchecked.pop(0)

    def take_back(self, live: LiveThread) -> int:
        """Remove the entries of wrong guesses and return their number."""
        num_wrong = len(self.unchecked)
        self.placer.take_back(live.thread, num_wrong)
        live.guesses, self.unchecked = (), []
        return num_wrong


class Expander:
    """Starts the threads that write the answer when main has ended (Skeleton-of-Thought)."""

    def __init__(self, expansion: Expansion, interpreter: Interpreter, placer: Placer) -> None:
        """Begin with no threads but main."""
        self._expansion = expansion
        self._interpreter = interpreter
        self._placer = placer
        self._starts: dict[int, Start] = {}

    def is_too_long(self, thread: Thread) -> bool:
        """Return whether main has all the tokens that it may have before it ends."""
        return thread.is_main and thread.num_tokens >= self._expansion.max_main_tokens

    def expand(self, main: Thread) -> list[Command]:
        """End main; without a thread to start, the answer is main's after all."""
        text = "".join(part for part in main.content if isinstance(part, str))
        starts = self._expansion.starts(text)
        if not starts:
            return self._interpreter.end_of_text(main)
        kept = [start for start in starts if self._has_room(main, start)]
        kept = kept[: self._interpreter.limits.max_blocks]
        commands = self._interpreter.expand(
            [(start.topic, len(start.prefix)) for start in kept], is_cut=len(kept) < len(starts)
        )
        for child, start in zip(main.children, kept, strict=True):
            self._placer.start(child, start.num_seen)
            self._starts[child.id] = start
        return commands

    def start_of(self, child: Thread) -> Start:
        """Return how a thread begins."""
        return self._starts[child.id]

    def _has_room(self, main: Thread, start: Start) -> bool:
        """Return whether the prefix of a thread, and a token of its own, have positions."""
        last = self._interpreter.limits.max_position
        first = main.position if start.num_seen is None else start.num_seen
        return last is None or first + len(start.prefix) < last - 1  # where threads must end
