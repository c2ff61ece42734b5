"""A journal loses no row and repeats none, wherever its process was killed."""

from __future__ import annotations

import builtins
import gzip
import json
import math
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.journal import Journal, Row, line_of, read_objects, read_rows, write_rows
from pasta_lm.recipe import read_recipe, toml_of
from pasta_lm.run_folder import RunFolder, hash_files

ROWS: list[Row] = [
    {"id": "one", "text": "first\nline"},
    {"id": "two", "text": "caf\u00e9 \u2028 \x85 \x1c"},
    {"id": "three", "numbers": [1, 2.5, -3e-9]},
]


def written(path: Path, rows: list[Row]) -> bytes:
    Journal(path).append(rows)
    return path.read_bytes()


def test_what_was_appended_is_found_again_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "journal.jsonl"
    journal = Journal(path)
    journal.append(ROWS[:2])
    journal.append(ROWS[2:])
    assert list(journal.rows.values()) == ROWS
    assert list(Journal(path).rows.values()) == ROWS == read_rows(path)
    assert [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] == ROWS


def test_cut_at_every_byte_of_its_last_line_it_goes_on_to_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, ROWS)
    last = len(whole) - len(line_of(ROWS[2]))
    for size in range(last, len(whole) + 1):
        path.write_bytes(whole[:size])
        journal = Journal(path)
        num_rows = 3 if size == len(whole) else 2
        assert list(journal.rows.values()) == ROWS[:num_rows]
        assert path.read_bytes() == (whole if num_rows == 3 else whole[:last])
        journal.append([row for row in ROWS if row["id"] not in journal.rows])
        assert path.read_bytes() == whole


def test_a_line_of_zeros_is_torn_too(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, ROWS)
    path.write_bytes(whole + b"\0" * 4096)
    assert len(Journal(path).rows) == 3
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"id": 3}', b"{}", b"\xff"])
def test_damage_before_the_last_line_is_named_and_nothing_is_cut(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "journal.jsonl"
    damaged = line_of(ROWS[0]) + line + b"\n" + line_of(ROWS[1])
    path.write_bytes(damaged)
    message = r"journal\.jsonl(:2: no JSON object with an id| cannot be read)"
    with pytest.raises(InputError, match=message):
        Journal(path)
    assert path.read_bytes() == damaged


def test_no_id_stands_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(ROWS[:1])
    with pytest.raises(ValueError, match="has a row one already"):
        journal.append(ROWS[:1])
    path.write_bytes(line_of(ROWS[0]) * 2)
    with pytest.raises(InputError, match=":2: one occurs twice"):
        read_rows(path)


def test_a_file_that_is_written_at_once_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, ROWS)
    write_rows(path, ROWS[:1])
    assert read_rows(path) == ROWS[:1]
    assert [one.name for one in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_file_that_is_not_there_a_folder_and_other_bytes_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    for read in (read_rows, lambda path: list(read_objects(path))):
        with pytest.raises(InputError, match=r"no such file: .*absent\.jsonl"):
            read(tmp_path / "absent.jsonl")
        for path in (tmp_path, tmp_path / "latin.jsonl"):
            with pytest.raises(InputError, match=f"{path}.*cannot be read"):
                read(path)


HALF = {"id": "half", "text": "\ud83d"}
"""JSON can hold half a surrogate pair as an escape; UTF-8 cannot."""


def test_a_row_with_half_a_surrogate_pair_is_kept_and_so_are_the_others(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).append([ROWS[0], HALF, ROWS[1]])
    assert list(Journal(path).rows.values()) == [ROWS[0], HALF, ROWS[1]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (line_of(HALF), "rows.jsonl:2: a text holds half a surrogate pair: it is no Unicode"),
        (b"{\n", "rows.jsonl:2: not JSON: .* at column"),
        (b'{"id": "a", "id": "b"}', "rows.jsonl:2: it cannot be read: the key 'id' stands twice"),
        (b"[]\n", "rows.jsonl:2: not a JSON object"),
    ],
)
def test_the_line_of_a_users_file_that_is_no_object_is_named(
    tmp_path: Path, line: bytes, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line_of(ROWS[0]) + line)
    objects = read_objects(path)
    assert next(objects) == (1, ROWS[0])
    with pytest.raises(InputError, match=message):
        next(objects)


@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_row(
    tmp_path: Path, packed: bool
) -> None:
    data = b"\xef\xbb\xbf" + b"".join(map(line_of, ROWS)).replace(b"}\n", b"}\r\n")
    path = tmp_path / ("rows.jsonl.gz" if packed else "rows.jsonl")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert read_rows(path) == ROWS == [row for _, row in read_objects(path)]


@pytest.mark.parametrize("damage", [b"no gzip", gzip.compress(b"x" * 99, mtime=0)[:-9]])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(damage)
    for read in (read_rows, lambda path: list(read_objects(path))):
        with pytest.raises(InputError, match=r"rows\.jsonl\.gz cannot be read"):
            read(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    mode: Literal["fast", "exact"] = "exact"
    systems: tuple[System, ...] = ()
    beta: float | str = "auto"
    extra: System | None = None
    own: System = field(default_factory=lambda: System(name="own"))


def read_config(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return read_recipe(path, Config)


def test_tables_lists_of_tables_and_infinity_are_read(tmp_path: Path) -> None:
    text = 'mode = "fast"\nbeta = inf\nsystems = [{name = "a"}, {name = "b", weight = 2}]\n'
    systems = (System(name="a"), System(name="b", weight=2.0))
    found = read_config(tmp_path, text + 'extra.name = "c"')
    assert found == Config(mode="fast", beta=math.inf, systems=systems, extra=System(name="c"))
    assert type(found.systems[1].weight) is float


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('mode = "slow"', "mode is 'slow'", "one of fast, exact"),
        ("systems = 3", "systems must be a valid array, not 3", None),
        ("systems = [3]", "systems must be an object, not 3", None),
        ("systems = [{}]", "systems.name is missing", None),
        ('systems = [{nam = "a"}]', "unknown key systems.nam", "did you mean 'name'?"),
        ("beta = []", "beta must be a valid number or a valid string, not []", None),
        ("extra = {}", "extra.name is missing", None),
        ('own = {name = "x", weight = true}', "own.weight must be a valid number, not True", None),
    ],
)
def test_a_mistake_is_named_by_its_key(
    tmp_path: Path, text: str, message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(tmp_path, text)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_missing_pydantic_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = builtins.__import__

    def without_pydantic(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pydantic":
            raise ImportError(name)
        return find(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_pydantic)
    with pytest.raises(UsageError, match="need pydantic") as caught:
        read_config(tmp_path, "")
    assert caught.value.hint == "pip install 'pydantic>=2.9'"


def test_a_recipe_that_was_written_reads_back_as_it_was(tmp_path: Path) -> None:
    data = {
        "name": 'a "quoted" \u00e9\\n',
        "count": 3,
        "none": None,
        "most": float("inf"),
        "names": ["one", "two"],
        "table": {"is_on": True, "rate": 1e-05, "inner": {"key": "value"}, "empty": {}},
    }
    text = toml_of(data, ["said by", "two lines"])
    assert text.startswith("# said by\n# two lines\n")
    del data["none"]
    assert tomllib.loads(text) == data


SETTINGS = {"model": "a", "train": {"rate": float("inf"), "steps": 3}}
STORED = [{"id": "one", "text": "caf\u00e9"}, {"id": "two"}]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "new" / "run")


@pytest.mark.parametrize(
    ("begun", "message"),
    [
        ({"a": {"b": 1}, "c": 3}, "run was begun with a.b = 1, not 2"),
        ({"a": {"b": 2}, "c": 4, "of an old version": 1}, "run was begun with c = 4, not 3"),
        ({"c": 4}, "run was begun with a.b = None, not 2; c = 4, not 3"),
    ],
)
def test_changed_settings_are_named(run: RunFolder, begun: dict[str, Any], message: str) -> None:
    run.begin(begun)
    with pytest.raises(UsageError, match=f"{message}\n"):
        run.begin({"a": {"b": 2}, "c": 3})
    run.begin({"a": {"b": 2}, "c": 3}, may_change={"a.b", "c"})


def test_a_run_continues_with_its_settings_but_for_those_that_no_result_depends_on(
    run: RunFolder,
) -> None:
    assert not run.has_begun
    run.begin(SETTINGS)
    assert run.has_begun
    run.begin(SETTINGS)
    with pytest.raises(UsageError, match=r"run was begun with train\.steps = 3, not 4"):
        run.begin({"model": "a", "train": {"rate": float("inf"), "steps": 4}})
    assert run.settings() == SETTINGS
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


def test_a_model_that_is_known_by_other_parts_than_before_is_another_one(run: RunFolder) -> None:
    run.begin(SETTINGS, inputs={"model (weights)": "w", "data": "d"})
    with pytest.raises(UsageError, match=r"begun with other model \(name\)"):
        run.begin(SETTINGS, inputs={"model (name)": "hub/id", "data": "d"})


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
    run.journal("answers").append(STORED)
    assert run.rows("answers") == STORED


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
    run.begin(settings)
    run.begin(settings)  # it goes on with the same settings
    assert run.settings()["judge"] == {"base_url": "http://a:8000/v1,http://b/v1", "mail": "a@b.c"}
    assert "secret" not in toml_of(settings)
