"""The tokens that each thread of a response sees, in the order in which it came to see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pasta_lm.interpreter.thread import Thread


class Contexts:
    """Token ids by thread: what it sees of the prompt and its parent, its own, what it joins.

    Guesses and the repetition penalty read them; without either nothing is noted.
    """

    def __init__(self, prompt: Sequence[int], *, is_read: bool) -> None:
        self.is_read = is_read
        self._ids: dict[int, list[int]] = {0: [*prompt] if is_read else []}
        self._num_inherited: dict[int, int] = {0: len(self._ids[0])}

    def of(self, thread: Thread) -> Sequence[int]:
        """Return the ids that a thread sees."""
        return self._ids[thread.id]

    def fork(self, child: Thread, inherited: Sequence[int] | None = None) -> None:
        """Let a thread see what its parent sees now, or these ids instead."""
        if not self.is_read:
            return
        assert child.parent is not None
        self._ids[child.id] = [*(self.of(child.parent) if inherited is None else inherited)]
        self._num_inherited[child.id] = len(self._ids[child.id])

    def decoded(self, thread: Thread, tokens: Iterable[int]) -> None:
        """Note tokens that a thread decoded, or that its prefix feeds."""
        if self.is_read:
            self._ids[thread.id].extend(tokens)

    def joined(self, thread: Thread, others: Iterable[Thread]) -> None:
        """Let a thread see what others decoded."""
        for other in others if self.is_read else ():
            own = self._ids[other.id][self._num_inherited[other.id] :]
            self._ids[thread.id] += own
