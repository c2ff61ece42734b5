"""A model's own answers: each is on disk when it is complete, and a stopped run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import read_rows, write_rows
from pasta_lm.learn.annotate import own_answers
from pasta_lm.learn.annotate.own_answers import AnswerConfig, answer, instructions_of
from pasta_lm.learn.data.annotated import read_records
from pasta_lm.strategies.model import Pasta
from tests import architectures

ROWS = [{"id": f"i{n}", "instruction": f"Name {n} rivers."} for n in range(5)]


@pytest.fixture(scope="module")
def load() -> Callable[[], Pasta]:
    model = Pasta(TorchEngine(architectures.loaded("llama"), pool_tokens=256))
    return lambda: model


@pytest.fixture
def config(tmp_path: Path) -> AnswerConfig:
    write_rows(tmp_path / "i.jsonl", ROWS)
    where = {"instructions": str(tmp_path / "i.jsonl"), "out": str(tmp_path / "out")}
    return AnswerConfig(model="m", max_tokens=12, **where)


def answers_file(config: AnswerConfig) -> Path:
    return Path(config.out) / "answers.jsonl"


def answers(config: AnswerConfig) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in read_rows(answers_file(config))}


def never() -> Pasta:
    raise AssertionError("the model was loaded")


def test_every_instruction_has_an_answer_without_tags(
    load: Callable[[], Pasta], config: AnswerConfig
) -> None:
    done = answer(config, load)
    rows = answers(config).values()
    assert (done.num_answers, sum(done.counts.values())) == (5, 5)
    assert {row["id"] for row in rows} == {row["id"] for row in ROWS}
    assert all(0 < row["num_tokens"] <= 12 for row in rows)
    assert all(row["ended"] == (row["num_tokens"] < 12) for row in rows)
    assert len({row["answer"] for row in rows}) > 1


def test_an_answer_does_not_depend_on_its_company(
    load: Callable[[], Pasta], config: AnswerConfig
) -> None:
    alone = replace(config, in_flight=1, out=f"{config.out}-alone")
    assert answer(config, load) == answer(alone, load)
    assert answers(config) == answers(alone)


def test_a_stopped_run_goes_on_where_it_was(
    load: Callable[[], Pasta], config: AnswerConfig
) -> None:
    whole = replace(config, out=f"{config.out}-whole")
    answer(whole, load)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(config, load, progress=stop)
    out = answers_file(config)
    kept = out.read_text("utf-8")
    assert kept.count("\n") == 2
    out.write_text(kept + '{"id": "i-', encoding="utf-8")
    done = answer(config, load)
    assert answers(config) == answers(whole)
    assert out.read_text("utf-8").startswith(kept)
    assert answer(config, never) == done


def test_a_continued_file_has_answers_of_one_model_to_these_instructions(
    load: Callable[[], Pasta], config: AnswerConfig, tmp_path: Path
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").write_bytes(b"one")
    config = replace(config, model=str(tmp_path / "m"))
    answer(config, load)
    write_rows(Path(config.instructions), [*ROWS, {"id": "new", "question": "And lakes?"}])
    assert answer(config, load).num_answers == 6, "a file may grow"
    write_rows(Path(config.instructions), [{**ROWS[0], "input": "In Asia."}, *ROWS[1:]])
    with pytest.raises(UsageError, match="i0 was begun with instruction = "):
        answer(config, never)
    write_rows(Path(config.instructions), ROWS)
    with pytest.raises(UsageError, match="was begun with max_tokens = 12, not 9"):
        answer(replace(config, max_tokens=9), never)
    (tmp_path / "m" / "model.safetensors").write_bytes(b"two")
    with pytest.raises(UsageError, match=r"begun with other model \(weights\)"):
        answer(config, never)


def test_a_prompt_that_is_too_long_is_an_answer_that_never_ended(
    load: Callable[[], Pasta], config: AnswerConfig
) -> None:
    long = {"id": "long", "instruction": "river " * 300}
    write_rows(Path(config.instructions), [long, *ROWS])
    answer(replace(config, in_flight=1), load)
    rows = answers(config)
    assert (rows["long"]["answer"], rows["long"]["ended"]) == ("", False)
    assert list(rows) == ["long", *(row["id"] for row in ROWS)]


@pytest.fixture
def some(config: AnswerConfig, tmp_path: Path) -> AnswerConfig:
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("i1\n")
    return replace(config, exclude=str(held_out), limit=3)


def test_instructions_are_asked_in_order_and_none_that_is_held_out(some: AnswerConfig) -> None:
    assert list(instructions_of(some)) == ["i0", "i2", "i3"]


def test_a_complete_file_needs_no_model_and_gives_what_is_usable(some: AnswerConfig) -> None:
    texts = {"i0": "One two three four.", "i2": "No.", "i3": "Five six seven"}
    rows = [
        {"id": name, "answer": text, "num_tokens": 4, "ended": name != "i3"}
        for name, text in texts.items()
    ]
    write_rows(answers_file(some), rows)
    assert answer(some, never) == (3, 12, {"usable": 1, "empty": 1, "cut_off": 1})
    assert read_rows(Path(some.out) / "usable.jsonl") == [
        {"id": "i0", "prompt": "Name 0 rivers.", "answer": texts["i0"]}
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no JSON", "i.jsonl:2: "),
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
        own_answers.read_instructions(path)


def test_without_any_instruction_left_there_is_nothing_to_ask(
    some: AnswerConfig, tmp_path: Path
) -> None:
    (tmp_path / "held_out.txt").write_text("".join(f"{row['id']}\n" for row in ROWS))
    with pytest.raises(InputError, match="no instruction that is not held out"):
        instructions_of(some)


def test_a_limit_of_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"answers\.limit must be above 0"):
        AnswerConfig(model="m", instructions="i", out="o", limit=0)


STARTER = Path(__file__).parents[3] / "corpora" / "starter" / "starter.jsonl"

SENTENCE = "The river rises in the hills and turns to the south before it reaches the sea."
ITEM = "It is a good choice for a family with two small children and a dog."

UNUSABLE = [
    ("Name a river.", "", "empty"),
    ("Name a river.", "The Rhine", "empty"),
    ("Name a river.", "...!", "empty"),
    ("Name a river.", f"{SENTENCE} \ufffd\ufffd", "garbage"),
    ("Name a river.", f"{SENTENCE} \x00", "garbage"),
    ("Name a river.", "It is the " + "ab" * 40, "garbage"),
    ("Name a river.", "Это большая река на юге.", "language"),
    ("Name a river.", "As an AI language model, I have no rivers.", "refusal"),
    ("Name a river.", "I'm sorry for the confusion, but as a chatbot, I only chat.", "refusal"),
    ("Name a river.", "I’m sorry, but I can’t assist with that.", "refusal"),
    ("Name a river.", "I'm not equipped to provide names.", "refusal"),
    ("Name five rivers of the north.", "Name five rivers of the north.", "echo"),
    ('Make this spooky: "We walked to the gate."', "We walked to the gate.", "echo"),
    ("Name rivers.", f"{SENTENCE} {SENTENCE} {SENTENCE}", "loops"),
    ("Name rivers.", "1. Rhine\n2. Elbe\n3. Rhine\n4. Elbe\n5. Rhine", "loops"),
    (
        "Two dogs?",
        f"Here are two:\n\n- **Pug**: {ITEM}\n- **Lab**: {ITEM}\n- **Pom**: {ITEM}",
        "loops",
    ),
]

USABLE = [
    ("Name a river.", "It's the Rhine."),
    ("Name a river.", SENTENCE),
    ("Write to my boss that I am ill.", "I'm sorry, but I can't come in today: I have a fever."),
    ("Translate into Russian: a big river", "Это большая река."),
    ("How do you spell москва?", "Москва, столица России."),
    ("Which is heavier, a kilo of feathers or a kilo of lead on the moon?", "A kilo of lead."),
    ("Link?", "See https://example.org/" + "a" * 80 + " for more."),
    ("Name rivers.", f"{SENTENCE} It is long. {SENTENCE[:20]}"),
    ("Name rivers.", "1. Rhine\n2. Elbe\n3. Oder\n4. Main\n5. Rhine"),
    ("Add?", "```py\na + b\n```\nand\n```py\nsum(ab)\n```\nor\n```py\nadd(a, b)\n```"),
]


@pytest.mark.parametrize(("instruction", "answer", "reason"), UNUSABLE)
def test_an_unusable_answer_has_a_reason(instruction: str, answer: str, reason: str) -> None:
    assert own_answers.why_unusable(instruction, answer) == reason


@pytest.mark.parametrize(("instruction", "answer"), USABLE)
def test_an_ordinary_answer_can_be_used(instruction: str, answer: str) -> None:
    assert own_answers.why_unusable(instruction, answer) is None


@pytest.mark.parametrize("answer", ["", SENTENCE])
def test_an_answer_that_a_limit_cut_is_left_out(answer: str) -> None:
    assert own_answers.why_unusable("Name a river.", answer, has_ended=False) == "cut_off"


@pytest.mark.parametrize(
    ("words", "share"),
    [("", 0), ("a b c", 0), ("a b a b", 0.5), ("a a a", 2 / 3), ("a b c a b d a b", 0.5)],
)
def test_repeated_words_are_those_in_a_sequence_seen_before(words: str, share: float) -> None:
    assert own_answers.repeated_words(words.split(), length=2) == pytest.approx(share)


def test_the_rules_leave_out_no_more_than_two_of_a_thousand_good_answers() -> None:
    left_out = [
        record.id
        for record in read_records(STARTER)
        if own_answers.why_unusable(record.prompt, record.document.plain_text) is not None
    ]
    assert len(left_out) <= 2, left_out
