"""Scores computed by hand, and the selection of pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from pasta_lm.errors import InputError
from pasta_lm.language.document import Document, parse
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.learn.data.preferences import (
    PreferencePair,
    ScoreConfig,
    read_pairs,
    select_pairs,
    write_pairs,
)
from pasta_lm.learn.judge import Comparison
from tests.learn.data.rollouts import GradeBook, rollout, sample

ORIGINAL = "Surely."
GRADES = {"Well.": 0.8, ORIGINAL: 1.0, "good": 1.0, "same": 1.0, "fair": 0.5, "bad": 0.0}


@pytest.mark.parametrize(("weight", "score"), [(0, 1.5), (1, 2.1), (4, 3.9), (inf, 0.6)])
def test_the_score_is_efficiency_plus_weighted_quality(weight: float, score: float) -> None:
    assert ScoreConfig(quality_weight=weight).score(1.5, 0.6) == pytest.approx(score)


def test_a_score_equals_the_value_computed_by_hand() -> None:
    judge = GradeBook(GRADES)
    selection = select_pairs(
        [rollout(sample("good"), sample("fair", path=4))],
        {"task": ORIGINAL},
        judge,
        ScoreConfig(quality_weight=2.0),
    )
    good, fair = selection.scored["task"]
    # good: 0.2 better than the baseline's in both orders, level with the original.
    assert (good.efficiency, good.quality) == (2.0, pytest.approx(1.4 / 1.0))
    # fair: 0.3 worse than the baseline's, 0.5 worse than the original, in both orders.
    assert (fair.efficiency, fair.quality) == (5.0, pytest.approx(1.0 / 2.6))
    assert good.score == pytest.approx(2 + 2 * 1.4)
    assert fair.score == pytest.approx(5 + 2 / 2.6)
    (pair,) = selection.pairs
    assert (pair.chosen.plain_text, pair.rejected.plain_text) == ("fair", "good")
    assert (pair.score_chosen, pair.score_rejected) == (fair.score, good.score)
    assert pair.parts == {
        "efficiency_chosen": 5.0,
        "efficiency_rejected": 2.0,
        "quality_chosen": fair.quality,
        "quality_rejected": good.quality,
    }


def test_each_opponent_is_judged_once_in_both_orders() -> None:
    judge = GradeBook(GRADES)
    rollouts = [rollout(sample("good"), sample("bad"), name=name) for name in ("one", "two")]
    select_pairs(rollouts, {"one": ORIGINAL}, judge, ScoreConfig(quality_weight=1.0))
    assert judge.num_calls == 1
    assert [(one.prompt_id, one.first, one.second) for one in judge.asked] == [
        *[("one", "good", "Well."), ("one", "Well.", "good")],
        *[("one", "good", ORIGINAL), ("one", ORIGINAL, "good")],
        *[("one", "bad", "Well."), ("one", "Well.", "bad")],
        *[("one", "bad", ORIGINAL), ("one", ORIGINAL, "bad")],
        *[("two", "good", "Well."), ("two", "Well.", "good")],
        *[("two", "bad", "Well."), ("two", "Well.", "bad")],
    ]


def chosen(weight: float, *samples: AnswerRecord) -> tuple[str, str] | None:
    """Return the best and the worst of some samples, or None where there is no pair."""
    selection = select_pairs(
        [rollout(*samples)], {}, GradeBook(GRADES), ScoreConfig(quality_weight=weight)
    )
    figures = selection.figures()
    assert figures["num_equal"] + figures["num_lacking"] == 1 - len(selection.pairs)
    texts = [(one.chosen.plain_text, one.rejected.plain_text) for one in selection.pairs]
    return texts[0] if texts else None


def test_the_quality_weight_decides_between_fast_and_good_samples() -> None:
    samples = sample("good", path=10), sample("fair", path=8)
    assert chosen(0, *samples) == ("fair", "good")
    assert chosen(1, *samples) == ("good", "fair")
    assert chosen(inf, *samples) == ("good", "fair")
    # An infinite weight ignores speed.
    assert chosen(inf, sample("good", path=10), sample("same", path=2)) is None
    fast_and_bad = sample("bad", path=1)
    assert chosen(inf, sample("good"), fast_and_bad, sample("fair")) == ("good", "bad")


def test_of_equal_samples_the_first_is_taken() -> None:
    first, later = sample("good"), sample("same")
    assert chosen(1, first, later, sample("bad")) == ("good", "bad")
    assert chosen(1, later, first, sample("bad")) == ("same", "bad")


def test_pairs_of_equal_score_are_dropped_and_counted() -> None:
    nothing = select_pairs([], {}, GradeBook({}), ScoreConfig(quality_weight=1.0))
    assert (nothing.pairs, nothing.figures()["score"]) == ([], 0.0)
    rollouts = [
        rollout(sample("good"), sample("same"), name="equal"),
        rollout(sample("good"), sample("bad"), name="pair"),
        rollout(sample("good"), sample("good", reason="length"), name="one is left"),
        rollout(sample("", reason="stop"), sample("bad", num_illegal=1), name="none is left"),
    ]
    selection = select_pairs(rollouts, {}, GradeBook(GRADES), ScoreConfig(quality_weight=1.0))
    assert [pair.id for pair in selection.pairs] == ["pair"]
    figures = selection.figures()
    names = ("prompts", "pairs", "equal", "lacking", "unusable", "unjudged")
    assert [figures[f"num_{name}"] for name in names] == [4, 1, 1, 2, 3, 0]
    assert figures["efficiency"] == 2.0
    # Level: 1.4; the pair's mean of 1.4 and 1 / 2.6; one is left: 1.4.
    assert figures["quality"] == pytest.approx((1.4 + (1.4 + 1 / 2.6) / 2 + 1.4) / 3)


class Silent(GradeBook):
    """A judge that has nothing to say of some answers where they stand first."""

    def compare(self, comparisons: Sequence[Comparison]) -> list[float | None]:  # type: ignore[override]
        said = super().compare(comparisons)
        return [None if a.first == "fair" else v for a, v in zip(comparisons, said, strict=True)]


def test_samples_without_a_verdict_are_left_out_and_counted() -> None:
    rollouts = [
        rollout(sample("good"), sample("fair", path=1), sample("bad"), name="pair"),
        rollout(sample("fair"), sample("good"), name="one is left"),
    ]
    selection = select_pairs(rollouts, {}, Silent(GRADES), ScoreConfig(quality_weight=1.0))
    (pair,) = selection.pairs
    assert (pair.chosen.plain_text, pair.rejected.plain_text) == ("good", "bad")
    assert pair.parts["quality_chosen"] == pytest.approx(1.4)  # nobody else's verdict moved here
    assert (selection.num_unjudged, selection.num_unusable) == (2, 0)
    assert selection.figures()["num_lacking"] == 1


FORKED = '<promise topic="tea" tokens="2"/><async>Tea.</async><sync/> &lt;async> too.'
ROW = {
    "id": "one",
    "prompt": "What?",
    "chosen": FORKED,
    "rejected": "Nothing.",
    "score_chosen": 3.25,
    "score_rejected": 1,
}


def pair(chosen: Document, name: str = "one", **more: object) -> PreferencePair:
    texts = {"id": name, "prompt": "What?\n", "chosen": chosen, "rejected": parse("Nothing.")}
    return PreferencePair(**texts, score_chosen=1 / 3, score_rejected=-0.5, **more)  # type: ignore[arg-type]


def test_written_pairs_can_be_read(tmp_path: Path) -> None:
    parts = {"quality_chosen": 2 / 3}
    forked = parse('1. Tea:<async topic="fork"> hot &lt;async>.</async>', "annotator")
    pairs = [pair(parse(FORKED), parts=parts), pair(forked, name="without lengths")]
    pairs += [replace(pairs[0], id="brief", turns=({"role": "system", "content": "Be brief."},))]
    assert forked.blocks[0].units is None
    path = tmp_path / "out" / "pairs.jsonl"
    write_pairs(path, pairs)
    assert read_pairs(path) == pairs
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [*rows[0]] == [*ROW, "quality_chosen"]
    assert rows[0]["chosen"] == FORKED


def test_a_pair_may_have_facts_about_it(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({**ROW, "judge": "me", "is_new": True}) + "\n\n", "utf-8")
    (kept,) = read_pairs(path)
    assert (kept.score_chosen, kept.score_rejected, kept.parts) == (3.25, 1.0, {})
    assert kept.chosen.blocks[0].units == 2


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"prompt": None}, "row one has no prompt"),
        ({"chosen": ""}, "row one has no chosen"),
        ({"rejected": 3, "score_rejected": "1"}, "row one has no rejected and no score_rejected"),
        ({"history": [["Why?", "So."]]}, "row one: 'history' holds text that is not read"),
        ({"score_chosen": True}, "row one has no score_chosen"),
        ({"chosen": "<async>Tea."}, "row one: "),
        ({"id": None}, ":1: no JSON object with an id"),
    ],
)
def test_an_invalid_pair_is_named(tmp_path: Path, changes: dict[str, object], shown: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({**ROW, **changes}), "utf-8")
    with pytest.raises(InputError) as caught:
        read_pairs(path)
    assert shown in caught.value.message
    assert str(path) in caught.value.message
