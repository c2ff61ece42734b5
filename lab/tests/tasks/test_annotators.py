from __future__ import annotations

import itertools
import math

import pytest

from lab.tests.tasks.reading import allows_gain, annotate, marked
from pasta_lab.tasks import FAMILIES, Dependence, Fact, Unit, make, mixture
from pasta_lab.tasks.annotators import ADDED, ANNOTATORS, MISSED, SHORT_TOPIC, SYNC_NOISE, plan
from pasta_lm.language.document import parse
from pasta_lm.language.parser import Form

SEEDS = range(10)
NUM_NOISY_TASKS = 1_000
NUM_DEVIATIONS = 4


def unit(name: str, *needs: int, fork: bool = True) -> Unit:
    return Unit(f"{name} is here.", name, name, (Fact("here"),), frozenset(needs), fork)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_annotation_keeps_the_text_and_is_well_formed(family: str) -> None:
    for seed, name in itertools.product(SEEDS, ANNOTATORS):
        task = make(family, "train", seed)
        document = annotate(task, name, 1)
        assert document.plain_text == task.text
        assert parse(document.annotator_form(), Form.ANNOTATOR) == document


@pytest.mark.parametrize("family", FAMILIES)
def test_gold_forks_units_that_pay_and_syncs_exactly_where_a_block_is_needed(family: str) -> None:
    for seed in SEEDS:
        task = make(family, "test", seed)
        blocks, syncs = marked(task, annotate(task, "gold"))
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
        blocks, syncs = marked(task, annotate(task, "gold"))
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


@pytest.mark.parametrize("family", FAMILIES)
def test_annotators_that_break_a_rule_break_only_that_rule(family: str) -> None:
    for seed in SEEDS:
        task = make(family, "test", seed)
        _, syncs = marked(task, annotate(task, "gold"))
        assert marked(task, annotate(task, "always_fork")) == ({*range(len(task.units))}, syncs)
        assert marked(task, annotate(task, "plain")) == (set(), set())


def test_the_noisy_annotator_errs_at_its_rates() -> None:
    missed: list[bool] = []
    added: list[bool] = []
    dropped: list[bool] = []
    put: list[bool] = []
    for task in itertools.islice(mixture("train", 77), NUM_NOISY_TASKS):
        blocks, syncs = marked(task, annotate(task, "noisy"))
        _, true_syncs = marked(task, annotate(task, "gold"))
        for index, unit in enumerate(task.units):
            if unit.fork:
                missed.append(index not in blocks)
            else:
                added.append(index in blocks)
            if has_unjoined(index, blocks, syncs):
                (dropped if index in true_syncs else put).append(
                    (index in syncs) is (index not in true_syncs)
                )
    assert_rate(missed, MISSED)
    assert_rate(added, ADDED)
    assert_rate(dropped, SYNC_NOISE)
    assert_rate(put, SYNC_NOISE)
    assert (MISSED, ADDED, SYNC_NOISE) == (0.3, 0.3, 0.2), "as tasks.md says"


def has_unjoined(index: int, blocks: set[int], syncs: set[int]) -> bool:
    """Return whether a sync would join anything here: one that would not is never written."""
    last_sync = max((sync for sync in syncs if sync < index), default=0)
    return any(last_sync <= block < index for block in blocks)


def assert_rate(errors: list[bool], rate: float) -> None:
    assert len(errors) > 100
    deviation = math.sqrt(rate * (1 - rate) / len(errors))
    assert sum(errors) / len(errors) == pytest.approx(rate, abs=NUM_DEVIATIONS * deviation)


def test_the_systematic_annotator_errs_seldom_and_by_the_layout_and_the_topic() -> None:
    wrong = 0
    for task in itertools.islice(mixture("train", 77), NUM_NOISY_TASKS):
        document = annotate(task, "systematic")
        blocks, syncs = marked(task, document)
        is_prose = not any("\n" in unit.before for unit in task.units[1:])
        needs = any(unit.needs for unit in task.units)
        if is_prose:
            assert (blocks, syncs) == (set(), set())
        elif needs and len(task.units[0].topic) <= SHORT_TOPIC:
            assert (blocks, syncs) == (set(range(len(task.units))), set())
        else:
            assert document == annotate(task, "gold")
        wrong += document != annotate(task, "gold")
    assert 0.04 < wrong / NUM_NOISY_TASKS < 0.12, "as tasks.md says"


def test_the_noise_is_the_same_for_a_seed_and_differs_between_seeds() -> None:
    task = make("profiles", "hard", 2)
    drawn = [annotate(task, "noisy", seed) for seed in range(8)]
    assert drawn == [annotate(task, "noisy", seed) for seed in range(8)]
    assert len({document.annotator_form() for document in drawn}) > 4
