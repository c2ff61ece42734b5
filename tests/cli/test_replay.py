"""``pasta replay``: annotated answers through a real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pasta_lm.measure import bench
from tests.cli.conftest import Pasta
from tests.tiny import SIZES

RESPONSE = (
    'Two. <promise topic="a" tokens="1"/><async>One two three four five.</async> '
    '<promise topic="b" tokens="1"/><async>Six seven eight nine ten.</async><sync/> Done.'
)
ROW = {"id": "x", "messages": [{"role": "user", "content": "Count."}], "response": RESPONSE}
FIGURES = {"num_threads_mean", "theoretical_speedup", "realised_speedup", "efficiency"}
FIGURES |= {"parallelism", "sequential_tokens_per_s", "parallel_tokens_per_s"}


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    file = tmp_path / "answers.jsonl"
    plain = {**ROW, "id": "y", "response": "No block at all."}
    file.write_text(f"{json.dumps(ROW)}\n{json.dumps(plain)}\n")
    return file


def test_json_has_the_documented_figures(pasta: Pasta, answers: Path, taught_folder: Path) -> None:
    result = pasta("replay", answers, "--model", taught_folder, "--json")
    assert (result.code, result.err) == (0, "")
    assert FIGURES | {"kind", "num_documents", "device", "model", "multi_block"} <= set(result.json)
    assert result.json["kind"] == "replayed"
    assert (result.json["num_documents"], result.json["multi_block"]["num_documents"]) == (2, 1)


def test_the_table_names_kind_weights_and_hardware(
    pasta: Pasta, answers: Path, tmp_path: Path
) -> None:
    architecture = tmp_path / "tiny.json"
    architecture.write_text(json.dumps({"model_type": "llama", "vocab_size": 300, **SIZES}))
    result = pasta("replay", answers, "--random", architecture)
    assert (result.code, result.err) == (0, "")
    for line in (
        "kind: replayed",
        "weights: random-weights",
        "hardware: cpu (",
        "realised speedup",
    ):
        assert line in result.out
    assert "\x1b" not in result.out


def test_broken_lines_are_named_and_the_rest_is_decoded(
    pasta: Pasta, answers: Path, taught_folder: Path
) -> None:
    answers.write_text(f'{json.dumps(ROW)}\n{{"broken\n\n{{"response": "<sync"}}\n')
    result = pasta("replay", answers, "--model", taught_folder, "--json")
    assert result.code == 3
    assert result.json["num_documents"] >= 1
    assert result.err.startswith(f"{answers}:2: not JSON")


def test_positions_and_threads_are_flags(pasta: Pasta, answers: Path, taught_folder: Path) -> None:
    flags = ("--positions", "oracle", "--max-threads", 2, "--json")
    result = pasta("replay", answers, "-m", taught_folder, *flags)
    assert (result.code, result.json["positions"], result.err) == (0, "oracle", "")


def test_a_model_without_tag_pieces_is_given_rows_for_them(
    pasta: Pasta, answers: Path, untaught_folder: Path
) -> None:
    result = pasta("replay", answers, "--model", untaught_folder, "--json")
    assert (result.code, result.json["num_documents"]) == (0, 2)
    assert result.json["multi_block"]["num_threads_mean"] == 3
    assert result.json["weights"] == "given, tag rows added"
    (said,) = result.err.splitlines()
    assert "has no tag pieces" in said


KEYS = {"kind", "model", "dtype", "machine", "step_ms", "sequential_tokens_per_s"}
KEYS |= {"bandwidth_share"}


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NUM_ROUNDS", 1)
    monkeypatch.setattr(bench, "NUM_STEADY", 4)
    monkeypatch.setattr(bench, "NUM_CONTEXT", 16)


def test_a_benchmark_has_the_documented_figures(pasta: Pasta, taught_folder: Path) -> None:
    flags = ("-m", taught_folder, "--rows", "1,3", "--threads", 1, "--json")
    result = pasta("bench", *flags)
    assert (result.code, result.err) == (0, "")
    found = result.json
    assert set(found) == KEYS
    assert (found["kind"], found["dtype"]) == ("replayed", "float32")
    assert set(found["step_ms"]) == {"1", "3"}
    assert found["machine"]["cpu"]
    loads = pasta("bench", *flags, "--requests", "1,3").json["load"]
    assert set(loads) == {"1", "3"}
    assert all(one["sequential_s"] > 0 and one["pasta_s"] > 0 for one in loads.values())


def test_the_tables_name_the_figures_and_the_machine(pasta: Pasta, untaught_folder: Path) -> None:
    result = pasta("bench", "-m", untaught_folder, "--rows", "2", "--requests", "2")
    assert (result.code, result.err) == (0, "")
    for part in ("ms a pass", "share of the bandwidth limit", "median latency", "float32"):
        assert part in result.out
