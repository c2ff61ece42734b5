"""A model of the cache is the model: the same bits, without its files being loaded again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pasta_lm.engines.cpu import prepared
from pasta_lm.engines.local import loading
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.runner import KeyRecorder
from pasta_lm.engines.request import SamplingParams
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.models.folder import PastaConfig, save_model_folder
from pasta_lm.strategies.model import Pasta
from pasta_lm.strategies.requests import POSITIONS, Positions
from tests.tiny import tiny


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a taught model, in an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(prepared, "MIN_BYTES", 0)
    loaded = tiny("tiny").engine.loaded
    assert isinstance(loaded, LoadedModel)
    vocabulary = loaded.vocabulary
    config = PastaConfig(
        piece_ids=vocabulary.piece_ids, positions=PositionStrategy.PREDICT, limits=Limits()
    )
    save_model_folder(loaded.model, vocabulary.tokenizer, tmp_path / "model", config)  # type: ignore[arg-type]
    return tmp_path / "model"


def kept(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache" / "pasta-lm" / "prepared").glob("*"))


def logits(model: LoadedModel) -> torch.Tensor:
    tokens = torch.arange(9) + 5
    with torch.inference_mode():
        return model.logits(tokens, tokens, torch.arange(9), KeyRecorder())


def refuse(*_: object, **__: object) -> LoadedModel:
    raise AssertionError("the model is loaded from its own files")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "auto"])
def test_the_second_start_reads_the_cache_and_has_the_same_bits(
    dtype: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = loading.load(folder, dtype=dtype, device="cpu")
    first = prepared.load(folder, dtype=dtype, device="cpu")
    monkeypatch.setattr(loading, "load", refuse)
    second = prepared.load(folder, dtype=dtype, device="cpu")
    for model in (first, second):
        assert torch.equal(logits(model), logits(whole))
        assert (model.dtype, model.dtype_name) == (whole.dtype, whole.dtype_name)
        assert model.layer_shapes == whole.layer_shapes
        assert (model.num_tokens, model.vocab_size) == (whole.num_tokens, whole.vocab_size)
        assert model.eos_ids == whole.eos_ids
        assert model.vocabulary.piece_ids == whole.vocabulary.piece_ids


@pytest.mark.parametrize("positions", POSITIONS)
def test_its_answers_are_those_of_the_model(positions: Positions, folder: Path) -> None:
    asked = SamplingParams(temperature=1.0, seed=3, max_tokens=80)
    whole = Pasta(TorchEngine(loading.load(folder, device="cpu"), pool_tokens=2048))
    expected = whole.generate("Name three rivers.", asked, positions=positions)
    for _ in range(2):
        model = Pasta.from_pretrained(folder, device="cpu")
        answer = model.generate("Name three rivers.", asked, positions=positions)
        assert answer.text == expected.text
        assert len(answer.trace.threads) == len(expected.trace.threads)


def touch(file: Path) -> None:
    os.utime(file, ns=(0, 0))


CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "a file of the model": lambda folder, patch: touch(folder / "model.safetensors"),
    "the versions": lambda folder, patch: patch.setattr(prepared, "_versions", lambda: ["other"]),
    "a cut file": lambda folder, patch: kept(folder)[0].write_bytes(b"cut"),
    "a missing file": lambda folder, patch: kept(folder)[0].unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_made_of_other_files_or_is_damaged_is_made_again(
    change: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(prepared.load(folder, device="cpu"))
    CHANGES[change](folder, monkeypatch)
    before = {(file, file.stat().st_mtime_ns) for file in kept(folder)}
    assert torch.equal(logits(prepared.load(folder, device="cpu")), expected)
    assert {(file, file.stat().st_mtime_ns) for file in kept(folder)} - before


def test_a_cache_that_cannot_be_written_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no-such-place")
    loaded = prepared.load(folder, device="cpu")
    assert torch.equal(logits(loaded), logits(loading.load(folder, device="cpu")))


def test_without_room_and_beyond_the_last_few_models_nothing_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "MIN_FREE", 10**15)
    prepared.load(folder, device="cpu")
    assert kept(folder) == []
    monkeypatch.setattr(prepared, "MIN_FREE", 1)
    monkeypatch.setattr(prepared, "MAX_KEPT", 1)
    for dtype in ("float32", "bfloat16"):
        prepared.load(folder, dtype=dtype, device="cpu")
    assert len(kept(folder)) == 1


def test_the_whole_model_is_there_when_it_is_asked_for(folder: Path) -> None:
    prepared.load(folder, device="cpu")
    model = prepared.load(folder, device="cpu").model
    assert model.config.model_type == "llama"
