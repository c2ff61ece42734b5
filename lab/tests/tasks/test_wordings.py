"""The TOML files of wordings: their schema, and the sentences that their grammars write."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random
from string import Formatter

import pytest

from lab.tests.tasks.reading import FILES, SHARED_BY_MISTAKE, every_wording
from pasta_lab.tasks import Split
from pasta_lab.tasks.draw import (
    GRAMMAR_SHARE,
    Draw,
    Wording,
    Wordings,
    read_data,
    syllable_parts,
    wordings,
)

NUM_DRAWS = 300
EVERY = every_wording()
PAIRED = {
    name
    for name in EVERY
    if name.split(".")[0] in {"takings", "journeys", "notes", "prices", "exchanges"}
    and name.endswith(".clauses")
} | {"tallies.listed", "tallies.summed"}
SLOT = re.compile(r"<(\w+)>")
HELD_OUT = ("menus", "savings", "harvest", "profiles_then_running")


def num_sides(name: str) -> int:
    return 2 if name in PAIRED else 1


def fields(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name is not None}


def words(sentence: str) -> str:
    """Return a sentence without what makes no other wording of it."""
    found = re.findall(r"\w+|[{}]", sentence.lower())
    return " ".join(word for word in found if word not in ("a", "an", "the"))


def known(options: Iterable[Wording]) -> set[str]:
    return {words(side) for option in options for side in option}


def is_sentences(options: object) -> bool:
    return (
        isinstance(options, list)
        and bool(options)
        and all(isinstance(one, str) and one.strip() == one != "" for one in options)
    )


# --- the schema


def test_every_file_has_only_the_tables_that_the_families_read() -> None:
    paired = {"openings": dict, "clauses": dict}
    own = {
        "formats": ("dots", "parentheses", "ordinals", "bold", "rows", "sentences"),
        "held_out": HELD_OUT,
        "records": ("orders",),
        "sections": ("domains", "openings", "sections", "running_text", "single"),
        "tallies": ("openings", "body", "listed", "summed"),
    }
    assert {*FILES} > {*own}
    for name in FILES:
        assert {*read_data(name)} == {*own.get(name, paired)}, name
    assert {*read_data("words")} == {"syllables", "words"}


@pytest.mark.parametrize("name", EVERY)
def test_a_place_has_wordings_of_every_split_and_a_grammar_all_with_the_same_sides(
    name: str,
) -> None:
    file, place = name.split(".")
    table = read_data(file)[place]
    assert {*table} == {"train", "dev", "test", "grammar"}
    for split in ("train", "dev", "test"):
        sides = [[one] if num_sides(name) == 1 else one for one in table[split]]
        assert sides
        assert all(is_sentences(option) and len(option) == num_sides(name) for option in sides)
        assert len({tuple(option) for option in sides}) == len(sides), "a wording is listed twice"
    keys = {"slots", "all"} if num_sides(name) == 1 else {"slots", "first", "second"}
    assert {*table["grammar"]} == keys
    assert all(is_sentences(table["grammar"][key]) for key in keys - {"slots"})


@pytest.mark.parametrize("name", EVERY)
def test_every_slot_of_a_grammar_is_defined_and_used(name: str) -> None:
    grammar = EVERY[name].grammar
    assert grammar is not None
    assert all(isinstance(phrase, str) for slot in grammar.slots.values() for phrase in slot)
    assert all(grammar.slots.values())
    texts = [text for part in (*grammar.sides, *grammar.slots.values()) for text in part]
    assert {slot for text in texts for slot in SLOT.findall(text)} == {*grammar.slots}


@pytest.mark.parametrize("name", EVERY)
def test_all_listed_wordings_of_a_place_leave_fields_that_the_family_fills(name: str) -> None:
    asked = EVERY[name]
    for side in range(num_sides(name)):
        listed = [fields(one[side]) for one in asked.train]
        for one in (*asked.dev, *asked.test):
            assert set.intersection(*listed) <= fields(one[side]) <= set.union(*listed)


@pytest.mark.parametrize("place", HELD_OUT)
def test_a_held_out_family_has_the_same_wordings_in_every_split(place: str) -> None:
    table = read_data("held_out")[place]
    assert {*table} == {"all"}
    assert is_sentences(table["all"])
    asked = wordings("held_out", place)
    assert asked.train == asked.dev == asked.test == tuple((one,) for one in table["all"])
    with pytest.raises(ValueError, match="no grammar"):
        asked.write(Random(0))


def test_domains_and_syllables_have_the_fields_that_are_read() -> None:
    for domain in read_data("sections")["domains"]:
        assert {*domain} == {"noun", "columns", "kinds", "sentences", "cues"}
        num = len(domain["columns"])
        assert num == len(domain["kinds"]) == len(domain["cues"])
        assert fields(domain["sentences"]) == {"name", *map(str, range(num))}
        assert {*domain["kinds"]} - {"name", "number"} <= {*read_data("words")["words"]}
    assert [len(part) for part in syllable_parts()] == [24, 5, 8]


def test_a_place_that_is_unknown_is_refused() -> None:
    with pytest.raises(KeyError):
        wordings("takings", "no such")


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
def test_every_slot_is_filled_and_fields_of_the_task_are_left(name: str) -> None:
    asked = EVERY[name]
    listed = [[fields(side) for side in column] for column in zip(*asked.train, strict=True)]
    always, ever = ([join(*found) for found in listed] for join in (set.intersection, set.union))
    for seed in range(NUM_DRAWS):
        found = written(asked, seed)
        assert not any(re.search(r"[<>]|\s\s|\s[.,]|^\s|\s$", side) for side in found), found
        for side, least, most in zip(found, always, ever, strict=True):
            assert least <= fields(side) <= most


@pytest.mark.parametrize("name", EVERY)
def test_a_grammar_writes_more_wordings_than_are_listed(name: str) -> None:
    asked = EVERY[name]
    found = {written(asked, seed) for seed in range(NUM_DRAWS)}
    assert len(found) > max(0.5 * NUM_DRAWS, 3 * len(asked.train))


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
