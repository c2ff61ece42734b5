"""The picture of a trace in a notebook: static, escaped, and of the trace's own figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import pasta_lm.view.notebook  # noqa: F401  # draws answers and traces
from pasta_lm.engines.request import Answer, SamplingParams
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language import Document, parse
from pasta_lm.language.document import Block
from pasta_lm.language.events import Sync, Text
from pasta_lm.view.layout import layout
from pasta_lm.view.scripted import ScriptedEngine

ALLOWED = {"div", "span", "svg", "g", "title", "text", "rect", "line"}
ATTRIBUTES = {"style", "title", "xmlns", "viewbox", "width", "height", "role", "aria-label"}
ATTRIBUTES |= {"font-size", "x", "y", "x1", "y1", "x2", "y2", "fill", "opacity", "stroke"}
ATTRIBUTES |= {"stroke-width", "stroke-dasharray", "text-anchor"}
ANSWER = 'Two. <async topic="one">First part.</async><async topic="two">Second.</async><sync/>End.'


def answered(text: str = ANSWER, params: SamplingParams | None = None) -> Answer:
    return ScriptedEngine(parse(text, "annotator")).answer("one?", params)


class Reader(HTMLParser):
    """Reads HTML into its text and its elements, and holds that these are balanced and harmless."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.spans: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED
        assert {name for name, _ in attrs} <= ATTRIBUTES
        self.open.append(tag)
        if tag == "span":
            self.spans.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if "span" in self.open:
            self.spans[-1] += data


def test_an_answer_shows_its_figures_and_its_text_with_blocks_coloured() -> None:
    answer = answered()
    html = answer._repr_html_()
    reader = Reader(html)
    assert reader.spans == ["Two. ", "First part.", "Second.", "End."]
    path = f"critical path {answer.trace.critical_path} of {answer.trace.num_tokens} tokens"
    assert path in html
    assert len(re.findall('title="thread [12]"', html)) == 2
    assert {"1 one", "2 two", "main"} <= {*reader.texts}


def test_a_trace_shows_the_text_of_each_thread() -> None:
    trace = answered().trace
    assert Reader(trace._repr_html_()).spans == ["Two. End.", "First part.", "Second."]
    assert Trace.from_json(trace.to_json())._repr_html_() == trace._repr_html_()


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "' onmouseover='alert(1)",
        "</span></div><style>*{display:none}</style>",
        "</title></svg><iframe src=//evil>",
        "&lt;script&gt; &#60;b&#62;",
        "\u202eright to left",
    ],
)
def test_text_of_a_model_is_never_read_as_html(hostile: str) -> None:
    document = Document((Text(hostile), Block("t", 10, (Text(f" {hostile}"),)), Sync()))
    answer = ScriptedEngine(document).answer("one?")
    for thread in answer.trace.threads[1:]:
        thread.topic = hostile
    answer.trace.model = answer.trace.strategy = hostile
    for html in (answer._repr_html_(), answer.trace._repr_html_()):
        reader = Reader(html)
        assert reader.spans == [hostile, f" {hostile}"]
        assert "<script" not in html


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Only main.",
        ANSWER,
        '<async topic="a">x</async>',
        '<async topic="a">x y z</async>m<sync/>n<async topic="b">o p q r</async>',
    ],
)
def test_the_marked_path_has_as_many_tokens_as_the_critical_path(text: str) -> None:
    trace = answered(text).trace
    spans = layout(trace).critical
    steps = [step for span in spans for step in range(span.first, span.stop)]
    assert steps == sorted(steps)
    assert len(set(steps)) == trace.critical_path
    Reader(trace._repr_html_())


@pytest.mark.parametrize("num_tokens", range(1, 25))
def test_an_answer_that_a_limit_cut_and_an_empty_trace_are_shown_too(num_tokens: int) -> None:
    answer = answered(params=SamplingParams(max_tokens=num_tokens))
    Reader(answer._repr_html_())
    Reader(answer.trace._repr_html_())
    Reader(Trace(kind=answer.trace.kind)._repr_html_())
