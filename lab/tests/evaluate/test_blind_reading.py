"""Blind reading of stored answers: what readers see, and what their verdicts count."""

from __future__ import annotations

import gzip
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "blind_reading.py"
NUM_PROMPTS, NUM_EQUAL = 9, 1


def run(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, args)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return int(ended.value.code or 0)


@pytest.fixture
def batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Answers to nine prompts, one of them equal, in batches of three pairs."""
    rows: list[dict[str, Any]] = []
    for number in range(NUM_PROMPTS):
        for system in ("pasta", "sequential"):
            text = "Equal." if number < NUM_EQUAL else f"Number {number}, by {system[::-1]}."
            rows.append({"prompt_id": f"alpaca/{number}", "system": system, "text": text})
    stored = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "scored.jsonl.gz").write_bytes(gzip.compress(stored.encode()))
    prompts = [json.dumps({"id": n, "instruction": f"Say {n}."}) for n in range(NUM_PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    sets = json.dumps({"alpaca": str(tmp_path / "prompts.jsonl")})
    out = tmp_path / "batches"
    out.mkdir()
    assert run(monkeypatch, "show", tmp_path, "--out", out, "--sets", sets, "--size", 3) == 0
    return out


def read(batches: Path, preferred: str) -> None:
    """Write verdicts: the answer that holds a word, else a tie."""
    for path in batches.glob("*.txt"):
        items = path.read_text().split("##### ")[1:]
        lines = []
        for number, item in enumerate(items, start=1):
            first, second = item.split("--- ANSWER 1")[1].split("--- ANSWER 2")
            said = "1" if preferred in first else "2" if preferred in second else "="
            lines.append(f"{number} {said}\n")
        path.with_suffix(".verdicts").write_text("".join(lines))


def test_each_pair_is_read_once_in_each_order_and_equal_answers_by_nobody(batches: Path) -> None:
    for order in "ab":
        text = "".join(path.read_text() for path in sorted(batches.glob(f"{order}-*.txt")))
        assert text.count("--- PROMPT") == NUM_PROMPTS - NUM_EQUAL
        assert "Equal." not in text
    for path in batches.glob("a-*.txt"):
        mirrored = (batches / path.name.replace("a-", "b-")).read_text()
        assert path.read_text() != mirrored
        assert sorted(path.read_text()) == sorted(mirrored)


def test_no_system_is_always_first(batches: Path) -> None:
    firsts = [
        item.split("--- ANSWER 2")[0].count("atsap")
        for path in batches.glob("a-*.txt")
        for item in path.read_text().split("##### ")[1:]
    ]
    assert 0 < sum(firsts) < len(firsts)


@pytest.mark.parametrize(
    ("preferred", "rate"), [("atsap", 8.5 / 9), ("laitneuqes", 0.5 / 9), ("nobody", 0.5)]
)
def test_the_win_rate_counts_ties_and_equal_answers_by_half(
    batches: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    preferred: str,
    rate: float,
) -> None:
    read(batches, preferred)
    rows = batches / "rows.jsonl"
    assert run(monkeypatch, "count", rows, "--out", batches, "--reader", "a person") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["all"]["num_pairs"] == NUM_PROMPTS
    assert found["all"]["win_rate"]["mean"] == pytest.approx(rate, abs=1e-5)
    assert found["alpaca"]["order_agreement"] == 1
    assert run(monkeypatch, "figures", rows) == 0
    assert json.loads(capsys.readouterr().out) == found


@pytest.mark.parametrize("damage", ["", "1 3\n", "1 1\n2 =\n", "x 1\n"])
def test_a_missing_or_damaged_verdict_is_named(
    batches: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: str,
) -> None:
    read(batches, "atsap")
    (batches / "a-01.verdicts").write_text(damage)
    rows = batches / "rows.jsonl"
    assert run(monkeypatch, "count", rows, "--out", batches, "--reader", "a person") == 1
    assert "a-01.verdicts" in capsys.readouterr().err
    assert not rows.exists()


@pytest.mark.parametrize(
    ("kind", "verdicts", "rate"),
    [
        # by "pasta" backwards is shorter than by "sequential", and neither repeats a line
        ("shorter", "=11111111", 8.5 / 9),
        ("guards", "=========", 0.5),
    ],
)
def test_a_judge_of_this_process_writes_rows_like_a_reader(
    batches: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    verdicts: str,
    rate: float,
) -> None:
    run_folder, rows = batches.parent, batches / "judged.jsonl.gz"
    sets = json.dumps({"alpaca": str(run_folder / "prompts.jsonl")})
    judge = json.dumps({"kind": kind})
    told = ("--out", rows, "--judge", judge, "--sets", sets)
    assert run(monkeypatch, "judge", run_folder, *told) == 0
    lines = gzip.decompress(rows.read_bytes()).splitlines()
    found = {row["prompt_id"]: row["verdict"] for row in map(json.loads, lines)}
    assert "".join(found[one] for one in sorted(found)) == verdicts
    assert run(monkeypatch, "figures", rows) == 0
    win_rate = json.loads(capsys.readouterr().out)["all"]["win_rate"]["mean"]
    assert win_rate == pytest.approx(rate, abs=1e-5)


@pytest.mark.parametrize(
    ("readings", "said", "num_pairs", "same"),
    [
        ("11 22", "1 2", 2, 1.0),
        ("11 22", "2 2", 2, 0.5),
        ("1= 12", "1 1", 1, 1.0),  # readers who contradict each other decide nothing
        ("11 22", "= =", 2, 0.5),
    ],
)
def test_agreement_is_over_the_pairs_that_readers_decided(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    readings: str,
    said: str,
    num_pairs: int,
    same: float,
) -> None:
    for name, text in (("readers", readings), ("rows", said)):
        rows = [
            {"id": f"{place}/{pair}", "prompt_id": f"p{pair}", "first": "pasta", "verdict": one}
            for pair, all_said in enumerate(text.split())
            for place, one in enumerate(all_said)
        ]
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run(monkeypatch, "figures", tmp_path / "rows", "--readers", tmp_path / "readers") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_pairs"], found["same"]["mean"]) == (num_pairs, same)
