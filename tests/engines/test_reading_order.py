"""Text in reading order, for random answers, limits and stop strings."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pasta_lm.engines.reading_order import ReadingOrder
from pasta_lm.engines.request import SamplingParams, TextDelta
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.view.scripted import ScriptedEngine

WORDS = ("a", " bc", " d.", "\n", " <sync", "/>", " &lt;promise", " <b>", " &", " \u00e9\U0001f35d")


def random_items(rng: random.Random, depth: int) -> tuple[Item, ...]:
    """Return random text, blocks and syncs; blocks may nest."""
    items: list[Item] = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(["text", "text", "block", "sync"])
        if kind == "block" and depth:
            items.append(Block("topic & more", None, random_items(rng, depth - 1)))
        elif kind == "sync" and depth == 2 and items and isinstance(items[-1], Block):
            items.append(Sync())
        else:
            items.append(Text("".join(rng.choices(WORDS, k=rng.randint(1, 6)))))
    return tuple(items)


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("keeps_tags", [False, True])
def test_the_pieces_make_up_the_answer_whatever_happens(seed: int, keeps_tags: bool) -> None:
    rng = random.Random(seed)
    engine = ScriptedEngine(Document(random_items(rng, 2)))
    params = SamplingParams(
        max_tokens=rng.choice([5, 20, 1000]), max_threads=rng.choice([None, 1, 2]),
        max_tokens_per_thread=rng.choice([None, 4]),
        stop=tuple(rng.sample(["d.", "sync", "\u00e9", "b>", "a bc"], rng.choice([0, 0, 1, 2]))),
    )  # fmt: skip
    request = engine.request("ask", params)
    answer = engine.generate([request])[0][0]
    order, shown = ReadingOrder(keeps_tags=keeps_tags), ""
    for events in engine.steps(replace(request)):
        shown += order.feed(events)
    assert shown == (answer.program if keeps_tags else answer.text)


def test_text_is_passed_on_as_soon_as_its_turn_comes() -> None:
    script = Document(
        (Text("one two"), Block("b", None, (Text(" three four"),)), Text(" five six"))
    )
    engine = ScriptedEngine(script)
    order, lateness = ReadingOrder(), []
    decoded = shown = ""
    for events in engine.steps(engine.request("ask")):
        shown += order.feed(events)
        decoded += "".join(one.text for one in events if isinstance(one, TextDelta))
        lateness.append(len(decoded) - len(shown))
    assert lateness[:3] == [0, 0, 0]
    assert max(lateness) <= len(" five six"), "only what stands behind the block is held"
    assert shown == script.plain_text
