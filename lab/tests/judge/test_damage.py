"""Planted damage changes one part of an answer in the way that it is named, and always the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lab.judge.damage import Answer, Damage, parts_of, plant, with_marker

APPLES = "1. Apples are red and taste sweet.\n2. Plums are blue and taste sour.\n3. Figs."
ITEMS = ["1. Apples are red and taste sweet.", "2. Plums are blue and taste sour."]
NESTED = """\
- Eat fruit on every single day:
  - apples and plums in the summer

- Walk for an hour after work.

That is all there is to say."""
PROSE = """\
Sleep is good for your health.

There are two rules to follow:

Go to bed early every night.
Read no news."""
TITLES = "1. Apples\n2. Plums\n\nFruit is good for your health."
BEES = "- Bees make honey from many flowers."


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"Some fruit that is good for you:\n\n{APPLES}", ITEMS),
        (
            NESTED,
            [
                "- Eat fruit on every single day:\n  - apples and plums in the summer",
                "- Walk for an hour after work.",
            ],
        ),
        (PROSE, ["Sleep is good for your health.", "Go to bed early every night.\nRead no news."]),
        (TITLES, ["Fruit is good for your health."]),
        ("Too short.", []),
        ("", []),
    ],
)
def test_the_parts_of_an_answer_are_its_items_or_its_paragraphs(
    text: str, parts: list[str]
) -> None:
    assert [text[begin:end] for begin, end in parts_of(text)] == parts


def answer(name: str, text: str, part: str) -> Answer:
    begin = text.index(part)
    return Answer(name, f"prompt {name}", text, ((begin, begin + len(part)),))


def damaged(text: str, part: str, kind: Damage) -> str:
    other = answer("other", BEES, BEES)
    found = plant([answer("one", text, part), other], 0)
    return next(one.text for one in found if one.answer.id == "one" and one.kind is kind)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Damage.DROPPED, f"{ITEMS[0]}\n3. Figs."),
        (Damage.DOUBLED, f"{ITEMS[0]}\n{ITEMS[1]}\n{ITEMS[1]}\n3. Figs."),
        (Damage.SWAPPED, f"{ITEMS[0]}\n2. Bees make honey from many flowers.\n3. Figs."),
        (Damage.CUT, f"{ITEMS[0]}\n2. Plums are\n3. Figs."),
    ],
)
def test_an_item_of_a_list_is_damaged(kind: Damage, expected: str) -> None:
    assert damaged(APPLES, ITEMS[1], kind) == expected


@pytest.mark.parametrize("before", ["", "A list:\n"])
@pytest.mark.parametrize("marker", ["* ", "  2. ", ""])
def test_a_block_behind_a_list_marker_is_damaged_with_it(before: str, marker: str) -> None:
    text = f"{before}{marker}Eat more fruit.\n"
    end = len(text) - 1
    assert with_marker(text, (len(before + marker), end)) == (len(before), end)


def test_without_an_answer_to_another_prompt_nothing_is_swapped() -> None:
    alone = answer("one", APPLES, ITEMS[0])
    assert [one.kind for one in plant([alone], 0)] == ["dropped", "doubled", "cut"]
    twin = alone._replace(id="two")
    assert Damage.SWAPPED not in {one.kind for one in plant([alone, twin], 0)}


WORDS = st.lists(st.sampled_from(["red", "blue", "fig", "plum"]), min_size=5, max_size=9)
PARAGRAPHS = st.lists(WORDS.map(" ".join), min_size=2, max_size=6, unique=True)


@given(st.lists(PARAGRAPHS, min_size=2, max_size=4), st.integers(0, 9))
def test_each_damage_does_what_it_is_called(texts: list[list[str]], seed: int) -> None:
    answers = [
        Answer(str(n), f"prompt {n}", text := "\n\n".join(some), parts_of(text))
        for n, some in enumerate(texts)
    ]
    assert [len(one.parts) for one in answers] == [len(some) for some in texts]
    found = plant(answers, seed)
    assert found == plant(answers, seed)
    for one in found:
        before, after = one.answer.text.split("\n\n"), one.text.split("\n\n")
        change = len(after) - len(before)
        assert change == {"dropped": -1, "doubled": 1}.get(one.kind, 0)
        if one.kind is Damage.DOUBLED:
            assert any(a == b for a, b in zip(after, after[1:], strict=False))
        if not change:
            ((old, new),) = [pair for pair in zip(before, after, strict=True) if len({*pair}) > 1]
            foreign = {part for some in texts for part in some}
            assert new in foreign if one.kind is Damage.SWAPPED else old.startswith(new)
