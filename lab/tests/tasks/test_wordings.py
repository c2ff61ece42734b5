"""The TOML files of wordings: their schema, and the sentences that their grammars write."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import pytest

from lab.tests.tasks.reading import SHARED_BY_MISTAKE, every_wording
from pasta_lab.tasks import Split
from pasta_lab.tasks.draw import GRAMMAR_SHARE, Draw, Wording, Wordings

NUM_DRAWS = 300
EVERY = every_wording()
PAIRED = {
    name
    for name in EVERY
    if name.split(".")[0] in {"takings", "journeys", "notes", "prices", "exchanges"}
    and name.endswith(".clauses")
} | {"tallies.listed", "tallies.summed"}


def num_sides(name: str) -> int:
    return 2 if name in PAIRED else 1


def words(sentence: str) -> str:
    """Return a sentence without what makes no other wording of it."""
    found = re.findall(r"\w+|[{}]", sentence.lower())
    return " ".join(word for word in found if word not in ("a", "an", "the"))


def known(options: Iterable[Wording]) -> set[str]:
    return {words(side) for option in options for side in option}


# --- the schema


# --- what the grammars write


def drawn(asked: Wordings, number: int = NUM_DRAWS) -> list[Wording]:
    """Return both sides of the wordings that training draws."""
    sides = []
    for side in range(len(asked.train[0])):
        draw = Draw(Split.TRAIN, "grammar")
        sides.append([draw.wording(asked, side) for _ in range(number)])
    return list(zip(*sides, strict=True))


def written(asked: Wordings, seed: int) -> Wording:
    assert asked.grammar is not None
    return asked.grammar.write(Random(seed))


@pytest.mark.parametrize("name", EVERY)
def test_training_draws_from_list_and_grammar_and_no_held_out_wording(name: str) -> None:
    asked = EVERY[name]
    found = drawn(asked)
    listed = sum(option in asked.train for option in found) / NUM_DRAWS
    assert abs(1 - listed - GRAMMAR_SHARE) < 0.12
    held_out = known((*asked.dev, *asked.test)) - {words(SHARED_BY_MISTAKE)}
    assert known(found).isdisjoint(held_out)
    assert all(len(option) == num_sides(name) for option in found)


@pytest.mark.parametrize("split", ["dev", "test", "hard"])
def test_other_splits_draw_from_their_list_alone(split: str) -> None:
    for asked in EVERY.values():
        draw = Draw(Split(split), "grammar")
        listed = {option[0] for option in asked.of(Split(split))}
        assert all(draw.wording(asked) in listed for _ in range(20))


def test_a_held_out_sentence_that_a_grammar_writes_is_drawn_again() -> None:
    grammar = EVERY["records.orders"].grammar
    free = Wordings((("Listed.",),), (), (), grammar)
    found = {option for (option,) in drawn(free) if option != "Listed."}
    shouted = tuple((f"The {option.upper()}!",) for option in found)  # the same words, no more
    held_out = Wordings((("Listed.",),), shouted[:10], shouted[10:], grammar)
    again = {option for (option,) in drawn(held_out) if option != "Listed."}
    assert len(again) > 50
    assert found.isdisjoint(again)


@pytest.mark.parametrize("name", sorted(PAIRED))
def test_the_two_sides_of_a_clause_are_never_the_same(name: str) -> None:
    assert {*EVERY} > PAIRED
    for seed in range(NUM_DRAWS):
        first, second = written(EVERY[name], seed)
        assert words(first) != words(second)
