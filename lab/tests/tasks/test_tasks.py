from __future__ import annotations

import itertools
from collections import Counter
from statistics import median

import pytest

from lab.tests.tasks.reading import allows_gain
from pasta_lab.tasks import FAMILIES, Dependence, Split, Task, make, mixture, training_families
from pasta_lab.tasks.draw import wordings
from pasta_lab.tasks.families import mixed
from pasta_lab.tasks.gold import gold
from pasta_lab.tasks.registry import held_out_families

SEEDS = range(15)
PAIRS = sorted({tuple(sorted((name, f.partner))) for name, f in FAMILIES.items() if f.partner})
PLACES = [
    *((file, "clauses") for file in ("exchanges", "journeys", "notes", "prices", "takings")),
    *(("tallies", "listed"), ("tallies", "summed")),
]
CLAUSES = [
    clauses
    for asked in (wordings(*place) for place in PLACES)
    for clauses in (*asked.train, *asked.dev, *asked.test)
]
"""Families that draw their number of records alike in every split."""
NOUNS = [*mixed.NOUNS]


def sides(pair: tuple[str, str], split: str, seed: int) -> tuple[Task, Task]:
    one, other = (make(name, split, seed) for name in pair)
    return (other, one) if one.dependence is not Dependence.FREE else (one, other)


def structure(task: Task) -> tuple[int, int]:
    document = gold(task)
    return len(document.blocks), document.num_syncs


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_task(family: str) -> None:
    task = make(family, "test", 3)
    assert task == make(family, Split.TEST, 3)
    assert task.prompt != make(family, "test", 4).prompt
    assert (task.id, task.family, task.split) == (f"{family}-test-3", family, Split.TEST)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_data_of_a_task_are_in_its_prompt(family: str) -> None:
    for seed in SEEDS:
        task = make(family, "train", seed)
        assert task.records in task.prompt
        assert all(word in task.prompt for word in task.candidates | task.palette)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_unit_begins_with_its_anchor_says_its_facts_and_promises_in_three_words(
    family: str,
) -> None:
    for seed in SEEDS:
        for unit in make(family, "test", seed).units:
            assert unit.facts
            assert unit.text == unit.text.strip()
            assert unit.anchor in " ".join(unit.text.split()[:3])
            assert 1 <= len(unit.topic.split()) <= 3
            assert all(fact.value in unit.text for fact in unit.facts)
            assert all(cue in unit.text for fact in unit.facts for cue in fact.cues)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_are_long_enough_and_not_too_many(family: str) -> None:
    documents = [gold(make(family, split, seed)) for split in ("train", "test") for seed in SEEDS]
    forked = [document.blocks for document in documents if document.blocks]
    lengths = [len(block.plain_text.split()) for blocks in forked for block in blocks]
    assert all(2 <= len(blocks) <= 8 for blocks in forked)
    assert all(length >= 6 for length in lengths)
    assert not lengths or 10 <= median(lengths) <= 40


def test_a_third_of_the_training_families_allows_no_gain() -> None:
    allows = {name: {allows_gain(make(name, "test", s)) for s in SEEDS} for name in FAMILIES}
    assert all(len(answers) == 1 for answers in allows.values()), "a family is one or the other"
    without_gain = [name for name in training_families() if allows[name] == {False}]
    assert (len(without_gain), len(training_families()), len(held_out_families())) == (7, 21, 4)


def test_a_round_of_a_mixture_draws_each_family_as_often_as_its_table_says() -> None:
    draws = {name: FAMILIES[name].draws for name in training_families()}
    num = 3 * sum(draws.values())
    tasks = list(itertools.islice(mixture("train", 5), num))
    assert Counter(task.family for task in tasks) == {name: 3 * n for name, n in draws.items()}
    assert len({task.prompt for task in tasks}) == num
    assert tasks == list(itertools.islice(mixture("train", 5), num))


def test_pair_partners_name_each_other_and_share_an_id() -> None:
    assert len(PAIRS) == 7
    for pair in PAIRS:
        assert [FAMILIES[name].partner for name in pair] == [pair[1], pair[0]]
        one, other = sides(pair, "dev", 4)
        assert one.pair == other.pair is not None
        assert one.pair != sides(pair, "dev", 5)[0].pair


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_pair_partners_differ_only_in_the_deciding_clause(pair: tuple[str, str]) -> None:
    for split, seed in itertools.product(("dev", "test"), SEEDS):
        free, bound = sides(pair, split, seed)
        assert free.records == bound.records
        assert free.drawn == bound.drawn
        assert any(
            free.prompt.partition(one)[::2] == bound.prompt.partition(other)[::2]
            for one, other in deciding(free.prompt)
        )


def deciding(prompt: str) -> list[tuple[str, str]]:
    filled = [tuple(side.replace("{noun}", n) for side in pair) for pair in CLAUSES for n in NOUNS]
    return [(free, bound) for free, bound in filled if free in prompt]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_rule_that_reads_the_layout_alone_is_wrong_on_one_side(pair: tuple[str, str]) -> None:
    for split, seed in itertools.product(("train", "test"), SEEDS):
        free, bound = sides(pair, split, seed)
        assert allows_gain(free)
        assert structure(free) != structure(bound)
        # All that such a rule can see is the same, so it gives both the same structure.
        assert free.records == bound.records
        assert len(free.units) == len(bound.units)
        assert [unit.before for unit in free.units] == [unit.before for unit in bound.units]
        assert [unit.anchor for unit in free.units] == [unit.anchor for unit in bound.units]
