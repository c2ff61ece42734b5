"""Replay a written answer through the real interpreter: no model, no clock, the standard library.

The engine of the tests, the documents and ``pasta play``. The response, with its threads, slots
and trace, is that of every engine; tokens are the words of a script, and each thread decodes one
in a step. The clock is simulated, so token counts are real and seconds mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from pasta_lm.engines.live_thread import END_OF_TEXT, LiveThread
from pasta_lm.engines.request import Answer, Finished, Request, SamplingParams, StreamEvent
from pasta_lm.engines.response import Response
from pasta_lm.errors import InputError, RequestError
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import PIECES
from pasta_lm.models.encoded import PieceTable, encode_document

STEP_S = 0.02  # seconds of a step on the simulated clock


def words(text: str) -> list[str]:
    """Split text into words, each with the white space before it; joined they are the text."""
    return re.findall(r"\s*\S+|\s+", text)


class WordIds(PieceTable):
    """Words as token ids, numbered as they are met; the tag pieces have the first numbers."""

    def __init__(self) -> None:
        super().__init__({piece: number for number, piece in enumerate(PIECES)})
        self._ids: dict[str, int] = {}
        self._spelling = [*PIECES]

    def encode(self, text: str) -> list[int]:
        for word in words(text):
            if word not in self._ids:
                self._ids[word] = len(self._spelling)
                self._spelling.append(word)
        return [self._ids[word] for word in words(text)]

    def feed(self, token_id: int) -> str:
        return self._spelling[token_id]

    def text_stream(self) -> WordIds:
        return self  # words need no context

    def close(self) -> str:
        return ""  # a word is never incomplete


@dataclass(slots=True)
class _Playback:
    """One sample: a response, and the threads that may still feed a token in this step."""

    response: Response
    due: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.response.take(self.response.live[0], END_OF_TEXT, t_s=0.0)

    def step(self, now_s: float) -> None:
        if self.response.is_finished:
            return
        self.response.begin_pass()
        self.response.passed(now_s)
        self.due = {*self.response.live}
        while fed := list(self._feed_ready()):
            for live in sorted(fed, key=lambda live: live.thread.reading_key):
                if live.decodes:
                    self.response.take(live, END_OF_TEXT, t_s=now_s)

    def _feed_ready(self) -> Iterator[LiveThread]:
        for live in self.response.threads_to_feed():
            # In order: a thread is ready once its parent has fed the promise before it.
            thread, lives = live.thread, self.response.live.values()
            unfed = [other.thread for other in lives if other.next_token is not None]
            has_place = thread.row is not None or thread.fork_point is not None
            joins_unfed = any(joined in unfed for joined in live.joined or ())
            if thread.id in self.due and has_place and not joins_unfed:
                self.response.feed(live)
                self.due.remove(thread.id)
                yield live


class ScriptedEngine:
    """Decode one written answer, or the one that a request brings.

    Blocks without a length get that of their words.
    """

    def __init__(self, script: Document) -> None:
        self.script = _with_lengths(script)
        self.ids = WordIds()

    def request(self, prompt: str, params: SamplingParams | None = None) -> Request:
        """Return a request; the prompt's words are counted and change nothing."""
        ids = self.ids.encode(prompt or " ")
        return Request(prompt=ids, params=params or SamplingParams(), strategy="pasta")

    def replay(self, request: Request, document: Document) -> Request:
        document = _with_lengths(document) if request.forks else document.without_tags()
        encoded = encode_document(document, self.ids, self.ids.encode)
        return replace(request, forced=encoded)

    def answer(self, prompt: str = "", params: SamplingParams | None = None) -> Answer:
        return self.generate([self.request(prompt, params)])[0][0]

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        events = (self.stream(request) for request in requests)
        ends = ([end for end in stream if isinstance(end, Finished)] for stream in events)
        return [[end.answer for end in sorted(done, key=lambda end: end.sample)] for done in ends]

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        for events in self.steps(request):
            yield from events

    def steps(self, request: Request) -> Iterator[list[StreamEvent]]:
        """Decode one request and yield the events of each step, the prefill's first."""
        if not request.prompt:
            raise RequestError("the prompt is empty", hint="give at least one token")
        entries = Entries.of_prompt(request.prompt)
        samples = [
            _Playback(self._response(request, sample, entries))
            for sample in range(request.params.n)
        ]
        for step in count(1):
            yield [event for playback in samples for event in playback.response.drain()]
            if all(playback.response.is_finished for playback in samples):
                return
            for playback in samples:
                playback.step(step * STEP_S)

    def _response(self, request: Request, sample: int, entries: Entries) -> Response:
        if request.forced is None:
            request = self.replay(request, self.script)
        request = replace(request, form=Form.MAIN, expansion=None, guesser=None)
        trace = request.new_trace(Kind.SIMULATED, engine="scripted", model="script")
        limits = replace(request.params.limits(), max_depth=max(1, _depth(self.script.items)))
        return Response(request, sample, entries, self.ids, limits=limits, trace=trace)


def _with_lengths(script: Document) -> Document:
    if any(not block.topic.strip() for block in script.blocks):
        raise InputError("a block of the script has no topic")
    if all(block.units is not None for block in script.blocks):
        return script
    return script.with_lengths(lambda text: len(words(text)))


def _depth(items: Sequence[Item]) -> int:
    return max((1 + _depth(item.items) for item in items if isinstance(item, Block)), default=0)
