"""The scripted engine: real interpreter, placement and trace, words instead of a model."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError, RequestError
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.view.scripted import ScriptedEngine, words

# The worked example of the semantics: eleven passes after the prefill.
GOLDEN = parse(
    'A<promise topic="x" tokens="1"/><async>a b c</async>B'
    '<promise topic="y" tokens="1"/><async>d</async><sync/>C'
)

TEXTS = st.text(alphabet="ab \n", min_size=1, max_size=12).map(Text)
BLOCKS = st.builds(
    Block, st.sampled_from(["x", "two words"]), st.integers(1, 64),
    st.lists(TEXTS, max_size=2).map(tuple),
)  # fmt: skip
DOCUMENTS = st.lists(TEXTS | BLOCKS | st.just(Sync()), max_size=7).map(
    lambda items: Document(tuple(items))
)


@given(DOCUMENTS)
def test_an_answer_is_its_script(document: Document) -> None:
    # A sync that waits for nothing is no part of what a model could have decoded, but is harmless.
    answer = ScriptedEngine(document).answer()
    assert answer.document == document
    trace = answer.trace
    assert (answer.finish_reason, trace.num_illegal) == ("stop", 0)
    for sync in trace.syncs:
        (fed,) = [t.slot for t in trace.tokens_of(sync.thread) if t.position == sync.position]
        ends = [trace.tokens_of(thread)[-1].slot for thread in sync.joined]
        assert all(end is not None and end < (fed or 0) for end in ends), "it joins what was fed"


def test_blocks_within_blocks_are_played() -> None:
    inner = Block("inner", 1, (Text("deep"),))
    nested = Document((Text("a"), Block("outer", 2, (Text("b"), inner, Text("c")))))
    answer = ScriptedEngine(nested).answer()
    assert answer.document == nested
    assert [lane.parent for lane in answer.trace.threads] == [None, 0, 1]


def test_lengths_that_nobody_knows_are_counted_in_words() -> None:
    document = parse('<async topic="x">one two three four</async>', "annotator")
    (block,) = ScriptedEngine(document).script.blocks
    assert block.units == 1


@pytest.mark.parametrize("text", ["", " ", "a", " a  b\n\nc ", "<sync/> is a word here"])
def test_words_join_to_the_text(text: str) -> None:
    assert "".join(words(text)) == text


@given(DOCUMENTS)
def test_a_request_may_bring_an_answer_of_its_own(document: Document) -> None:
    engine = ScriptedEngine(GOLDEN)
    request = engine.request("a prompt", SamplingParams(max_tokens=10_000))
    (answer,) = engine.generate([engine.replay(request, document)])[0]
    assert answer.trace.threads == ScriptedEngine(document).answer("a prompt").trace.threads
    assert answer.program == document.program
    sequential = engine.replay(replace(request, forks=False), document)
    assert engine.generate([sequential])[0][0].program == document.without_tags().program


def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(InputError, match="no topic"):
        ScriptedEngine(Document((Block(" ", 1),)))
    engine = ScriptedEngine(GOLDEN)
    with pytest.raises(RequestError, match="empty"):
        engine.generate([replace(engine.request("p"), prompt=())])


def test_it_needs_the_standard_library_alone() -> None:
    heavy = {"torch", "transformers", "tokenizers", "typer", "rich"}
    modules = "pasta_lm.view.scripted, pasta_lm.strategies.model"
    code = f"import {modules}, sys; sys.exit(' '.join({heavy!r} & {{*sys.modules}}) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
