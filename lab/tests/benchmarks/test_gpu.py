"""The GPU benchmark runs on a CPU with a tiny model, continues where it was cut, and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks import gpu
from lab.benchmarks.gpu import CUT, DONE, FAILED, SECTIONS, SHAPES, Section, run

TINY = {
    "device": "cpu",
    "is_tiny": True,
    "shape": SHAPES / "tiny.json",
    "answers": gpu.ANSWERS,
    "weights": None,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("gpu") / "out.json"
    run(path, TINY, list(SECTIONS), seconds=600)
    return gpu.read(path)


def test_every_section_is_done_and_has_figures(results: dict[str, Any]) -> None:
    assert {name: one["status"] for name, one in results.items()} == dict.fromkeys(SECTIONS, DONE)
    (row,) = results["exactness"]["architectures"]
    assert row["float32_worst"] <= 1e-4
    assert results["steps"]["step_ms"].keys() == {"1", "2", "4"}
    assert results["answers"]["theoretical_speedup"] > 1
    assert len(results["answers"]["pairs"]) == 2
    assert all(row["device_ms"] > 0 for row in results["host"]["steps"])
    assert [row["requests"] for row in results["requests"]["loads"]] == [1, 2]


def test_a_second_run_continues_with_the_unfinished_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def fails(at: Section) -> None:
        called.append("fails")
        at.note(half=1)
        raise RuntimeError("no memory")

    def cut(at: Section) -> None:
        called.append("cut")
        at.was_cut = len(called) < 4

    def done(at: Section) -> None:
        called.append("done")

    sections = {"fails": (fails, 9.0), "done": (done, 9.0), "cut": (cut, 9.0)}
    monkeypatch.setattr(gpu, "SECTIONS", sections)
    path = tmp_path / "out.json"
    run(path, TINY, list(sections))
    first = gpu.read(path)
    assert [section["status"] for section in first.values()] == [FAILED, DONE, CUT]
    assert "no memory" in first["fails"]["error"]
    assert first["fails"]["half"] == 1
    run(path, TINY, list(sections))
    assert called == ["fails", "done", "cut", "fails", "cut"]
    assert gpu.read(path)["cut"]["status"] == DONE


def test_no_section_begins_when_the_time_is_over(tmp_path: Path) -> None:
    run(tmp_path / "out.json", TINY, list(SECTIONS), seconds=-1)
    assert not (tmp_path / "out.json").exists()
