"""The script for readers shows usable answers once, and names bad marks by file and line."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.language.document import parse

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "reading.py"))
SUM = "The sum of both is what you pay in the end."
RENT, HEAT = "You pay it on the first of a month.", "You pay it once in a year."
ANSWER = f"1. **Rent**: {RENT}\n2. **Heat**: {HEAT}\n{SUM}"
TEXTS = {"i-1": ANSWER, "i-2": SUM, "i-3": "Rent", "i-4": SUM, "i-5": SUM}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Write answers and instructions; the fourth is held out, the last was cut off."""
    answers, asked = tmp_path / "answers.jsonl", tmp_path / "instructions.jsonl"
    write(
        answers,
        [{"id": name, "answer": text, "ended": name != "i-5"} for name, text in TEXTS.items()],
    )
    write(
        asked,
        [
            {"id": name, "instruction": f"Ask {name}", "shape": "list", "parts": "one"}
            for name in TEXTS
        ],
    )
    (tmp_path / "held_out.txt").write_text("i-4\n", encoding="utf-8")
    return answers, asked


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_batches_hold_usable_answers_and_each_is_shown_once(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "batches"
    SCRIPT["show"](*files, folder, 3, False)
    assert not list(folder.iterdir())  # two answers make no whole batch
    SCRIPT["show"](*files, folder, 1, False)
    SCRIPT["show"](*files, folder, 1, True)
    assert [file.name for file in sorted(folder.iterdir())] == ["001.txt", "002.txt"]
    assert (folder / "001.txt").read_text("utf-8") == (
        f"### i-1\nAsk i-1\n1| [1. **Rent**: ]{RENT}\n2| [2. **Heat**: ]{HEAT}\n3| {SUM}\n"
    )


def test_marks_become_rows_whose_text_is_the_answer(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    marks, out = tmp_path / "marks.txt", tmp_path / "out.jsonl"
    marks.write_text("i-2: skip dull\n\ni-1: 1 rent; 2 heat; s3\n", encoding="utf-8")
    assert SCRIPT["apply"](marks, *files, out, lambda text: len(text.split())) == 0
    (row,) = map(json.loads, out.read_text("utf-8").splitlines())
    document = parse(row["response"])
    assert (row["id"], document.plain_text, document.num_syncs) == ("i-1", ANSWER, 1)
    assert [(block.topic, block.units) for block in document.blocks] == [("rent", 1), ("heat", 1)]
    assert json.loads((tmp_path / "out.counts.json").read_text("utf-8")) == {
        "sampled": 4,
        "rules": {"empty": 1, "cut_off": 1},
        "reader": {"dull": 1},
        "not_read": 0,
        "twice": 0,
    }


def test_bad_marks_are_named_by_file_and_line_and_the_others_are_kept(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "marks", tmp_path / "out.jsonl"
    folder.mkdir()
    lines = ["i-1: 1 rent; 2 heat", "i-1: -", "i-9: -", "i-4: -", "i-2: 1 x", "what"]
    (folder / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    assert SCRIPT["apply"](folder, *files, out, len) == 5
    named = [line for line in capsys.readouterr().err.splitlines() if line.startswith(str(folder))]
    assert [line.removeprefix(f"{folder}/a.txt:")[:13] for line in named] == [
        "2: i-1 was ma",
        "3: i-9 is not",
        "4: i-4 is not",
        "5: i-2: no_ga",
        "6: no 'ID: ma",
    ]
    assert len(out.read_text("utf-8").splitlines()) == 1


def test_answers_of_a_batch_without_marks_are_named(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, marks = tmp_path / "batches", tmp_path / "marks.txt"
    SCRIPT["show"](*files, folder, 2, False)
    marks.write_text("i-2: -\n", encoding="utf-8")
    assert (
        SCRIPT["missing"](folder, marks) == SCRIPT["missing"](folder / "001.txt", marks) == ["i-1"]
    )


def test_joined_parts_have_one_answer_to_an_instruction_and_rather_one_with_blocks(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    parts = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for part, lines in zip(parts, ["i-1: -\ni-2: -", "i-1: 1 rent; 2 heat\ni-2: -"], strict=True):
        (tmp_path / "marks.txt").write_text(lines, encoding="utf-8")
        assert SCRIPT["apply"](tmp_path / "marks.txt", *files, part, len, part.stem) == 0
    SCRIPT["join"](tmp_path / "all.jsonl", parts)
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text("utf-8").splitlines()]
    assert [(row["id"], row["provenance"][-5:]) for row in rows] == [
        ("i-1", "; two"),
        ("i-2", "; one"),
    ]
    counts = json.loads((tmp_path / "all.counts.json").read_text("utf-8"))
    assert (counts["sampled"], counts["rules"], counts["twice"]) == (
        8,
        {"empty": 2, "cut_off": 2},
        2,
    )
