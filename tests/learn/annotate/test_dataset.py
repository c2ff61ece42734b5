"""The records that are made from a journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pasta_lm.language import check
from pasta_lm.learn.annotate.dataset import RECORDS
from tests.learn.annotate.runs import by_rule


def annotated(folder: Path, *answers: str) -> Path:
    """Annotate answers by rule, and return the folder of the set."""
    rows = [{"id": n, "prompt": f"p{n}", "answer": answer} for n, answer in enumerate(answers)]
    by_rule(folder, map(json.dumps, rows))
    return folder / "out"


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RECORDS).read_bytes().split(b"\n") if line]


def test_spaces_before_a_part_are_written_into_its_block(tmp_path: Path) -> None:
    listed = "Three:\n" + f"  - one two three four five{' six' * 9}\n" * 3
    (record,) = records_of(annotated(tmp_path, listed))
    assert record["annotated"].count("> one two") == 3
    assert check(record["annotated"], "annotator") == []
