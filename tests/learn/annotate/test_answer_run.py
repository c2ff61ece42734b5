"""The recipe of own answers: which instructions are asked, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import write_rows
from pasta_lm.learn.annotate.answer_run import AnswerConfig, answer, asked, read_instructions
from pasta_lm.strategies.model import Pasta

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
    assert asked(config) == {"i0": "Say 0.", "i2": "Say 2.", "i3": "Say 3."}


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

    found = answer(config, never)
    assert found == (3, 12, {"usable": 2, "empty": 1})
    lines = (tmp_path / "out" / "usable.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": name, "prompt": f"Say {name[1]}.", "answer": texts[name]} for name in ("i0", "i3")
    ]


@pytest.mark.parametrize(
    "line",
    ["no JSON", "[]", '{"id": "a"}', '{"instruction": "b"}', '{"id": 1, "instruction": "b"}'],
)
def test_a_line_without_an_instruction_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "i.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    with pytest.raises(InputError, match=r"i\.jsonl:2: "):
        read_instructions(path)


def test_an_id_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "i.jsonl"
    path.write_text(2 * (json.dumps(ROWS[0]) + "\n"))
    with pytest.raises(InputError, match="occurs twice"):
        read_instructions(path)


def test_without_any_instruction_left_there_is_nothing_to_ask(
    config: AnswerConfig, tmp_path: Path
) -> None:
    (tmp_path / "held_out.txt").write_text("".join(f"{row['id']}\n" for row in ROWS))
    with pytest.raises(InputError, match="no instruction that is not held out"):
        asked(config)


def test_a_limit_of_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"answer\.limit must be above 0"):
        AnswerConfig(model="m", instructions="i", out="o", limit=0)
