"""Data sets of Hugging Face: read as a stream by the library itself, from a folder, offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import RemoteError, UsageError
from pasta_lm.learn.annotate.sources import SourceConfig, read_source

datasets = pytest.importorskip("datasets")

CHAT = [("human", "A?"), ("gpt", "B"), ("human", "C?"), ("gpt", "D")]
SETS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "slimorca": (
        [
            {"conversations": [
                {"from": "system", "value": "Be brief.", "weight": None},
                {"from": "human", "value": f"Why {n}?", "weight": 0.0},
                {"from": "gpt", "value": "So.\n", "weight": 1.0},
            ]}
            for n in range(3)
        ],
        [(f"Be brief.\n\nWhy {n}?", "So.\n") for n in range(3)],
    ),
    "alpaca": (
        [
            {"instruction": "Do", "input": "this", "output": "ok", "text": "Below is"},
            {"instruction": "Do", "input": "", "output": "caf\u00e9 \u2028 \U0001f35d", "text": ""},
        ],
        [("Do\n\nthis", "ok"), ("Do", "caf\u00e9 \u2028 \U0001f35d")],
    ),
    "sharegpt": (
        [{"id": "x1", "conversations": [{"from": who, "value": text} for who, text in CHAT]}],
        [("A?", "B")],
    ),
    "messages": (
        [{"messages": [
            {"role": "user", "content": "A?"}, {"role": "assistant", "content": " B "},
        ]}],
        [("A?", " B ")],
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request out, and no file into the home of whoever runs this."""
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", tmp_path / "modules")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def make_set(folder: Path, rows: list[dict[str, Any]], split: str = "train") -> str:
    folder.mkdir()
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.mark.parametrize("columns", SETS)
def test_columns_are_detected_or_given(columns: str, tmp_path: Path) -> None:
    rows, expected = SETS[columns]
    name = make_set(tmp_path / columns, rows)
    for told in (None, columns):
        found = list(read_source(SourceConfig(hub=name, columns=told)))
        assert [(row.prompt, row.answer) for row in found] == expected
        assert {row.skipped for row in found} == {None}
    if "id" in rows[0]:
        assert [row.id for row in found] == [row["id"] for row in rows]


def test_the_hub_is_read_as_a_stream_at_the_given_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def load_dataset(*args: str, **keys: Any) -> list[dict[str, str]]:
        asked.append((args, keys))
        return [{"prompt": "p", "answer": "a"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    config = SourceConfig(hub="some/set", split="test", revision="1a2b3c")
    assert [row.answer for row in read_source(config)] == ["a"]
    keys = {"split": "test", "revision": "1a2b3c", "streaming": True}
    assert asked == [(("some/set",), keys)]
    with pytest.raises(UsageError, match=r"source\.revision would be ignored"):
        SourceConfig(file="x.jsonl", revision="1a2b3c")


def test_a_wrong_split_and_a_set_without_files_are_errors(tmp_path: Path) -> None:
    name = make_set(tmp_path / "set", SETS["alpaca"][0])
    with pytest.raises(UsageError, match=r"split validation, revision newest\) cannot be read"):
        list(read_source(SourceConfig(hub=name, split="validation")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty"):
        list(read_source(SourceConfig(hub=str(tmp_path / "empty"))))


def test_a_wrong_id_is_a_usage_error_and_a_missing_network_is_a_remote_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RemoteError, match="no/such-set") as caught:
        list(read_source(SourceConfig(hub="no/such-set")))
    assert "run the same command again" in str(caught.value.hint)

    def load_dataset(*args: str, **keys: Any) -> None:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'no/such-set' doesn't exist")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UsageError, match="Dataset 'no/such-set' doesn't exist") as wrong:
        list(read_source(SourceConfig(hub="no/such-set")))
    assert "source.hub" in str(wrong.value.hint)


def test_a_stream_that_breaks_off_is_an_error_after_the_rows_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stream() -> Iterator[dict[str, str]]:
        yield {"prompt": "p", "answer": "a"}
        raise RuntimeError("connection reset\nby peer")

    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **keys: stream())
    rows = read_source(SourceConfig(hub="some/set"))
    assert next(rows).answer == "a"
    with pytest.raises(RemoteError, match="connection reset") as caught:
        next(rows)
    assert "by peer" not in caught.value.message
