"""Rollouts: a killed and resumed run ends with the journal of an uninterrupted one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from pasta_lm.engines.request import Answer, SamplingParams
from pasta_lm.errors import InputError
from pasta_lm.interpreter.trace import Kind, Trace
from pasta_lm.journal import Row
from pasta_lm.language.document import parse
from pasta_lm.learn.data import preferences
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.learn.data.preferences import (
    PromptWithReference,
    Rollout,
    Sampling,
    roll_out,
    seed_of,
)
from pasta_lm.strategies.model import Pasta
from tests.fakes.power_cut import PowerCutError
from tests.tiny import tiny

QUESTIONS = [PromptWithReference(f"q{n}", f"Question {n}?\n\u2028") for n in range(5)]
SAMPLING = Sampling(model="m", baseline="b", samples=3, seed=7, max_tokens=40)
Asked = tuple[str, SamplingParams, str]


@dataclass
class Fake:
    """A model whose answers depend on all that they may, and on their company."""

    asked: list[Asked] = field(default_factory=list)
    num_batches_left: int = 1000

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
    model, baseline = Fake(), Fake()
    both = (cast(Pasta, model), cast(Pasta, baseline))
    found = roll_out(path, QUESTIONS, SAMPLING, lambda: both, silent)
    rows: list[Row] = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [row["id"] for row in rows] == [question.id for question in QUESTIONS]
    assert all([*row] == ["id", "prompt", "sampled", "baseline", "samples"] for row in rows)
    assert rows[0]["samples"][0].keys() == {
        *("program", "text", "finish_reason", "kind", "wall_s"),
        *(
            "critical_path",
            "num_content_tokens",
            "num_illegal",
            "num_threads",
            "num_thought_tokens",
        ),
    }
    assert [len(one.samples) for one in found] == [3] * 5
    assert found == roll_out(path, QUESTIONS, SAMPLING, never, silent)
    for (prompt, params, strategy), question in zip(model.asked, QUESTIONS, strict=True):
        assert (prompt, strategy) == (question.prompt, "pasta")
        assert (params.n, params.temperature, params.max_tokens) == (3, 1.0, 40)
        assert params.seed == seed_of(7, 1, question.id)
    for _, params, strategy in baseline.asked:
        assert (params.n, params.temperature, params.max_tokens) == (1, 0.0, 40)
        assert strategy == "sequential"


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


def test_a_real_engine_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    both = (tiny("model"), tiny("baseline", seed=1))
    sampling = replace(SAMPLING, samples=2, max_tokens=12)
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    found = roll_out(whole, QUESTIONS[:3], sampling, lambda: both, silent)
    parts.write_bytes(whole.read_bytes()[:700])
    again = roll_out(parts, QUESTIONS[:3], sampling, lambda: both, silent)
    assert list(map(but_for_clocks, again)) == list(map(but_for_clocks, found))
    texts = [one.text for rollout in found for one in rollout.samples]
    assert len(set(texts)) > 3
    for one in (sample for rollout in found for sample in rollout.samples):
        assert parse(one.program).plain_text == one.text


def but_for_clocks(rollout: Rollout) -> list[AnswerRecord]:
    return [replace(one, wall_s=None) for one in (rollout.baseline, *rollout.samples)]
