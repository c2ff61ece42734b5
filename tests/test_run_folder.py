"""A run continues with the settings that it began with, and overwrites nothing by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.recipe import toml_of
from pasta_lm.run_folder import RunFolder, hash_files

SETTINGS = {"model": "a", "train": {"rate": float("inf"), "steps": 3}}
ROWS = [{"id": "one", "text": "caf\u00e9"}, {"id": "two"}]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "new" / "run")


def test_the_same_settings_continue_a_run(run: RunFolder) -> None:
    assert not run.has_begun
    assert run.begin(SETTINGS)
    assert run.has_begun
    assert not run.begin(SETTINGS)
    assert run.settings() == SETTINGS


def test_other_settings_are_refused_and_the_first_ones_stay(run: RunFolder) -> None:
    run.begin(SETTINGS)
    with pytest.raises(UsageError, match=r"run was begun with train\.steps = 3, not 4"):
        run.begin({"model": "a", "train": {"rate": float("inf"), "steps": 4}})
    assert run.settings() == SETTINGS


def test_settings_that_no_result_depends_on_may_change_and_are_stored(run: RunFolder) -> None:
    run.begin(SETTINGS)
    changed = SETTINGS | {"model": "b"}
    run.begin(changed, may_change={"model"})
    assert run.settings() == changed


def test_files_of_other_contents_are_refused_and_moved_ones_are_not(
    run: RunFolder, tmp_path: Path
) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    first.write_text("a")
    second.write_text("b")
    run.begin(SETTINGS, inputs={"data": hash_files(first, second), "model": "m"})
    moved = first.rename(tmp_path / "moved")
    run.begin(SETTINGS, inputs={"data": hash_files(moved, second), "other": "o"})
    stamp = moved.stat()
    moved.write_text("c")  # of the same size and time
    os.utime(moved, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    for files in ((moved, second), (second,), (second, second, second)):
        with pytest.raises(UsageError, match="begun with other data, model"):
            run.begin(SETTINGS, inputs={"data": hash_files(*files), "model": "n", "other": "o"})


def test_a_folder_whose_inputs_failed_holds_no_run(run: RunFolder) -> None:
    def fail() -> None:
        raise InputError("no such file: prompts.jsonl")

    with pytest.raises(InputError, match="no such file"):
        run.begin(SETTINGS, prepare=fail)
    assert not run.has_begun
    run.begin(SETTINGS, prepare=lambda: (run.path / "prompts.jsonl").touch())
    run.begin(SETTINGS, prepare=fail)  # the inputs are there already
    assert (run.path / "prompts.jsonl").exists()


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_damaged_settings_are_named(run: RunFolder, text: str) -> None:
    with pytest.raises(InputError, match="is not the folder of a run"):
        run.settings()
    run.begin(SETTINGS)
    (run.path / "settings.json").write_text(text)
    with pytest.raises(InputError, match="settings.json"):
        run.begin(SETTINGS)


def test_a_run_is_replaced_only_on_request(run: RunFolder) -> None:
    run.require_new()
    run.begin(SETTINGS)
    (run.path / "checkpoint-1").mkdir()
    with pytest.raises(UsageError, match="has a run already") as caught:
        run.require_new()
    assert "--resume" in str(caught.value.hint)
    run.require_new(resume=True)
    assert run.has_begun
    run.require_new(overwrite=True)
    assert list(run.path.iterdir()) == []
    with pytest.raises(UsageError, match="exclude each other"):
        run.require_new(resume=True, overwrite=True)


def test_files_that_are_no_run_are_never_deleted(run: RunFolder) -> None:
    run.path.mkdir(parents=True)
    (run.path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="holds files, but no run"):
        run.require_new(overwrite=True)
    assert (run.path / "thesis.tex").exists()


def test_rows_are_read_from_the_journal(run: RunFolder) -> None:
    assert run.rows("answers") == []
    run.journal("answers").append(ROWS)
    assert run.rows("answers") == ROWS


def test_one_process_at_a_time_holds_a_folder(run: RunFolder) -> None:
    with (
        run.locked(),
        pytest.raises(UsageError, match="another process is writing"),
        RunFolder(run.path).locked(),
    ):
        pass
    with run.locked():
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = RunFolder(tmp_path / "file" / "run")
    with pytest.raises(PastaError, match="run cannot be written: Not a directory"):
        run.begin(SETTINGS)
    with pytest.raises(PastaError, match="run cannot be written: Not a directory"), run.locked():
        pass


def test_no_file_of_a_run_holds_the_password_of_an_address(tmp_path: Path) -> None:
    urls = "http://me:secret@a:8000/v1,http://b/v1"
    run, settings = RunFolder(tmp_path / "run"), {"judge": {"base_url": urls, "mail": "a@b.c"}}
    assert run.begin(settings)
    assert not run.begin(settings), "it goes on with the same settings"
    assert run.settings()["judge"] == {"base_url": "http://a:8000/v1,http://b/v1", "mail": "a@b.c"}
    assert "secret" not in toml_of(settings)
