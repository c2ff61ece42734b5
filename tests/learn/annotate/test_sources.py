from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.errors import InputError, MissingExtraError, RemoteError, UsageError
from pasta_lm.language.document import Document
from pasta_lm.learn.annotate import recipe
from pasta_lm.learn.annotate.filters import examine
from pasta_lm.learn.annotate.layout_rule import markdown_rule, topic, units
from pasta_lm.learn.annotate.recipe import SourceConfig, read_source
from pasta_lm.learn.data.annotated import read_records
from tests.learn.annotate.runs import by_rule

SLIMORCA = {
    "conversations": [
        {"from": "system", "value": "Be brief.", "weight": None},
        {"from": "human", "value": "Why?", "weight": 0.0},
        {"from": "gpt", "value": "So.\n", "weight": 1.0},
    ]
}
CASES: list[tuple[str, Any, tuple[str, str, str | None]]] = [
    ("slimorca", SLIMORCA, ("Be brief.\n\nWhy?", "So.\n", None)),
    (
        "sharegpt",
        {"id": "x", "conversations": [
            {"from": "human", "value": "A?"}, {"from": "gpt", "value": "B"},
            {"from": "human", "value": "C?"}, {"from": "gpt", "value": "D"},
        ]},
        ("A?", "B", None),
    ),
    (
        "messages",
        {"messages": [
            {"role": "user", "content": "A?"}, {"role": "assistant", "content": " B "},
        ]},
        ("A?", " B ", None),
    ),
    ("alpaca", {"instruction": "Do", "input": "this", "output": "ok"}, ("Do\n\nthis", "ok", None)),
    ("alpaca", {"instruction": "Do", "input": "", "output": "ok"}, ("Do", "ok", None)),
    ("pairs", {"prompt": "A?", "answer": "B"}, ("A?", "B", None)),
    ("alpaca", {"instruction": "Do", "output": " \n"}, ("Do", " \n", "no_answer")),
    ("alpaca", {"instruction": "", "output": "ok"}, ("", "ok", "no_prompt")),
    ("messages", {"messages": [{"role": "user", "content": "A?"}]}, ("A?", "", "no_answer")),
    ("messages", {"messages": [{"role": "user", "content": None}]}, ("", "", "no_columns")),
    ("alpaca", {"instruction": 3, "output": "ok"}, ("", "", "no_columns")),
    ("pairs", {"prompt": "\ud800", "answer": "B"}, ("", "", "not_unicode")),
    (
        "sharegpt",
        {"conversations": {"from": ["human", "gpt"], "value": ["A?", "B"]}},
        ("A?", "B", None),
    ),
    ("sharegpt", {"conversations": {"from": ["human"], "value": []}}, ("", "", "no_columns")),
    (
        "annotated",
        {"messages": [{"role": "user", "content": "A?"}],
         "response": 'B <promise topic="c" tokens="1"/><async>&lt;sync/></async><sync/> D'},
        ("A?", "B <sync/> D", None),
    ),
    ("dolly", {"instruction": "Do", "context": "it", "response": "ok"}, ("Do\n\nit", "ok", None)),
    ("annotated", {"messages": [], "response": "</async>"}, ("", "", "no_columns")),
]  # fmt: skip


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize(("columns", "row", "expected"), CASES)
def test_the_columns_of_each_data_set_make_a_prompt_and_an_answer(
    columns: str, row: Any, expected: tuple[str, str, str | None], is_told: bool, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n\n")
    (found,) = read_source(SourceConfig(file=str(path), columns=columns if is_told else None))
    assert (found.prompt, found.answer, found.skipped) == expected


def test_text_that_no_column_holds_skips_a_row_unless_its_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "p", "answer": "a", "context": "c", "url": "u"}))
    for columns, reason in ((None, "unread_context"), ("pairs", None)):
        (row,) = read_source(SourceConfig(file=str(path), columns=columns))
        assert (row.prompt, row.answer, row.skipped) == ("p", "a", reason)


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "A?"},
    {"role": "assistant", "content": "B", "reasoning_content": "Hm."},
]


@pytest.mark.parametrize(
    ("row", "num_turns", "answer", "thought"),
    [
        ({"messages": [*TALK, {"role": "user", "content": "C?"}]}, 2, "B", "Hm."),
        ({"system": "Be brief.", "question": "A?", "response": "D"}, 2, "D", None),
        (
            {"messages": [*TALK, TALK[1]], "annotated": "E", "reasoning_content": "So."},
            4,
            "E",
            "So.",
        ),
    ],
)
def test_the_messages_of_a_row_are_those_of_its_record(
    row: dict[str, Any], num_turns: int, answer: str, thought: str | None, tmp_path: Path
) -> None:
    run = by_rule(tmp_path, [json.dumps(row), json.dumps(row | {"id": "b"})])
    assert run.tally.num_rows == {"ok": 2}
    for record in read_records(run.files[0]):
        expected = [*TALK, TALK[1]][:num_turns]
        assert [turn["content"] for turn in record.messages] == [t["content"] for t in expected]
        assert [turn["role"] for turn in record.messages] == [t["role"] for t in expected]
        assert (record.document.plain_text, record.reasoning) == (answer, thought)
    again = by_rule(tmp_path, [json.dumps(row), json.dumps(row | {"id": "b"})])
    assert again.tally.num_rows == {"ok": 2}, "the journal has the same rows"


def test_a_row_without_an_id_gets_a_stable_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "p", "answer": answer} for answer in ("a", "b", "a")]
    path.write_text("\n".join(map(json.dumps, [*rows, {**rows[0], "id": 0}])))
    ids = [row.id for row in read_source(SourceConfig(file=str(path)))]
    assert ids == [row.id for row in read_source(SourceConfig(file=str(path)))]
    assert ids[0] == ids[2] != ids[1]
    assert ids[3] == "0"


def test_a_source_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(read_source(SourceConfig(file=str(tmp_path / "none.jsonl"))))
    with pytest.raises(InputError, match="cannot be read"):
        list(read_source(SourceConfig(file=str(tmp_path))))
    with pytest.raises(UsageError, match="exactly one"):
        SourceConfig()
    with pytest.raises(UsageError, match="one of slimorca"):
        SourceConfig(file="x", columns="orca")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*annotate"):
        list(read_source(SourceConfig(hub="some/set")))


datasets = pytest.importorskip("datasets")


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request out, and no file into the home of whoever runs this."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", tmp_path / "modules")


@pytest.mark.usefixtures("offline")
def test_a_data_set_is_read_by_the_library_and_a_wrong_split_is_named(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "A?"}, {"from": "gpt", "value": "B"}]
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps({"id": "x", "conversations": turns}) + "\n")
    (row,) = read_source(SourceConfig(hub=str(folder)))
    assert (row.id, row.prompt, row.answer) == ("x", "A?", "B")
    with pytest.raises(UsageError, match=r"split validation, revision newest\) cannot be read"):
        list(read_source(SourceConfig(hub=str(folder), split="validation")))


def test_the_hub_is_read_as_a_stream_at_the_given_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def load_dataset(*args: str, **keys: Any) -> Iterator[dict[str, str]]:
        calls.append((args, keys))
        yield {"prompt": "p", "answer": "a"}
        raise RuntimeError("connection reset\nby peer")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = read_source(SourceConfig(hub="some/set", split="test", revision="1a2b3c"))
    assert next(rows).answer == "a"
    with pytest.raises(RemoteError, match="connection reset") as caught:
        next(rows)
    assert "by peer" not in caught.value.message
    keys = {"split": "test", "revision": "1a2b3c", "streaming": True}
    assert calls == [(("some/set",), keys)]
    with pytest.raises(UsageError, match=r"source\.revision would be ignored"):
        SourceConfig(file="x.jsonl", revision="1a2b3c")


MORE = " and then some more words so that there is something to gain from a thread of its own"
ITEMS = (
    f"- **Sleep:** go to bed at ten{MORE}.\n- **Light:** turn the lamps off{MORE}.\n"
    f"- **Noise:** wear soft earplugs{MORE}."
)
STEPS = (
    "1. Soak the stone in water for ten minutes.\n2. Lay the blade flat at twenty degrees.\n"
    "3. Draw the edge over it five times."
)
LEAVES = (
    f"Oak is dense and burns slowly, with a long-lasting bed of embers{MORE}.\n\n"
    f"Ash dries fast, splits cleanly and gives a steady flame{MORE}."
)
SUMS = (
    f"- First shelf: 27 times 480 grams make 12,960 grams{MORE}.\n"
    f"- Second shelf: 41 times 350 grams make 14,350 grams{MORE}."
)
LETTER = (
    "Dear Ms Novak,\n\nThank you for the talk this morning and for all the time you took.\n\n"
    "Thank you as well for the coffee, which was the best that I ever had."
)
BODY = "    a = a + 1\n    b = b + 2\n    c = a + b + 3\n    return a * b * c\n"
CODE = f"```\ndef first(a):\n{BODY}```\n\n```\ndef second(a):\n{BODY}```"
PARTS = f"**One:** a b c{MORE}.\n\n**Two:** g h i{MORE}."
PETS = f"They sleep a lot each day{MORE}.\n\n{{}}Dogs{{}}\n\nThey run a lot each day{MORE}."

LINES = st.sampled_from(
    ["# A", "```", f"- b c{MORE}", "  - c", f"1. d: e{MORE}", "**f** g", "| h | i |", "**J**"]
    + [f"Ash is a tree, and a fine one{MORE}.", "So all of it is <sync/> here.", "", " "]
)


# An answer, and its units with markers and labels in brackets.
CUT = [
    ("One. Two! Three?", ["One.", "Two!", "Three?"]),
    ("Dr. J. Smith paid 3.50, e.g. He left.", ["Dr. J. Smith paid 3.50, e.g. He left."]),
    ('She said "Go." Then she left.', ['She said "Go."', "Then she left."]),
    ("- A dog barks.\n- A cat meows.", ["[- ]A dog barks.", "[- ]A cat meows."]),
    ("1. **Cell wall:** stiff.", ["[1. **Cell wall:** ]stiff."]),
    ("2) **Rent** - high", ["[2) **Rent** - ]high"]),
    ("Florida: warm and flat", ["[Florida: ]warm and flat"]),
    ("* `add`: sums up", ["[* `add`: ]sums up"]),
    ("**Week 1: Basics**", ["**Week 1: Basics**"]),
    ('"Flight: A History"', ['"Flight: A History"']),
    ("## Heading", ["[## ]Heading"]),
    ("1. ", ["1."]),
    ("It is 10:30 now", ["It is 10:30 now"]),
    (
        "```py\na = 1\nb = 2\n\nc = 3\n```\nDone.",
        ["```py", "a = 1\nb = 2", "c = 3", "```", "Done."],
    ),
    ("```\nno end", ["```", "no end"]),
    (" \n\n", []),
    ("", []),
]


def topics(prompt: str, text: str) -> list[str]:
    return [block.topic for block in markdown_rule(prompt, text).blocks]


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("Tips for sleep?", f"Three:\n\n{ITEMS}", ["Sleep", "Light", "Noise"]),
        ("How do I sharpen a knife?", STEPS, []),
        ("Five tips for blades?", STEPS.replace("Draw", "Then draw"), []),  # items are too short
        ("How tall?", f"1. **Day 1:** walk ten{MORE}.\n2. **Day 2:** walk back{MORE}.", []),
        ("oak or ash for the stove?", LEAVES, ["Oak", "Ash"]),
        ("What burns well?", LEAVES, []),  # their names are not in the question
        ("Write to Ms Novak", LETTER, []),
        ("Two functions", CODE, ["def first(a", "def second(a"]),
        ("Two", CODE.replace("```\n\n", "```\n\nNow call it once more:\n\n"), []),
        ("?", "**Cats**\n\n" + PETS.format("**", "**"), ["Cats", "Dogs"]),
        ("?", "# Cats\n\n" + PETS.format("# ", ""), ["Cats", "Dogs"]),
        ("One?", PARTS + "\n\n**Verdict:** m n o p q r.", ["One", "Two"]),  # what concludes is none
        ("?", "- a b\n- c d\n- e f", []),  # blocks have five words or more
        ("?", "", []),
    ],
)  # fmt: skip
def test_parts_that_stand_apart_are_blocks_unless_they_look_like_steps(
    prompt: str, text: str, expected: list[str]
) -> None:
    assert topics(prompt, text) == expected


@pytest.mark.parametrize(
    ("file", "sha256_start"),
    [("starter/starter", "e53a2847ccfdac67"), ("own_answers/own_answers", "20cfc16139a872c1")],
)
def test_the_annotation_of_a_corpus_never_changes(file: str, sha256_start: str) -> None:
    records = read_records(Path(__file__).parents[3] / "corpora" / f"{file}.jsonl")
    answers = ((record.prompt, record.document.plain_text) for record in records)
    programs = "".join(markdown_rule(*answer).program for answer in answers)
    assert sha256(programs.encode()).hexdigest().startswith(sha256_start)


@pytest.mark.parametrize(
    ("prompt", "closing", "has_sync"),
    [
        (
            "Which shelf carries more, and how much do both?",
            "The second carries more, by 1,390 grams. Together: 12,960 + 14,350 = 27,310 grams.",
            True,
        ),
        ("Two shelves?", "Remember to dust them now and then.", False),
        ("Two shelves?", "Good luck!", False),
        ("Two shelves?", "", False),
    ],
)
def test_a_sync_stands_before_a_closing_text_that_needs_the_blocks(
    prompt: str, closing: str, has_sync: bool
) -> None:
    document = markdown_rule(prompt, f"{SUMS}\n\n{closing}".rstrip())
    assert len(document.blocks) == 2
    assert document.num_syncs == has_sync


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_the_rule_keeps_any_text_and_passes_the_filters(text: str) -> None:
    document = markdown_rule("Ash or oak?", text)
    assert document.plain_text == text
    assert isinstance(examine(document.annotator_form(), text), Document)


@pytest.mark.parametrize(
    ("lead", "expected"),
    [
        ("The cell wall of plants", "cell wall of"),
        ("**Why?**", "Why"),
        ("???", "part"),
        ("a" * 90, "a" * 64),
    ],
)
def test_a_topic_has_at_most_three_words(lead: str, expected: str) -> None:
    assert topic(lead) == expected


@pytest.mark.parametrize(("answer", "lines"), CUT)
def test_an_answer_is_cut_into_sentences_lines_and_paragraphs_of_code(
    answer: str, lines: list[str]
) -> None:
    cut = [
        (f"[{answer[begin:inside]}]" if inside > begin else "") + answer[inside:end]
        for begin, inside, end in units(answer)
    ]
    assert cut == lines


@pytest.mark.parametrize("answer", [ITEMS, SUMS, *(answer for answer, _ in CUT)])
def test_units_hold_all_but_white_space_in_order(answer: str) -> None:
    found = units(answer)
    assert all(begin <= inside < end for begin, inside, end in found)
    assert all(one.end <= other.begin for one, other in pairwise(found))
    assert " ".join(answer[one.begin : one.end] for one in found).split() == answer.split()
