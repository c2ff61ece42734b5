"""A model's own answers: each is on disk when it is complete, and a stopped run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import write_rows
from pasta_lm.learn.annotate.own_answers import (
    OWN_SAMPLING,
    AnswerConfig,
    answer,
    instructions_of,
    own_answers,
    read_instructions,
    usable_answers,
)
from pasta_lm.strategies.model import Pasta
from tests import architectures

INSTRUCTIONS = {f"i-{number}": f"Name {number} rivers." for number in range(5)}
SAMPLING = replace(OWN_SAMPLING, temperature=0.3, max_tokens=12)


@pytest.fixture(scope="module")
def model() -> Pasta:
    return Pasta(TorchEngine(architectures.loaded("llama"), pool_tokens=256))


def answers(rows: list[dict[str, object]]) -> dict[object, object]:
    return {row["id"]: row["answer"] for row in rows}


def test_every_instruction_has_an_answer_without_tags(model: Pasta, tmp_path: Path) -> None:
    rows = own_answers(lambda: model, INSTRUCTIONS, SAMPLING, tmp_path / "raw.jsonl")
    assert [row["id"] for row in rows] == list(INSTRUCTIONS)
    assert all(0 < row["num_tokens"] <= 12 and row["temperature"] == 0.3 for row in rows)
    assert all(row["ended"] == (row["num_tokens"] < 12) for row in rows)
    assert len(set(answers(rows).values())) > 1


def test_an_answer_does_not_depend_on_its_company(model: Pasta, tmp_path: Path) -> None:
    together = own_answers(lambda: model, INSTRUCTIONS, SAMPLING, tmp_path / "together.jsonl")
    alone = own_answers(
        lambda: model, INSTRUCTIONS, SAMPLING, tmp_path / "alone.jsonl", in_flight=1
    )
    assert answers(alone) == answers(together)


def test_a_stopped_run_goes_on_where_it_was(model: Pasta, tmp_path: Path) -> None:
    whole = own_answers(lambda: model, INSTRUCTIONS, SAMPLING, tmp_path / "whole.jsonl")
    out = tmp_path / "stopped.jsonl"

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own_answers(lambda: model, INSTRUCTIONS, SAMPLING, out, progress=stop)
    kept = out.read_text("utf-8")
    assert kept.count("\n") == 2
    out.write_text(kept + '{"id": "i-', encoding="utf-8")
    assert own_answers(lambda: model, INSTRUCTIONS, SAMPLING, out) == whole
    assert out.read_text("utf-8").startswith(kept)
    assert own_answers(lambda: model, INSTRUCTIONS, SAMPLING, out) == whole


def test_a_file_of_another_temperature_is_refused(model: Pasta, tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    row = {"id": "i-0", "answer": "Rhine", "num_tokens": 1, "ended": True, "temperature": 0.3}
    out.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="begun with temperature = 0.3, not 1.0"):
        own_answers(lambda: model, INSTRUCTIONS, replace(SAMPLING, temperature=1.0), out)


def test_a_prompt_that_is_too_long_is_an_answer_that_never_ended(
    model: Pasta, tmp_path: Path
) -> None:
    texts = {"long": "river " * 300, **INSTRUCTIONS}
    rows = own_answers(lambda: model, texts, SAMPLING, tmp_path / "raw.jsonl", in_flight=1)
    assert (rows[0]["answer"], rows[0]["ended"]) == ("", False)
    assert [row["id"] for row in rows] == list(texts)


def test_usable_answers_are_counted_with_the_reasons_of_the_others() -> None:
    texts = ["The Rhine and the Elbe.", "Rhine", "The Elbe and"]
    rows = [
        {"id": f"i-{number}", "answer": text, "ended": number != 2}
        for number, text in enumerate(texts)
    ]
    kept, reasons = usable_answers(rows, INSTRUCTIONS)
    assert kept == rows[:1]
    assert reasons == {"usable": 1, "empty": 1, "cut_off": 1}


ROWS = [{"id": f"i{n}", "instruction": f"Say {n}."} for n in range(5)]


@pytest.fixture
def config(tmp_path: Path) -> AnswerConfig:
    """Return a recipe of five instructions, one of them held out."""
    write_rows(tmp_path / "i.jsonl", ROWS)
    (tmp_path / "held_out.txt").write_text("i1\n")
    return AnswerConfig(
        model="m",
        instructions=str(tmp_path / "i.jsonl"),
        exclude=str(tmp_path / "held_out.txt"),
        out=str(tmp_path / "out"),
        limit=3,
    )


def test_instructions_are_asked_in_order_and_none_that_is_held_out(config: AnswerConfig) -> None:
    assert instructions_of(config) == {"i0": "Say 0.", "i2": "Say 2.", "i3": "Say 3."}


def test_a_complete_file_needs_no_model_and_gives_what_is_usable(
    config: AnswerConfig, tmp_path: Path
) -> None:
    texts = {"i0": "One two three four.", "i2": "No.", "i3": "Five six seven eight."}
    rows = [
        {"id": name, "answer": text, "num_tokens": 4, "ended": True, "temperature": 0.3}
        for name, text in texts.items()
    ]
    write_rows(tmp_path / "out" / "answers.jsonl", rows)

    def never() -> Pasta:
        raise AssertionError("the model was loaded")

    assert answer(config, never) == (3, 12, {"usable": 2, "empty": 1})
    lines = (tmp_path / "out" / "usable.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": name, "prompt": f"Say {name[1]}.", "answer": texts[name]} for name in ("i0", "i3")
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no JSON", "i.jsonl:2: "),
        ("[]", "i.jsonl:2: "),
        ('{"instruction": "b"}', "i.jsonl:2: "),
        ('{"id": 1, "instruction": "b"}', "i.jsonl:2: "),
        ('{"id": "a"}', "row a has no instruction"),
        (json.dumps(ROWS[0]), "i0 occurs twice"),
    ],
)
def test_a_line_without_an_instruction_of_its_own_is_named(
    line: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "i.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    with pytest.raises(InputError, match=message):
        read_instructions(path)


def test_without_any_instruction_left_there_is_nothing_to_ask(
    config: AnswerConfig, tmp_path: Path
) -> None:
    (tmp_path / "held_out.txt").write_text("".join(f"{row['id']}\n" for row in ROWS))
    with pytest.raises(InputError, match="no instruction that is not held out"):
        instructions_of(config)


def test_a_limit_of_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"answers\.limit must be above 0"):
        AnswerConfig(model="m", instructions="i", out="o", limit=0)
