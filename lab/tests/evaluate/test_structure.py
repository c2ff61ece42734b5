"""Forks and syncs that are read from an answer."""

from __future__ import annotations

import itertools

import pytest

from lab.tests.evaluate.rows import CHAIN, FORKS, SYNCS, marks
from lab.tests.tasks.reading import marked, plain, syncless
from pasta_lab.evaluate.structure import Counts, fork_counts, structure, sync_counts, true_structure
from pasta_lab.tasks import FAMILIES, Task, make
from pasta_lab.tasks.gold import gold
from pasta_lm.language.document import Document, parse

SEEDS = range(10)
SPLITS = ("train", "test", "hard")


def tasks_of(family: str) -> list[Task]:
    return [make(family, split, seed) for split, seed in itertools.product(SPLITS, SEEDS)]


def annotated(text: str) -> Document:
    return parse(text, "annotator")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_true_structure_is_that_of_the_reference(family: str) -> None:
    for task in tasks_of(family):
        assert structure(task, gold(task)) == true_structure(task)


@pytest.mark.parametrize("family", FAMILIES)
def test_structures_are_read_from_right_and_wrong_answers(family: str) -> None:
    for task, write in itertools.product(tasks_of(family), (gold, plain, syncless)):
        document = write(task)
        blocks, syncs = marked(task, document)
        assert structure(task, document) == marks([*blocks], [*syncs])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", marks()),
        ("Ada is here.\nBob is here.\nCid is here.", marks()),
        ('<async topic="a">Ada is here.</async>\nBob is here.', marks([0])),
        ('<async topic="a">1. Ada is here.</async>\nBob is here.', marks([0])),
        # In any order, and whatever the topic says.
        ('<async topic="a">Cid.</async> <async topic="a">Ada.</async>', marks([0, 2])),
        # A block of several units is the first of them; the others are not forked.
        ('<async topic="a">Ada is here.\nBob is here.</async>\nCid is here.', marks([0])),
        ('<async topic="a">Cid is here.\nBob is here.</async>\nAda is here.', marks([2])),
        # A block that holds no unit is stray, an empty one too.
        ('<async topic="a">Hello.</async> Ada is here.', marks(num_stray=1)),
        ('<async topic="a"></async>Ada is here.', marks(num_stray=1)),
        ('Ada is <async topic="a">here.</async>', marks(num_stray=1)),
        ('Ada. <async topic="a">Ada again.</async>', marks(num_stray=1)),
        ('<async topic="a">Adam is here.</async>', marks(num_stray=1)),
        ('<async topic="a">x</async><async topic="b">y</async>Bob', marks(num_stray=2)),
        # A sync is named by the unit after it; the number of units is the end.
        ('<async topic="a">Ada.</async>\n<sync/>Bob.', marks([0], [1])),
        ('<async topic="a">Ada.</async><sync/>\nBob.', marks([0], [1])),
        ('<async topic="a">Ada.</async><sync/> Also: Cid.', marks([0], [2])),
        ('<async topic="a">Ada.</async><sync/>', marks([0], [3])),
        ('<async topic="a">Ada.</async><sync/> That is all.', marks([0], [3])),
        ('<async topic="a">Ada.</async><sync/><async topic="b">Bob.</async>', marks([0, 1], [1])),
        (
            '<async topic="a">Ada.</async><sync/><async topic="b">Bob.</async><sync/>Cid.',
            marks([0, 1], [1, 2]),
        ),
    ],
)
def test_odd_answers_of_models_have_a_structure(text: str, expected: object) -> None:
    assert structure(FORKS, annotated(text)) == expected


def test_a_stray_block_lowers_precision() -> None:
    found = structure(FORKS, annotated('<async topic="a">Ada.</async><async topic="b">x</async>'))
    assert fork_counts(found, true_structure(FORKS)) == Counts(1, 2, 3)


def test_a_misplaced_sync_is_not_right() -> None:
    for end in ("<sync/>", "Bob.<sync/>", "<sync/>Bob."):
        found = structure(SYNCS, annotated(f'<async topic="a">Ada.</async>{end}'))
        assert sync_counts(found, true_structure(SYNCS)) == Counts(0, 1, 1)
    found = structure(SYNCS, annotated('<async topic="a">Ada.</async><sync/>Cid.'))
    assert sync_counts(found, true_structure(SYNCS)) == Counts(1, 1, 1)


def test_a_chain_wants_no_forks() -> None:
    assert true_structure(CHAIN) == marks()
    found = structure(CHAIN, annotated('<async topic="a">Ada.</async> Bob.'))
    assert fork_counts(found, true_structure(CHAIN)) == Counts(0, 1, 0)
    assert sync_counts(found, true_structure(CHAIN)) == Counts(0, 0, 0)
