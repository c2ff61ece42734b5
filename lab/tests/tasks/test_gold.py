from __future__ import annotations

import pytest

from lab.tests.tasks.reading import allows_gain, marked
from pasta_lab.tasks import FAMILIES, Dependence, Fact, Unit, make
from pasta_lab.tasks.gold import gold, plan
from pasta_lm.language.document import parse
from pasta_lm.language.parser import Form

SEEDS = range(10)


def unit(name: str, *needs: int, fork: bool = True) -> Unit:
    return Unit(f"{name} is here.", name, name, (Fact("here"),), frozenset(needs), fork)


@pytest.mark.parametrize("family", FAMILIES)
def test_gold_keeps_the_text_and_is_well_formed(family: str) -> None:
    for seed in SEEDS:
        task = make(family, "train", seed)
        document = gold(task)
        assert document.plain_text == task.text
        assert parse(document.annotator_form(), Form.ANNOTATOR) == document


@pytest.mark.parametrize("family", FAMILIES)
def test_gold_forks_units_that_pay_and_syncs_exactly_where_a_block_is_needed(family: str) -> None:
    for seed in SEEDS:
        task = make(family, "test", seed)
        blocks, syncs = marked(task, gold(task))
        assert blocks == {index for index, unit in enumerate(task.units) if unit.fork}
        unjoined: set[int] = set()
        for index, unit in enumerate(task.units):
            assert (index in syncs) == bool(unit.needs & unjoined)
            unjoined = set() if index in syncs else unjoined
            unjoined |= {index} & blocks


@pytest.mark.parametrize("family", FAMILIES)
def test_the_dependence_of_a_family_shows_in_its_gold_structure(family: str) -> None:
    for seed in SEEDS:
        task = make(family, "test", seed)
        blocks, syncs = marked(task, gold(task))
        assert bool(syncs) == (task.dependence is Dependence.SYNC)
        assert bool(blocks) == allows_gain(task)
        assert allows_gain(task) or task.dependence in {Dependence.CHAIN, Dependence.SHORT}


def test_one_sync_joins_all_blocks_above_it() -> None:
    document = plan((unit("A"), unit("B"), unit("C", 0), unit("D", 1), unit("E", 2)))
    assert document.annotator_form() == (
        '<async topic="A">A is here.</async>\n<async topic="B">B is here.</async>\n'
        '<sync/><async topic="C">C is here.</async>\n<async topic="D">D is here.</async>\n'
        '<sync/><async topic="E">E is here.</async>'
    )


def test_a_unit_on_main_needs_no_sync_to_be_read() -> None:
    assert plan((unit("A", fork=False), unit("B", 0, fork=False))).num_syncs == 0


def test_a_unit_that_needs_a_later_one_is_refused() -> None:
    with pytest.raises(ValueError, match="unit 0 needs"):
        plan((unit("A", 0), unit("B")))
