"""Adapters: saved, read, merged; peft is the oracle for what they compute."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from pasta_lm.errors import ModelError
from pasta_lm.learn.train.learner import with_tag_rows
from pasta_lm.models.adapter import (
    INT8_WEIGHTS,
    WEIGHTS,
    Adapter,
    BaseReference,
    check_base,
    merge_adapter,
    read_adapter,
    read_base,
    reference_to,
    save_adapter,
)
from pasta_lm.models.folder import read_pasta_config
from pasta_lm.models.load import hashes_of
from pasta_lm.models.pieces import add_pieces
from tests.adapters import a_base, a_peft_adapter, config_of, logits_of, low_rank_of

EXACT = 1e-4  # of logits in float32: the bound of the oracle of all engines


def gpt2(width: int = 64) -> PreTrainedModel:
    """Return a model whose layers are stored transposed."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=90, n_embd=width, n_layer=2, n_head=4)).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "is_tied"), [("llama", True), ("llama", False), ("gemma3", True)])
def test_peft_loads_a_saved_adapter_and_the_merged_model_has_its_logits(
    tmp_path: Path, name: str, is_tied: bool, dtype: torch.dtype
) -> None:
    base, tokenizer = a_base(name, tie_word_embeddings=is_tied)
    reference, low_rank = reference_to(base, tokenizer, hub_id="some/base"), low_rank_of(base)
    piece_ids = add_pieces(base, tokenizer)
    merged, plain = copy.deepcopy(base), logits_of(base, len(tokenizer))
    adapter = with_tag_rows(low_rank, base, piece_ids)
    rows = {key: torch.randn_like(rows) / 5 for key, rows in adapter.rows.items()}
    assert len(rows) == (1 if is_tied else 2)
    adapter, config = replace(adapter, rows=rows), config_of(piece_ids)
    save_adapter(tmp_path, adapter, base=reference, config=config, dtype=dtype)
    expected = logits_of(PeftModel.from_pretrained(base, str(tmp_path)).double(), len(tokenizer))
    merge_adapter(merged, read_adapter(tmp_path))
    assert (logits_of(merged.double(), len(tokenizer)) - expected).abs().max() < EXACT
    assert (expected - plain).abs().max() > 0.1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"init_lora_weights": "gaussian"},
        {"target_modules": "all-linear", "exclude_modules": ["q_proj"]},
        {"layers_to_transform": [1]},
        {"trainable_token_indices": [3, 8]},
        {"trainable_token_indices": {"embed_tokens": [9, 2], "lm_head": [4]}},
        {"target_modules": ["lm_head", "q_proj"]},
    ],
    ids=str,
)
def test_an_adapter_of_peft_is_merged_exactly(tmp_path: Path, settings: dict[str, Any]) -> None:
    model, tokenizer = a_base(tie_word_embeddings=False)
    merged = copy.deepcopy(model)
    expected = logits_of(a_peft_adapter(tmp_path, model, **settings), len(tokenizer))
    merge_adapter(merged, read_adapter(tmp_path))
    assert (logits_of(merged, len(tokenizer)) - expected).abs().max() < EXACT


def test_an_adapter_of_tied_embeddings_is_refused(tmp_path: Path) -> None:
    model, _ = a_base(tie_word_embeddings=True)
    a_peft_adapter(tmp_path, model, target_modules=["lm_head"])
    with pytest.raises(ModelError, match="changes lm_head, which is tied to the input emb"):
        merge_adapter(a_base(tie_word_embeddings=True)[0], read_adapter(tmp_path))


@pytest.mark.parametrize("target", ["c_attn", "c_proj"], ids=["wide", "square"])
def test_layers_that_are_stored_transposed_are_merged_exactly(tmp_path: Path, target: str) -> None:
    model = gpt2()
    merged = copy.deepcopy(model)
    settings = {"target_modules": [target], "fan_in_fan_out": True}
    expected = logits_of(a_peft_adapter(tmp_path, model, **settings), 90)
    merge_adapter(merged, read_adapter(tmp_path))
    assert (logits_of(merged, 90) - expected).abs().max() < EXACT


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"init_lora_weights": "pissa"}, "init_lora_weights pissa, which changes the base"),
        ({"use_dora": True}, "use_dora"),
        ({"use_rslora": True}, "use_rslora"),
        ({"alpha_pattern": {"down_proj": 5}}, "alpha_pattern"),
        ({"rank_pattern": {"down_proj": 7}}, "rank_pattern"),
        ({"lora_bias": True}, "lora_bias"),
        ({"bias": "all"}, "bias all"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alora_invocation_tokens": [3]}, "alora_invocation_tokens"),
    ],
    ids=str,
)
def test_a_feature_of_peft_that_is_not_merged_is_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    model, _ = a_base()
    a_peft_adapter(tmp_path, model, **settings)
    with pytest.raises(ModelError, match=f"no plain LoRA adapter: {reason}") as caught:
        read_adapter(tmp_path)
    assert "merge_and_unload" in str(caught.value.hint)


def save_plain(folder: Path, **settings: object) -> Path:
    """Save an adapter without tags, and change the settings in its file."""
    base, _ = a_base()
    adapter = Adapter(low_rank=low_rank_of(base), rows={}, token_ids={})
    save_adapter(folder, adapter, base=BaseReference(path="there"), config=None)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "no plain LoRA adapter: peft_type IA3"),
        ({"of_next_year": 3}, "no plain LoRA adapter: of_next_year"),
        ({"lora_alpha": None}, "gives no scale by r and lora_alpha"),
    ],
)
def test_settings_that_are_unknown_or_missing_are_refused(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read_adapter(save_plain(tmp_path, **settings))


def test_other_weights_than_lora_matrices_are_refused(tmp_path: Path) -> None:
    file = save_plain(tmp_path) / WEIGHTS
    save_file({**load_file(file), "base_model.model.score.weight": torch.ones(2, 2)}, file)
    with pytest.raises(ModelError, match="other weights than pairs of LoRA matrices"):
        read_adapter(tmp_path)


def test_the_eight_bits_of_the_shipped_adapters_are_read(tmp_path: Path) -> None:
    file = save_plain(tmp_path) / WEIGHTS
    expected, stored = read_adapter(tmp_path), {}
    for key, matrix in load_file(file).items():
        scale = matrix.float().abs().amax(1, keepdim=True) / 127
        stored |= {key: (matrix.float() / scale).round().to(torch.int8), f"{key}.scale": scale}
    save_file(stored, tmp_path / INT8_WEIGHTS)
    file.unlink()
    for name, pair in read_adapter(tmp_path).low_rank.items():
        for matrix, true in zip(pair, expected.low_rank[name], strict=True):
            assert (matrix - true).abs().max() <= true.abs().max() / 127


@pytest.mark.parametrize("size", [0, 1000])
def test_a_cut_file_of_weights_is_an_error(tmp_path: Path, size: int) -> None:
    file = save_plain(tmp_path) / WEIGHTS
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelError, match="adapter_model.safetensors cannot be read"):
        read_adapter(tmp_path)


def test_the_folder_says_what_was_saved(tmp_path: Path) -> None:
    base, tokenizer = a_base()
    reference = reference_to(base, tokenizer, hub_id="some/base", revision="abc", package="a-base")
    config = config_of(add_pieces(base, tokenizer))
    adapter = with_tag_rows(low_rank_of(base), base, config.piece_ids)
    save_adapter(tmp_path / "a", adapter, base=reference, config=config)
    assert read_pasta_config(tmp_path / "a") == config
    assert read_base(tmp_path / "a") == reference
    assert not list(tmp_path.glob("a/tokenizer*"))
    assert read_pasta_config(save_plain(tmp_path / "b")) is None
    assert read_base(tmp_path / "b").path == "there"


@pytest.mark.parametrize(
    ("base", "message"),
    [("a name", "must be an object"), ({"name": "x"}, "must be"), ({"path": 3}, "object of texts")],
)
def test_a_base_that_cannot_be_read_is_an_error(tmp_path: Path, base: object, message: str) -> None:
    (tmp_path / "pasta_config.json").write_text(json.dumps({"base": base}))
    with pytest.raises(ModelError, match=message):
        read_base(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_hashes_of_a_base_change_with_neither_dtype_nor_tag_pieces(dtype: torch.dtype) -> None:
    model, tokenizer = a_base()
    before = reference_to(model.to(torch.bfloat16), tokenizer)  # type: ignore[arg-type]
    add_pieces(model, tokenizer)
    assert reference_to(model.to(dtype), tokenizer) == before  # type: ignore[arg-type]
    check_base(before, model, tokenizer)


def test_an_adapter_is_known_by_its_files_also_where_its_base_is_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta_lm.models.adapter.find_base", lambda _: ("hub/base", None))
    known = []
    for weights in (b"a", b"b"):
        (tmp_path / "adapter_config.json").write_text("{}")
        (tmp_path / "adapter_model.safetensors").write_bytes(weights)
        known.append(hashes_of("model", tmp_path))
    assert [each["model (name)"] for each in known] == ["hub/base", "hub/base"]
    assert known[0]["model (weights)"] != known[1]["model (weights)"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "no weight model.layers.2.*of shape"),
        ({"hidden_size": 64}, "no weight model.layers.0.*of shape"),
    ],
)
def test_a_base_of_other_shapes_is_refused(changes: dict[str, int], message: str) -> None:
    base, tokenizer = a_base()
    adapter = with_tag_rows(low_rank_of(base), base, add_pieces(base, tokenizer))
    with pytest.raises(ModelError, match=message):
        merge_adapter(a_base(**changes)[0], adapter)
    with pytest.raises(ModelError, match="no weight model.embed_tokens of shape"):
        merge_adapter(a_base()[0], replace(adapter, low_rank={}))
