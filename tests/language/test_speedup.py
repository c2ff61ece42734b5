"""The speedup that is read off an answer equals what the interpreter's trace says of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.engines.script import words
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.language.document import Block, Document
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.speedup import best_speedup, critical_path

TEXTS = st.integers(1, 6).map(lambda number: Text(" word" * number))
BLOCKS = st.builds(lambda text: Block("a topic", 1, (text,)), TEXTS)
ITEMS = st.lists(st.one_of(TEXTS, BLOCKS, st.just(Sync())), min_size=1, max_size=6)


def count(text: str) -> int:
    return len(words(text))


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
    assert critical_path(document, count) == together.critical_path
    found = together.theoretical_speedup(alone.critical_path)
    assert best_speedup(document, count) == pytest.approx(found)
