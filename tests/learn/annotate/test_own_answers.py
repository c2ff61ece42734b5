"""A model's own answers: each is on disk when it is complete, and a stopped run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.errors import UsageError
from pasta_lm.learn.annotate import own_answers as module
from pasta_lm.learn.annotate.own_answers import OWN_SAMPLING, own_answers, usable_answers
from pasta_lm.strategies.model import Pasta
from tests import architectures

INSTRUCTIONS = {f"i-{number}": f"Name {number} rivers." for number in range(5)}
SAMPLING = replace(OWN_SAMPLING, max_tokens=12)


@pytest.fixture(scope="module")
def model() -> Pasta:
    return Pasta(TorchEngine(architectures.loaded("llama"), pool_tokens=256))


def answers(rows: list[dict[str, object]]) -> dict[object, object]:
    return {row["id"]: row["answer"] for row in rows}


def test_every_instruction_has_an_answer_without_tags(model: Pasta, tmp_path: Path) -> None:
    rows = own_answers(model, INSTRUCTIONS, SAMPLING, tmp_path / "raw.jsonl")
    assert [row["id"] for row in rows] == list(INSTRUCTIONS)
    assert all(0 < row["num_tokens"] <= 12 and row["temperature"] == 0.3 for row in rows)
    assert all(row["ended"] == (row["num_tokens"] < 12) for row in rows)
    assert len(set(answers(rows).values())) > 1


def test_an_answer_does_not_depend_on_its_company(
    model: Pasta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = own_answers(model, INSTRUCTIONS, SAMPLING, tmp_path / "together.jsonl")
    monkeypatch.setattr(module, "IN_FLIGHT", 1)
    alone = own_answers(model, INSTRUCTIONS, SAMPLING, tmp_path / "alone.jsonl")
    assert answers(alone) == answers(together)


def test_a_stopped_run_goes_on_where_it_was(model: Pasta, tmp_path: Path) -> None:
    whole = own_answers(model, INSTRUCTIONS, SAMPLING, tmp_path / "whole.jsonl")
    out = tmp_path / "stopped.jsonl"

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own_answers(model, INSTRUCTIONS, SAMPLING, out, progress=stop)
    kept = out.read_text("utf-8")
    assert kept.count("\n") == 2
    out.write_text(kept + '{"id": "i-', encoding="utf-8")
    assert own_answers(model, INSTRUCTIONS, SAMPLING, out) == whole
    assert out.read_text("utf-8").startswith(kept)
    assert own_answers(model, INSTRUCTIONS, SAMPLING, out) == whole


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"temperature": 1.0}, "begun with temperature = 0.3, not 1.0"),
        ({"n": 2}, "n is 2"),
    ],
)
def test_a_file_of_another_run_is_refused(
    model: Pasta, tmp_path: Path, changed: Mapping[str, float], message: str
) -> None:
    out = tmp_path / "raw.jsonl"
    row = {"id": "i-0", "answer": "Rhine", "num_tokens": 1, "ended": True, "temperature": 0.3}
    out.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        own_answers(model, INSTRUCTIONS, replace(SAMPLING, **changed), out)


def test_a_prompt_that_is_too_long_is_an_answer_that_never_ended(
    model: Pasta, tmp_path: Path
) -> None:
    (row,) = own_answers(model, {"i": "river " * 300}, SAMPLING, tmp_path / "raw.jsonl")
    assert (row["answer"], row["ended"]) == ("", False)


def test_usable_answers_are_counted_with_the_reasons_of_the_others() -> None:
    texts = ["The Rhine and the Elbe.", "Rhine", "The Elbe and"]
    rows = [
        {"id": f"i-{number}", "answer": text, "ended": number != 2}
        for number, text in enumerate(texts)
    ]
    kept, reasons = usable_answers(rows, INSTRUCTIONS)
    assert kept == rows[:1]
    assert reasons == {"usable": 1, "empty": 1, "cut_off": 1}
