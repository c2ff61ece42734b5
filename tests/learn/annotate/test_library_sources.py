"""Data sets of Hugging Face, read as streams by their library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import RemoteError, UsageError
from pasta_lm.learn.annotate.recipe import SourceConfig, read_source

datasets = pytest.importorskip("datasets")


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request out, and no file into the home of whoever runs this."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", tmp_path / "modules")


@pytest.mark.usefixtures("offline")
def test_a_data_set_is_read_by_the_library_and_a_wrong_split_is_named(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "A?"}, {"from": "gpt", "value": "B"}]
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps({"id": "x", "conversations": turns}) + "\n")
    (row,) = read_source(SourceConfig(hub=str(folder)))
    assert (row.id, row.prompt, row.answer) == ("x", "A?", "B")
    with pytest.raises(UsageError, match=r"split validation, revision newest\) cannot be read"):
        list(read_source(SourceConfig(hub=str(folder), split="validation")))


def test_the_hub_is_read_as_a_stream_at_the_given_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def load_dataset(*args: str, **keys: Any) -> Iterator[dict[str, str]]:
        calls.append((args, keys))
        yield {"prompt": "p", "answer": "a"}
        raise RuntimeError("connection reset\nby peer")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = read_source(SourceConfig(hub="some/set", split="test", revision="1a2b3c"))
    assert next(rows).answer == "a"
    with pytest.raises(RemoteError, match="connection reset") as caught:
        next(rows)
    assert "by peer" not in caught.value.message
    keys = {"split": "test", "revision": "1a2b3c", "streaming": True}
    assert calls == [(("some/set",), keys)]
    with pytest.raises(UsageError, match=r"source\.revision would be ignored"):
        SourceConfig(file="x.jsonl", revision="1a2b3c")
