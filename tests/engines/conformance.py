"""Tests that every engine passes: the same document, decoded by each, is the same answer.

To add an engine, write an ``Opener`` for it in ``test_conformance.py``: a function from a document
to a ``Subject`` whose requests make the engine decode just that document (from a script, or as a
forced answer). Add it to ``OPENERS`` there; the functions below then run over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pasta_lm.engines.request import (
    Answer,
    Finished,
    Request,
    SamplingParams,
    StreamEvent,
    Synced,
    TextDelta,
    ThreadEnded,
    ThreadStarted,
)
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.language.document import Document, parse

# In reading order main's threads are cut last, so a stop in one thread cuts those behind it.
THREE = parse(
    'Go. <promise topic="one" tokens="1"/><async>1 1 1 1</async>'
    '<promise topic="two" tokens="1"/><async>2 2 stop 2</async>'
    '<promise topic="three" tokens="1"/><async>3 3 3 3 3 3 3 3</async><sync/> End.'
)
TWO_SYNCS = parse(
    '<promise topic="a" tokens="1"/><async>x y z</async>\n<sync/>B '
    '<promise topic="c" tokens="1"/><async></async>D<sync/>\nE'
)
PENDING = parse('A<promise topic="late" tokens="2"/><async>one two three four</async>')
PLAIN = parse("Nothing is marked.\n")
DOCUMENTS = {"three": THREE, "two syncs": TWO_SYNCS, "pending": PENDING, "plain": PLAIN}


@dataclass(frozen=True)
class Subject:
    engine: Any
    request: Callable[[SamplingParams, bool], Request]
    """From parameters, and whether threads may fork, to the request for the document."""
    assert_empty: Callable[[], None]
    """Asserts that the engine holds no memory, thread or request any more."""

    def answers(self, *, forks: bool = True, **params: object) -> list[Answer]:
        (samples,) = self.engine.generate([self._request(forks, params)])
        self.assert_empty()
        return samples

    def answer(self, *, forks: bool = True, **params: object) -> Answer:
        (answer,) = self.answers(forks=forks, **params)
        return answer

    def stream(self, **params: object) -> Iterator[StreamEvent]:
        return self.engine.stream(self._request(True, params))

    def _request(self, forks: bool, params: dict[str, object]) -> Request:
        return self.request(SamplingParams(**params), forks)  # type: ignore[arg-type]


Opener = Callable[[Document], Subject]
every_document = pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS.keys())


@every_document
def test_the_answer_is_the_document(opened: Opener, document: Document) -> None:
    answer = opened(document).answer()
    assert answer.document == document
    assert (answer.finish_reason, answer.trace.num_illegal) == ("stop", 0)


@every_document
def test_without_forks_one_thread_decodes_the_same_text(opened: Opener, document: Document) -> None:
    answer = opened(document).answer(forks=False)
    assert answer.text == document.plain_text
    assert len(answer.trace.threads) == 1


@every_document
def test_every_block_is_a_thread_that_main_forked(opened: Opener, document: Document) -> None:
    threads = opened(document).answer().trace.threads
    assert [(thread.parent, thread.topic) for thread in threads] == [
        (None, None),
        *((0, block.topic) for block in document.blocks),
    ]
    assert all(thread.finish_reason == "stop" for thread in threads)


@every_document
def test_passes_are_the_critical_path(opened: Opener, document: Document) -> None:
    trace = opened(document).answer().trace
    assert trace.forward_passes == trace.critical_path


@every_document
def test_a_sync_is_fed_behind_all_that_it_joins(opened: Opener, document: Document) -> None:
    trace = opened(document).answer().trace
    assert len(trace.syncs) == document.num_syncs
    for sync in trace.syncs:
        (fed,) = [
            token for token in trace.tokens_of(sync.thread) if token.position == sync.position
        ]
        ends = [trace.tokens_of(thread)[-1].slot for thread in sync.joined]
        assert all(end is not None and end < (fed.slot or 0) for end in ends)


def test_a_sync_joins_each_thread_once(opened: Opener) -> None:
    joined = [event.joined for event in opened(TWO_SYNCS).stream() if isinstance(event, Synced)]
    assert joined == [(1,), (2,)]


@every_document
def test_streamed_text_is_the_text_of_each_thread(opened: Opener, document: Document) -> None:
    texts: dict[int, str] = {}
    live: set[int] = set()
    *events, last = opened(document).stream()
    for event in events:
        match event:
            case ThreadStarted(thread=thread):
                live.add(thread)
                texts[thread] = ""
            case TextDelta(thread=thread, text=text):
                assert thread in live, "text before the start of a thread, or after its end"
                texts[thread] += text
            case ThreadEnded(thread=thread):
                live.remove(thread)
    assert not live
    assert isinstance(last, Finished)
    assert last.answer.document == document
    main = [block.plain_text for block in document.blocks]
    assert [texts[number] for number in sorted(texts)[1:]] == main


def test_a_limit_on_tokens_cuts_the_answer_at_that_token(opened: Opener) -> None:
    whole = opened(THREE).answer().trace.num_tokens
    for max_tokens in range(1, whole + 3):
        trace = opened(THREE).answer(max_tokens=max_tokens).trace
        assert trace.num_tokens == min(max_tokens, whole)
        assert trace.finish_reason == ("length" if max_tokens <= whole else "stop")


def test_a_block_that_reaches_its_own_limit_is_closed(opened: Opener) -> None:
    trace = opened(THREE).answer(max_tokens_per_thread=4).trace
    assert [thread.num_tokens for thread in trace.threads[1:]] == [4, 4, 4]
    assert {thread.finish_reason for thread in trace.threads[1:]} == {FinishReason.LENGTH}
    assert trace.finish_reason == "stop"


@pytest.mark.parametrize("max_threads", [1, 2, 3])
def test_a_limit_on_threads_changes_no_token(opened: Opener, max_threads: int) -> None:
    assert opened(THREE).answer(max_threads=max_threads).document == THREE


def test_a_stop_string_cuts_the_text_behind_it_in_reading_order(opened: Opener) -> None:
    answer = opened(THREE).answer(stop=("stop",))
    assert answer.text == "Go. 1 1 1 12 2 "
    assert answer.finish_reason == "stop"


def test_every_sample_is_an_answer_of_its_own(opened: Opener) -> None:
    answers = opened(THREE).answers(n=3)
    assert [answer.document for answer in answers] == [THREE] * 3


def test_a_stream_that_is_closed_early_leaves_nothing(opened: Opener) -> None:
    subject = opened(THREE)
    num_events = len(list(subject.stream()))
    subject.assert_empty()
    for num_read in range(0, num_events, 3):
        events = subject.stream()
        for _ in range(num_read):
            next(events)
        events.close()  # type: ignore[attr-defined]
        subject.assert_empty()
    assert subject.answer().document == THREE, "the engine still answers"
