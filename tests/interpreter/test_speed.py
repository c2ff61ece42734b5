"""The metrics of speed; those read from a document equal those of its trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.engines.request import SamplingParams
from pasta_lm.interpreter.speed import (
    efficiency,
    parallelism,
    realised_speedup,
    speedup_over_text,
    theoretical_speedup,
)
from pasta_lm.interpreter.trace import Role
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.learn.annotate.filters import count_words, critical_path, speedup
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.view.scripted import ScriptedEngine

TEXTS = st.integers(1, 6).map(lambda number: Text(" word" * number))
BLOCKS = st.builds(lambda text: Block("a topic", 1, (text,)), TEXTS)
ITEMS = st.lists(st.one_of(TEXTS, BLOCKS, st.just(Sync())), min_size=1, max_size=6)


@given(ITEMS)
def test_the_critical_path_is_that_of_the_trace(items: list[Text | Block | Sync]) -> None:
    joined = False
    legal: list[Text | Block | Sync] = [Text("x")]
    for item in items:  # a sync for nothing is never fed
        if not isinstance(item, Sync) or joined:
            legal.append(item)
            joined = not isinstance(item, Sync) and (joined or isinstance(item, Block))
    document = Document(tuple(legal))
    together = ScriptedEngine(document).answer("p").trace
    alone = ScriptedEngine(document.without_tags()).answer("p").trace
    assert critical_path(document) == together.critical_path
    found = theoretical_speedup(alone.critical_path, together.critical_path)
    assert speedup(document) == pytest.approx(found)


@given(st.integers(0, 9), st.integers(1, 10), st.sampled_from([(), ("3",), ("none",)]))
def test_one_thread_has_a_speedup_of_exactly_one(
    num_words: int, max_tokens: int, stop: tuple[str, ...]
) -> None:
    text = " ".join(map(str, range(num_words)))
    params = SamplingParams(max_tokens=max_tokens, stop=stop)
    answer = ScriptedEngine(parse(text)).answer("p", params)
    assert answer.trace.parallelism == AnswerRecord.of(answer).parallelism == 1.0
    assert answer.trace.speedup_over_text(count_words(answer.text)) == 1.0


@given(st.integers(1, 30))
def test_the_last_token_of_a_cut_thread_counts_on_neither_side(max_tokens: int) -> None:
    document = Document((Text("a b"), Block("t", 1, (Text(" c d e f"),)), Text(" g h i j")))
    trace = ScriptedEngine(document).answer("p", SamplingParams(max_tokens=max_tokens)).trace
    fed = [one for one in trace.tokens if one.role is Role.CONTENT and one.slot is not None]
    if len(trace.threads) > 1:
        assert trace.parallelism == len(fed) / trace.critical_path
    else:
        assert trace.parallelism == 1.0


def test_the_metrics_are_the_ratios_that_the_paper_defines() -> None:
    assert parallelism(30, 10) == 3.0
    assert theoretical_speedup(40, 10) == 4.0
    assert realised_speedup(6.0, 2.0) == 3.0
    assert efficiency(3.0, 4.0) == 0.75


def test_an_answer_that_fed_no_token_counts_as_a_path_of_one() -> None:
    assert parallelism(0, 0) == 0.0
    assert parallelism(1, 0) == 1.0
    assert theoretical_speedup(0, 0) == 1.0
    assert theoretical_speedup(9, 0) == 9.0
    assert parallelism(3, 2, is_parallel=False) == 1.0
    assert speedup_over_text(3, 2, is_parallel=False) == 1.0
    assert speedup_over_text(9, 2, is_parallel=True, is_cut=True) == 4.0
