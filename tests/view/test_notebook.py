"""An answer in a notebook: the page in a frame, whose text cannot leave it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from pasta_lm.engines.request import SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language import Document
from pasta_lm.language.document import Block
from pasta_lm.language.events import Sync, Text
from pasta_lm.view.page import page_of
from pasta_lm.view.run_data import run_data

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</iframe><b>", "&quot;"]


class Reader(HTMLParser):
    """Reads the elements of HTML, which must be one frame."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.frames: list[dict[str, str | None]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "iframe"
        self.frames.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        raise AssertionError(f"text outside the frame: {data!r}")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_an_answer_and_its_trace_are_the_page_of_the_run_in_a_frame(hostile: str) -> None:
    document = Document((Text(hostile), Block("t", 10, (Text(f" {hostile}"),)), Sync()))
    answer = ScriptedEngine(document).answer("one?")
    html = answer._repr_html_()
    assert html is not None
    (frame,) = Reader(html).frames
    assert frame["srcdoc"] == page_of([run_data(answer.trace)])
    assert frame["sandbox"] == "allow-scripts"
    assert answer.trace._repr_html_() == html


@pytest.mark.parametrize("num_tokens", [1, 5, 24])
def test_an_answer_that_a_limit_cut_and_an_empty_trace_are_shown_too(num_tokens: int) -> None:
    document = Document((Text("Two. "), Block("a", 10, (Text("First part."),)), Sync()))
    cut = ScriptedEngine(document).answer("one?", SamplingParams(max_tokens=num_tokens)).trace
    for trace in (cut, Trace(kind=cut.kind)):
        assert len(Reader(str(trace._repr_html_())).frames) == 1
