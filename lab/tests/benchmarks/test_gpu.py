"""The GPU benchmark runs on a CPU with a tiny model, continues where it was cut, and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks import gpu
from lab.benchmarks.gpu import CUT, DONE, FAILED, SECTIONS, Section, run

TINY = {"device": "cpu", "is_tiny": True}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("gpu") / "out.json"
    run(path, TINY, list(SECTIONS), seconds=600)
    return gpu.read(path)


@pytest.mark.slow
def test_every_section_is_done_and_has_figures(results: dict[str, Any]) -> None:
    assert {name: one["status"] for name, one in results.items()} == dict.fromkeys(SECTIONS, DONE)
    assert results["graphs"]["differing"] == 0
    assert results["steps"]["step_ms"].keys() == {"1", "2", "4"}
    assert results["answers"]["theoretical_speedup"] > 1
    assert len(results["answers"]["pairs"]) == 2
    assert len(results["draws"]) == len(results["draws_small"]) == 1 + 3 * 2
    assert [row["requests"] for row in results["requests"]["loads"]] == [1, 2]


def test_a_second_run_continues_with_the_unfinished_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    assert "RuntimeError: no memory" in capsys.readouterr().out
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


def test_sizes_are_those_of_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, sizes = dict[str, Any](), list[int]()
    monkeypatch.setattr(gpu, "free_bytes", lambda device: 80_000)

    def reading_s(num_bytes: int, device: object) -> float:
        sizes.append(num_bytes)
        return 1.0

    monkeypatch.setattr(gpu, "reading_s", reading_s)
    gpu.machine(Section("cpu", is_tiny=False, deadline=0, write=figures.update))
    assert sizes == [10_000]


def test_a_new_process_goes_on_where_the_gpu_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise gpu.DeviceLost

    started = list[list[str]]()
    monkeypatch.setattr(gpu, "SECTIONS", {"machine": (lambda at: None, 9.0)})
    monkeypatch.setattr(gpu, "_clean_up", lost)
    monkeypatch.setattr(gpu.os, "execv", lambda _, arguments: started.append(arguments))
    monkeypatch.setattr(gpu.sys, "argv", ["gpu.py", str(tmp_path / "out.json"), "--seconds", "60"])
    gpu.main()
    assert started[0][3:] == ["--seconds", "60", "--go-on", "--seconds", "60"]
