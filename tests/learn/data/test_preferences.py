"""Scores computed by hand, and the selection of pairs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest

from pasta_lm.engines.request import Answer, SamplingParams
from pasta_lm.errors import InputError
from pasta_lm.interpreter.trace import Kind, Trace
from pasta_lm.journal import Row
from pasta_lm.language.document import Document, parse
from pasta_lm.learn.data import preferences
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.learn.data.preferences import (
    PreferencePair,
    PromptWithReference,
    Sampling,
    ScoreConfig,
    read_pairs,
    roll_out,
    seed_of,
    select_pairs,
    write_pairs,
)
from pasta_lm.learn.judge import Comparison
from pasta_lm.strategies.model import Pasta
from tests.fakes.power_cut import PowerCutError
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


QUESTIONS = [PromptWithReference(f"q{n}", f"Question {n}?\n\u2028") for n in range(5)]
SAMPLING = Sampling(model="m", baseline="b", samples=3, seed=7, max_tokens=40)
Asked = tuple[str, SamplingParams, str]


@dataclass
class Fake:
    """A model whose answers depend on all that they may, and on their company."""

    asked: list[Asked] = field(default_factory=list)
    num_batches_left: int = 1000
    own_penalty: float = 1.0

    @property
    def engine(self) -> Fake:
        return self

    def request(self, prompt: str, params: SamplingParams, *, strategy: str) -> Asked:
        return prompt, params, strategy

    def generate(self, requests: Sequence[Asked]) -> list[list[Answer]]:
        self.num_batches_left -= 1
        if self.num_batches_left < 0:
            raise PowerCutError
        self.asked += requests
        company = "".join(prompt[9] for prompt, *_ in requests)
        return [
            [self._answer(f"{company} {params.seed} {sample}") for sample in range(params.n)]
            for _, params, _ in requests
        ]

    def _answer(self, text: str) -> Answer:
        trace = Trace(kind=Kind.SIMULATED, finish_reason="stop", critical_path=len(text))
        return Answer(parse(text), trace)


def fakes(num_batches: int = 1000) -> tuple[Fake, Callable[[], tuple[Pasta, Pasta]]]:
    """Return a model that breaks down after some batches, and what loads it."""
    model = Fake(num_batches_left=num_batches)
    both = (cast(Pasta, model), cast(Pasta, Fake()))
    return model, lambda: both


def never() -> tuple[Pasta, Pasta]:
    raise AssertionError("a complete journal needs no model")


def silent(num_done: int, num_all: int, left_s: float | None) -> None:
    """Tell nobody."""


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preferences, "BATCH_SIZE", 2)


def test_a_row_has_the_prompt_the_samples_and_the_sampling_settings(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    model, baseline = Fake(own_penalty=1.2), Fake(own_penalty=1.1)
    both = (cast(Pasta, model), cast(Pasta, baseline))
    found = roll_out(path, QUESTIONS, SAMPLING, lambda: both, silent)
    rows: list[Row] = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [row["id"] for row in rows] == [question.id for question in QUESTIONS]
    assert all([*row] == ["id", "prompt", "sampled", "baseline", "samples"] for row in rows)
    counts = {"num_content_tokens", "num_illegal", "num_threads", "num_thought_tokens"}
    names = {"program", "text", "finish_reason", "kind", "wall_s", "critical_path"}
    assert rows[0]["samples"][0].keys() == counts | names
    assert [len(one.samples) for one in found] == [3] * 5
    assert found == roll_out(path, QUESTIONS, SAMPLING, never, silent)
    for (prompt, params, strategy), question in zip(model.asked, QUESTIONS, strict=True):
        assert (prompt, strategy) == (question.prompt, "pasta")
        assert (params.n, params.temperature, params.max_tokens) == (3, 1.0, 40)
        assert (params.seed, params.repetition_penalty) == (seed_of(7, 1, question.id), 1.2)
    for _, params, strategy in baseline.asked:
        assert (params.n, params.temperature, params.max_tokens) == (1, 0.0, 40)
        assert (strategy, params.repetition_penalty) == ("sequential", 1.1)


@pytest.mark.parametrize("num_lines", range(5))
def test_a_journal_truncated_after_any_line_is_completed_identically(
    tmp_path: Path, num_lines: int
) -> None:
    path = tmp_path / "rollouts.jsonl"
    roll_out(path, QUESTIONS, SAMPLING, fakes()[1], silent)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:num_lines]) + lines[num_lines][:9])
    model, load = fakes()
    roll_out(path, QUESTIONS, SAMPLING, load, silent)
    assert path.read_bytes() == whole
    # Company counts in floating point, so the whole batch of a missing row is asked again.
    assert len(model.asked) == 5 - num_lines // 2 * 2


def test_progress_is_reported_before_the_first_batch_and_after_each(tmp_path: Path) -> None:
    told: list[tuple[int, int, float | None]] = []
    path = tmp_path / "rollouts.jsonl"
    with pytest.raises(PowerCutError):
        roll_out(path, QUESTIONS, SAMPLING, fakes(1)[1], lambda *said: told.append(said))
    roll_out(path, QUESTIONS, SAMPLING, fakes()[1], lambda *said: told.append(said))
    assert [said[:2] for said in told] == [(0, 5), (2, 5), (2, 5), (4, 5), (5, 5)]
    assert [said[2] is None for said in told] == [True, False, True, False, False]
    assert told[-1][2] == 0


def test_seeds_depend_only_on_recipe_round_and_prompt() -> None:
    seeds = {seed_of(seed, round, name) for seed in (0, 1) for round in (1, 2) for name in "ab"}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**56 for seed in seeds)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"temperature": 0.7}, "sampled with another temperature"),
        ({"samples": 4, "seed": 1}, "sampled with another seed, samples"),
        ({"model": "other", "round": 2}, "sampled with another model, round"),
    ],
)
def test_a_journal_with_other_sampling_settings_is_refused(
    tmp_path: Path, changes: dict[str, Any], shown: str
) -> None:
    path = tmp_path / "rollouts.jsonl"
    roll_out(path, QUESTIONS[:3], SAMPLING, fakes()[1], silent)
    with pytest.raises(InputError, match=shown):
        roll_out(path, QUESTIONS, replace(SAMPLING, **changes), never, silent)


def test_a_journal_of_other_prompts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    roll_out(path, QUESTIONS, SAMPLING, fakes()[1], silent)
    for others in (QUESTIONS[:3], [PromptWithReference("q0", "Another?"), *QUESTIONS[1:]]):
        with pytest.raises(InputError, match=r"has prompt q\d, which this recipe does not draw"):
            roll_out(path, others, SAMPLING, never, silent)


def test_an_invalid_rollout_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    row = {"id": "q0", "prompt": "?", "sampled": asdict(SAMPLING), "samples": [{}]}
    path.write_text(json.dumps(row) + "\n", "utf-8")
    with pytest.raises(InputError, match="row q0 is no rollout"):
        roll_out(path, [PromptWithReference("q0", "?")], SAMPLING, never, silent)
