"""``pasta bench``: the documented figures, from real passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pasta_lm.measure import bench
from tests.cli.conftest import Pasta

KEYS = {"kind", "model", "dtype", "machine", "step_ms", "sequential_tokens_per_s"}
KEYS |= {"bandwidth_share"}


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NUM_ROUNDS", 1)
    monkeypatch.setattr(bench, "NUM_STEADY", 4)
    monkeypatch.setattr(bench, "NUM_CONTEXT", 16)


def test_json_has_the_documented_figures(pasta: Pasta, taught_folder: Path) -> None:
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
