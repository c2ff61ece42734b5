"""What a grammar writes: whole sentences of many kinds, two sides that differ, none held out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random
from string import Formatter

import pytest

from pasta_lm.tasks import Split, make
from pasta_lm.tasks.draw import GRAMMAR_SHARE, Draw, Wordings
from pasta_lm.tasks.drills import CLAUSES, clause_drill
from pasta_lm.tasks.grammar import SIDES, SINGLE, sentences, sides_of
from pasta_lm.tasks.prefaces import CHAIN, FREE
from tests.tasks.reading import every_wording, sides

NUM_DRAWS = 300
GRAMMARS = {name: asked for name, asked in every_wording().items() if asked.grammar}


def fields(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name is not None}


def words(sentence: str) -> str:
    """Return a sentence without what makes no other wording of it."""
    found = re.findall(r"\w+|[{}]", sentence.lower())
    return " ".join(word for word in found if word not in ("a", "an", "the"))


def known(options: Iterable[object]) -> set[str]:
    return {words(side) for option in options for side in sides(option)}


def drawn(asked: Wordings[object], number: int = NUM_DRAWS) -> list[object]:
    draw = Draw(Split.TRAIN, "grammar")
    return [draw.wording(asked) for _ in range(number)]


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_slot_is_filled_and_what_the_task_fills_is_left(name: str) -> None:
    asked = GRAMMARS[name]
    listed = [
        [fields(side) for side in column] for column in zip(*map(sides, asked.train), strict=True)
    ]
    always, ever = ([join(*found) for found in listed] for join in (set.intersection, set.union))
    for seed in range(NUM_DRAWS):
        found = sentences(asked.grammar, Random(seed))
        assert not any(re.search(r"[<>]|\s\s|\s[.,]|^\s|\s$", side) for side in found), found
        for side, least, most in zip(found, always, ever, strict=True):
            assert least <= fields(side) <= most


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_writes_more_than_a_person_listed(name: str) -> None:
    asked = GRAMMARS[name]
    found = {sentences(asked.grammar, Random(seed)) for seed in range(NUM_DRAWS)}
    assert len(found) > max(0.5 * NUM_DRAWS, 3 * len(asked.train))


@pytest.mark.parametrize("name", GRAMMARS)
def test_training_draws_from_list_and_grammar_and_nothing_that_is_held_out(name: str) -> None:
    asked = GRAMMARS[name]
    found = drawn(asked)
    listed = sum(option in asked.train for option in found) / NUM_DRAWS
    assert abs(1 - listed - GRAMMAR_SHARE) < 0.12
    assert known(found).isdisjoint(known((*asked.dev, *asked.test)))
    assert all(type(option) is type(asked.train[0]) for option in found)


@pytest.mark.parametrize("split", ["dev", "test", "hard"])
def test_other_splits_have_their_list_alone(split: str) -> None:
    for asked in GRAMMARS.values():
        draw = Draw(Split(split), "grammar")
        assert all(draw.wording(asked) in asked.of(Split(split)) for _ in range(20))


def test_a_held_out_sentence_that_a_grammar_writes_is_drawn_again() -> None:
    free = Wordings(("Listed.",), (), (), grammar="orders")
    found = {option for option in drawn(free) if option != "Listed."}
    shouted = tuple(f"The {option.upper()}!" for option in found)  # the same words, no more
    held_out = Wordings(("Listed.",), shouted[:10], shouted[10:], grammar="orders")
    again = {option for option in drawn(held_out) if option != "Listed."}
    assert len(again) > 50
    assert found.isdisjoint(again)


@pytest.mark.parametrize("index", range(len(CLAUSES)))
def test_the_two_sides_of_a_clause_are_never_the_same(index: int) -> None:
    clauses, *_ = CLAUSES[index]
    assert sides_of(clauses.grammar) == SIDES
    for seed in range(NUM_DRAWS):
        first, second = sentences(clauses.grammar, Random(seed))
        assert words(first) != words(second)


def test_a_grammar_of_one_sentence_has_one_side() -> None:
    assert sides_of("orders") == SINGLE
    assert len(sentences("orders", Random(0))) == 1


def test_an_unknown_grammar_is_no_grammar() -> None:
    with pytest.raises(KeyError):
        sentences("no such", Random(0))


# --- drills about clauses


def test_a_drill_says_which_side_its_clause_is_on() -> None:
    shown = {"alone": 0, "beside": 0}
    for seed in range(NUM_DRAWS):
        found = clause_drill(seed)
        assert found == clause_drill(seed)
        assert found.answer in (FREE, CHAIN)
        for _, *families in CLAUSES:
            for side, family in enumerate(families):
                task = make(family, "train", seed, most=3)
                if found.prompt in (task.prompt, task.prompt.replace(task.records, "").strip()):
                    assert found.answer == (FREE, CHAIN)[side]
                    shown["beside"] += 1
                    break
    assert 0.3 * NUM_DRAWS < shown["beside"] < 0.5 * NUM_DRAWS


def test_both_sides_and_every_clause_are_asked_alike_often() -> None:
    answers = [clause_drill(seed).answer for seed in range(1000)]
    assert 420 < answers.count(FREE) < 580
