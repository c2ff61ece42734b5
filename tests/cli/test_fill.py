"""``pasta fill`` and ``pasta ask`` of many documents: a row each, whatever stops the command."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.documents import Window
from tests.cli.conftest import Pasta

pytest.importorskip("llguidance")

SCHEMA = {"properties": {"hotel": {"enum": ["Sol", "Aurora"]}, "nights": {"enum": [2, 3]}}}
DOCS = [{"id": f"d{n}", "text": f"Letter {n}."} for n in range(5)]
CLASS = """
from typing import Literal
import pydantic
class Stay(pydantic.BaseModel):
    hotel: Literal["Sol"]
    nights: Literal[2, 3]
"""


def write_lines(rows: Any) -> None:
    Path("docs.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")


@pytest.fixture
def rest(untaught_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the flags of a job, in a folder with its files."""
    monkeypatch.chdir(tmp_path)
    Path("s.json").write_text(json.dumps(SCHEMA), "utf-8")
    write_lines(DOCS)
    Path("letters").mkdir()
    for row in DOCS:
        Path("letters", row["id"]).write_text(row["text"], "utf-8")
    return "--schema", "s.json", "--model", untaught_folder


def rows(file: str) -> list[Any]:
    return [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]


def test_documents_from_everywhere_are_rows_and_the_same_command_changes_none(
    pasta: Pasta, rest: Any
) -> None:
    expected = [pasta("fill", f"Read.\n\n{row['text']}", *rest, "--json").json for row in DOCS]
    lines = Path("docs.jsonl").read_text("utf-8")
    for out, words in (
        ("a.jsonl", ("docs.jsonl", "Read.")), ("b.jsonl", ("-", "Read.")),
        ("c.jsonl", ("Read.", "letters/")), ("d.jsonl", ("Read.", "-f", "letters")),
    ):  # fmt: skip
        result = pasta("fill", *words, *rest, "--out", out, "--limit", 2, stdin=lines)
        assert (result.code, result.out, len(rows(out))) == (0, "", 2)
        result = pasta("fill", *words, *rest, "--out", out, stdin=lines)
        assert f"{out}: 5 of 5 rows, 3 new" in result.err
        assert [row["id"] for row in rows(out)] == [row["id"] for row in DOCS]
        assert [row["data"] for row in rows(out)] == [values["data"] for values in expected]
        assert rows(out)[0].keys() == {"id", "data", "confidence", "spans", "unfinished"}
    whole = Path("a.jsonl").read_bytes()
    review = ("--review-below", 1, "r.jsonl")
    again = pasta("fill", "docs.jsonl", "Read.", *rest, "--out", "a.jsonl", *review)
    assert "5 of 5 rows, 0 new\n" in again.err
    assert "loading" not in again.err
    assert [row["id"] for row in rows("r.jsonl")] == [row["id"] for row in DOCS]
    assert rows("r.jsonl")[0]["below"].keys() == {"hotel", "nights"}
    other = pasta("fill", "docs.jsonl", "Look.", *rest, "--out", "a.jsonl")
    assert (other.code, Path("a.jsonl").read_bytes()) == (2, whole)
    assert "a.jsonl was begun with other settings: prompt" in other.err
    shutil.copytree(rest[-1], "moved")
    moved = ("fill", "docs.jsonl", "Read.", *rest[:-1], "moved", "--out", "a.jsonl")
    assert pasta(*moved).code == 0
    with Path("moved/model.safetensors").open("ab") as weights:
        weights.write(b" ")
    assert "a.jsonl was begun with other settings: model (weights)" in pasta(*moved).err


def test_values_that_a_class_checks_are_rows_of_json(pasta: Pasta, rest: Any) -> None:
    Path("stays_of_fill.py").write_text(CLASS, "utf-8")
    how = ("--schema", "stays_of_fill:Stay", *rest[2:], "--out", "o.jsonl")
    assert pasta("fill", "docs.jsonl", *how).code == 0
    assert all({*row["data"].values()} <= {"Sol", 2, 3} for row in rows("o.jsonl"))


def test_questions_of_many_documents_are_columns_with_their_shares(pasta: Pasta, rest: Any) -> None:
    asked = ("ask", "docs.jsonl", "Who?", "Is it paid?", "--choices", "yes,no", *rest[2:])
    result = pasta(*asked, "--out", "a.csv", "--review-below", 0.0, "r.jsonl")
    head, *lines = Path("a.csv").read_text("utf-8").splitlines()
    assert head == "id,Who?,Is it paid?,confidence.Who?,confidence.Is it paid?,unfinished,error"
    assert (result.code, rows("r.jsonl")) == (0, [])
    for line, row in zip(lines, DOCS, strict=True):
        name, *choices, who, paid, _, _ = line.split(",")
        assert (name, {*choices} <= {"yes", "no"}) == (row["id"], True)
        assert min(float(who), float(paid)) >= 0.5


@pytest.mark.parametrize(
    ("bad", "schema", "code", "shown"),
    [
        ({"id": "x"}, SCHEMA, 3, "1 documents failed, the first: x: it needs a text"),
        (None, {"properties": {"a": {"type": "string", "minLength": 99}}}, 1,
         "5 documents have unfinished parts (cut or unreadable), see the rows\n    hint: raise"),
    ],
)  # fmt: skip
def test_the_exit_code_says_whether_documents_failed_or_were_cut_also_the_second_time(
    pasta: Pasta, rest: Any, bad: Any, schema: Any, code: int, shown: str
) -> None:
    Path("s.json").write_text(json.dumps(schema), "utf-8")
    write_lines([*DOCS[:2], *([bad] if bad else []), *DOCS[2:]])
    for _ in range(2):
        result = pasta("fill", "docs.jsonl", *rest, "--max-tokens", 30, "--out", "o.jsonl")
        assert (result.code, len(rows("o.jsonl"))) == (code, 5 + bool(bad))
        assert shown in result.err


@pytest.mark.parametrize("presses", [1, 2])
def test_a_first_ctrl_c_finishes_what_is_in_flight_and_a_second_one_stops_at_once(
    pasta: Pasta, rest: Any, monkeypatch: pytest.MonkeyPatch, presses: int
) -> None:
    assert pasta("fill", "docs.jsonl", *rest, "--out", "whole.jsonl").code == 0
    outcomes, whole = Window.outcomes, Path("whole.jsonl").read_bytes()

    def interrupted(self: Any, documents: Any) -> Any:
        yield next(ready := outcomes(self, documents))[: None if presses == 1 else 1]
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        yield from ready

    with monkeypatch.context() as patch:
        patch.setattr(Window, "outcomes", interrupted)
        patch.setattr("pasta_lm.documents.AT_ONCE", 2)
        stopped = pasta("fill", "docs.jsonl", *rest, "--out", "o.jsonl")
    num_rows = len(rows("o.jsonl"))
    assert (stopped.code, num_rows < 5, num_rows > 1) == (130, True, presses == 1)
    assert whole.startswith(Path("o.jsonl").read_bytes())
    assert "documents in flight are finished; Ctrl-C again stops at once" in stopped.err
    assert "the same command continues the run" in stopped.err
    assert pasta("fill", "docs.jsonl", *rest, "--out", "o.jsonl").code == 0
    assert Path("o.jsonl").read_bytes() == whole


@pytest.mark.slow
def test_killed_at_twenty_random_moments_a_job_loses_no_row_and_repeats_none(
    pasta: Pasta, rest: Any
) -> None:
    write_lines([{"id": n, "text": f"Letter {n}."} for n in range(400)])
    pasta("fill", "docs.jsonl", *rest, "--out", "whole.jsonl")
    whole, rng, out = Path("whole.jsonl").read_bytes(), random.Random(0), Path("o.jsonl")
    command = [sys.executable, "-m", "pasta_lm", "fill", "docs.jsonl", *map(str, rest)]
    for _ in range(20):
        process = subprocess.Popen([*command, "--out", "o.jsonl"], stderr=subprocess.DEVNULL)
        due = (out.stat().st_size if out.exists() else 0) + rng.randrange(1, len(whole) // 15)
        while process.poll() is None and (not out.exists() or out.stat().st_size < due):
            time.sleep(0.001)
        process.kill()
        process.wait()
        assert whole.startswith(out.read_bytes())
    assert pasta("fill", "docs.jsonl", *rest, "--out", "o.jsonl").code == 0
    assert out.read_bytes() == whole
