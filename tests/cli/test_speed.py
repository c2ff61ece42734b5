"""``pasta evaluate speed`` on records made by hand."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Pasta


def test_table_and_json_have_the_same_figures(pasta: Pasta, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    rows = [
        {
            "task_id": str(n),
            "strategy": name,
            "text": "x" * 9,
            "num_content_tokens": 8,
            "critical_path": path,
            "wall_s": path / 10,
        }
        for n in range(3)
        for name, path in (("sequential", 8), ("pasta", 4))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pasta("evaluate", "speed", file)
    assert (table.code, table.err) == (0, "")
    lines = [line.split() for line in table.out.splitlines()]
    assert ["realised", "speedup", "2.000", "2.000", "2.000", "3"] in lines
    found = pasta("evaluate", "speed", file, "--json").json
    assert found["systems"]["pasta"]["realised_speedup"]["mean"] == 2.0
    assert [*found["systems"]] == ["sequential", "pasta"]
