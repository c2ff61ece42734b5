"""The annotators of generated tasks for the APAR and Skeleton-of-Thought baselines."""

from __future__ import annotations

import itertools

import pytest

from lab.tests.tasks.reading import annotate
from pasta_lab.tasks import FAMILIES, make
from pasta_lab.tasks.annotators import ANNOTATORS as PASTA_ANNOTATORS
from pasta_lab.tasks.baselines import (
    ANNOTATORS,
    APAR_ANNOTATORS,
    SOT_ANNOTATORS,
    WHOLE_SHARE,
    by_points,
    forked_document,
    published_document,
)
from pasta_lm.language.document import parse
from pasta_lm.language.parser import Form
from tests.measure.rows import CHAIN

BASELINES = APAR_ANNOTATORS | SOT_ANNOTATORS


def test_recipes_can_name_every_annotator() -> None:
    assert {*ANNOTATORS} == {*PASTA_ANNOTATORS, *APAR_ANNOTATORS, *SOT_ANNOTATORS}
    assert {"rule", "rule_lines", "rule_label"} < {*ANNOTATORS}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_annotation_keeps_the_text_and_has_no_sync(family: str) -> None:
    for seed, name in itertools.product(range(6), BASELINES):
        task = make(family, "train", seed)
        document = BASELINES[name](task, 1)
        assert document.plain_text == task.text
        assert document.num_syncs == 0
        assert parse(document.annotator_form(), Form.ANNOTATOR) == document


def test_apar_rules_read_the_plain_answer() -> None:
    for seed in range(6):
        task = make("takings", "train", seed)
        assert BASELINES["apar"](task, 0) == forked_document(task.text)
        assert BASELINES["apar_published"](task, 0) == published_document(task.text)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_point_is_a_unit_with_the_text_before_it(family: str) -> None:
    for seed in range(6):
        task = make(family, "train", seed)
        blocks = by_points(task).items
        assert [block.topic for block in blocks] == [unit.topic for unit in task.units]  # type: ignore[union-attr]
        gold = annotate(task, "gold")
        by_gold = SOT_ANNOTATORS["sot_gold"](task, 0)
        is_free = len(gold.blocks) > 1 and not gold.num_syncs
        assert len(by_gold.blocks) == (len(task.units) if is_free else 1)


def test_a_fixed_share_of_the_answers_stays_whole() -> None:
    tasks = [make("takings", "train", seed) for seed in range(200)]
    whole = [not SOT_ANNOTATORS["sot"](task, 0).blocks for task in tasks]
    assert sum(whole) / len(whole) == pytest.approx(WHOLE_SHARE, abs=0.13)
    assert whole == [not SOT_ANNOTATORS["sot"](task, 0).blocks for task in tasks]
    (whole_chain,) = SOT_ANNOTATORS["sot_gold"](CHAIN, 0).blocks  # no skeleton has a single point
    assert whole_chain.plain_text == CHAIN.text
