"""Replay a written answer through the real interpreter: no model, no clock, the standard library.

The engine of the tests, the documents and ``pasta play``. Threads, placement and trace are those
of every engine; only the choice of tokens is read from a script. Its clock is simulated, so what
it measures in tokens is real and what it measures in seconds means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pasta_lm.engines.performance import Performance
from pasta_lm.engines.request import (
    Answer,
    Capabilities,
    Finished,
    Request,
    SamplingParams,
    StreamEvent,
)
from pasta_lm.engines.script import Script, WordIds, words
from pasta_lm.errors import InputError, RequestError
from pasta_lm.interpreter.entries import Entries
from pasta_lm.language.document import Document

Speeds = Mapping[int, float] | Callable[[int], float]
"""Tokens that a thread, by its id, decodes in a step; 1 for threads that a mapping leaves out."""


class ScriptedEngine:
    """Decode one written answer, whatever is asked."""

    capabilities = Capabilities(exact=True, token_ids=True, logits=False)

    def __init__(
        self, script: Document, *, speeds: Speeds | None = None, step_s: float = 0.02
    ) -> None:
        """Take the answer to decode.

        Args:
            script: The answer; blocks without a length get the one that their words make.
            speeds: How many tokens each thread decodes in a step.
            step_s: Seconds that a step takes on the simulated clock.

        Raises:
            InputError: a block has no topic, so its promise could never be told from text.
        """
        if any(not block.topic.strip() for block in script.blocks):
            raise InputError("a block of the script has no topic")
        self.script = script.with_lengths(_count) if _lacks_lengths(script) else script
        self.step_s = step_s
        self._speed = _speed_of(speeds or {})
        self._ids = WordIds()

    def request(self, prompt: str, params: SamplingParams | None = None) -> Request:
        """Return a request; the prompt's words are counted and change nothing."""
        ids = self._ids.encode(prompt or " ")
        return Request(prompt=ids, params=params or SamplingParams(), strategy="pasta")

    def answer(self, prompt: str = "", params: SamplingParams | None = None) -> Answer:
        """Return the answer to a prompt, with its trace."""
        return self.generate([self.request(prompt, params)])[0][0]

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Decode requests one after the other and return each one's samples, in order."""
        return [self._samples(request) for request in requests]

    def _samples(self, request: Request) -> list[Answer]:
        done = [event for event in self.stream(request) if isinstance(event, Finished)]
        return [event.answer for event in sorted(done, key=lambda event: event.sample)]

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        """Decode one request and yield its events."""
        for events in self.steps(request):
            yield from events

    def steps(self, request: Request) -> Iterator[list[StreamEvent]]:
        """Decode one request and yield the events of each step, the prefill's first.

        Raises:
            RequestError: the request brings an answer of its own, or no prompt.
        """
        if request.forced is not None:
            raise RequestError("a scripted engine decodes its own script, not a forced answer")
        if not request.prompt:
            raise RequestError("the prompt is empty", hint="give at least one token")
        entries = Entries.of_prompt(request.prompt)
        script = self.script if request.forks else self.script.without_tags()
        samples = [
            Performance(request, sample, entries, Script(script.items, self._ids), self._speed)
            for sample in range(request.params.n)
        ]
        step = 0
        while True:
            yield [event for performance in samples for event in performance.drain()]
            if all(performance.is_finished for performance in samples):
                return
            step += 1
            for performance in samples:
                performance.step(step * self.step_s)


def _count(text: str) -> int:
    return len(words(text))


def _lacks_lengths(script: Document) -> bool:
    return any(block.units is None for block in script.blocks)


def _speed_of(speeds: Speeds) -> Callable[[int], float]:
    given = speeds if callable(speeds) else lambda thread: speeds.get(thread, 1.0)

    def speed(thread: int) -> float:
        value = given(thread)
        if not value > 0:
            raise ValueError(f"thread {thread} has speed {value}, but must decode something")
        return value

    return speed
