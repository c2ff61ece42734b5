"""Adapters: saved, read, merged; peft is the oracle for what they compute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm.errors import ModelError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.models.adapter import (
    Adapter,
    BaseReference,
    check_base,
    merge_adapter,
    read_adapter,
    read_base,
    reference_to,
    save_adapter,
    tag_rows,
)
from pasta_lm.models.folder import PastaConfig, add_pieces, read_pasta_config
from tests.architectures import ARCHITECTURES
from tests.small_tokenizers import FAMILIES

RANK = 4
EXACT = 1e-4  # of logits in float32: the bound of the oracle of all engines
LowRank = dict[str, tuple[Tensor, Tensor]]


def a_base(
    name: str = "llama", **changes: object
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return a model and a tokenizer that have no tag pieces yet."""
    tokenizer = FAMILIES[ARCHITECTURES[name].tokenizer]()
    config = ARCHITECTURES[name].config(vocab_size=len(tokenizer), **changes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval(), tokenizer


def some_matrices(model: PreTrainedModel, rank: int = RANK) -> LowRank:
    """Return random LoRA matrices for two kinds of layers, seen in the logits."""
    torch.manual_seed(1)
    return {
        name: (torch.randn(rank, module.in_features), torch.randn(module.out_features, rank) / 32)
        for name, module in model.named_modules()
        if name.endswith(("q_proj", "down_proj"))
    }


def config_of(piece_ids: Mapping[str, int]) -> PastaConfig:
    return PastaConfig(
        piece_ids=piece_ids, positions=PositionStrategy.PREDICT, limits=Limits(max_depth=1)
    )


def logits_of(model: torch.nn.Module, num_rows: int) -> Tensor:
    ids = torch.arange(num_rows).flip(0)[None]  # every token, every tag piece
    with torch.inference_mode():
        logits: Tensor = model(input_ids=ids).logits
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("name", "is_tied"), [("llama", True), ("llama", False), ("gemma3", True)])
def test_the_merged_model_has_the_logits_of_the_adapter_in_peft(
    tmp_path: Path, name: str, is_tied: bool, dtype: torch.dtype
) -> None:
    base, tokenizer = a_base(name, tie_word_embeddings=is_tied)
    reference = reference_to(base, tokenizer, hub_id="some/base")
    low_rank = some_matrices(base)
    piece_ids = add_pieces(base, tokenizer)
    plain = logits_of(base, len(tokenizer))
    rows = {key: torch.randn_like(one) / 5 for key, one in tag_rows(base, piece_ids).items()}
    assert len(rows) == (1 if is_tied else 2)
    config = config_of(piece_ids)
    trained = Adapter(low_rank=low_rank, rows=rows, scale=2.0)
    save_adapter(tmp_path / "stored", trained, base=reference, config=config, dtype=dtype)
    adapter = read_adapter(tmp_path / "stored")

    # peft reads no 8-bit integers, so it gets what they stand for.
    save_adapter(tmp_path / "whole", adapter, base=reference, config=config, dtype=torch.float32)
    unmerged = PeftModel.from_pretrained(base, str(tmp_path / "whole")).double()
    expected = logits_of(unmerged, len(tokenizer))

    merged, tokens = a_base(name, tie_word_embeddings=is_tied)
    merge_adapter(merged, adapter, add_pieces(merged, tokens))
    assert (logits_of(merged.double(), len(tokenizer)) - expected).abs().max() < EXACT
    assert (expected - plain).abs().max() > 0.1


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2**-8), (torch.int8, 1 / 127)])
def test_stored_matrices_are_as_near_as_their_dtype_allows(
    tmp_path: Path, dtype: torch.dtype, bound: float
) -> None:
    base, _ = a_base()
    low_rank = some_matrices(base)
    save_adapter(
        tmp_path,
        Adapter(low_rank=low_rank, rows={}),
        base=BaseReference(),
        config=None,
        dtype=dtype,
    )
    for name, (a, b) in read_adapter(tmp_path).low_rank.items():
        for found, matrix in ((a, low_rank[name][0]), (b, low_rank[name][1])):
            assert (found - matrix).abs().max() <= bound * matrix.abs().max()


def test_the_folder_says_what_was_saved(tmp_path: Path) -> None:
    base, tokenizer = a_base()
    reference = reference_to(base, tokenizer, hub_id="some/base", revision="abc", package="a-base")
    low_rank = some_matrices(base)
    config = config_of(add_pieces(base, tokenizer))
    save_adapter(tmp_path, Adapter(low_rank=low_rank, rows={}), base=reference, config=config)
    assert read_pasta_config(tmp_path) == config
    assert read_base(tmp_path) == reference
    assert not list(tmp_path.glob("tokenizer*"))


def test_an_adapter_without_tags_has_no_record_of_a_training_with_them(tmp_path: Path) -> None:
    base, _ = a_base()
    adapter = Adapter(low_rank=some_matrices(base), rows={})
    save_adapter(tmp_path, adapter, base=BaseReference(path="there"), config=None)
    assert read_pasta_config(tmp_path) is None
    assert read_base(tmp_path).path == "there"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_hashes_of_a_base_change_with_neither_dtype_nor_tag_pieces(dtype: torch.dtype) -> None:
    model, tokenizer = a_base()
    before = reference_to(model.to(torch.bfloat16), tokenizer)  # type: ignore[arg-type]
    add_pieces(model, tokenizer)
    after = reference_to(model.to(dtype), tokenizer)  # type: ignore[arg-type]
    assert after == before
    check_base(before, model, tokenizer)


def test_another_base_is_refused_by_its_hash() -> None:
    model, tokenizer = a_base()
    reference = reference_to(model, tokenizer)
    with torch.no_grad():
        model.get_parameter("model.layers.1.self_attn.k_proj.weight")[0, 0] += 0.5
    with pytest.raises(ModelError, match="another base: the weights of this one have the hash"):
        check_base(reference, model, tokenizer)


def test_another_tokenizer_is_refused_by_its_hash() -> None:
    model, tokenizer = a_base()
    reference = reference_to(model, tokenizer)
    with pytest.raises(ModelError, match="another base: the tokenizer of this one"):
        check_base(reference, model, FAMILIES["whole_word_byte_level"]())
    check_base(replace(reference, tokenizer_sha256=None), model, FAMILIES["byte_level"]())


def test_a_base_of_other_shapes_is_refused(tmp_path: Path) -> None:
    base, tokenizer = a_base()
    low_rank = some_matrices(base)
    rows = tag_rows(base, ids) if (ids := add_pieces(base, tokenizer)) else {}
    given = {"base": BaseReference(), "config": config_of(ids)}
    layers = Adapter(low_rank=low_rank, rows={})
    save_adapter(tmp_path / "layers", layers, **given)  # type: ignore[arg-type]
    one = dict([next(iter(low_rank.items()))])
    with_rows = Adapter(low_rank=one, rows=rows)
    save_adapter(tmp_path / "rows", with_rows, **given)  # type: ignore[arg-type]
    fewer, _ = a_base(num_hidden_layers=2, layer_types=None)
    with pytest.raises(ModelError, match="no weight model.layers.2"):
        merge_adapter(fewer, read_adapter(tmp_path / "layers"), ids)
    wider, tokens = a_base(hidden_size=64)
    with pytest.raises(ModelError, match="no weight model.layers.0.*of shape"):
        merge_adapter(wider, read_adapter(tmp_path / "rows"), add_pieces(wider, tokens))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "no plain LoRA adapter: use_dora"),
        ({"peft_type": "IA3"}, "no plain LoRA adapter: IA3"),
        ({"bias": "all"}, "no plain LoRA adapter"),
        ({"r": 0}, "has no r and lora_alpha"),
        ({"r": None}, "has no r and lora_alpha"),
    ],
)
def test_settings_that_are_no_plain_lora_are_refused(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    base, _ = a_base()
    save_adapter(
        tmp_path, Adapter(low_rank=some_matrices(base), rows={}), base=BaseReference(), config=None
    )
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(ModelError, match=message):
        read_adapter(tmp_path)


def test_a_cut_or_missing_file_of_weights_is_an_error(tmp_path: Path) -> None:
    base, _ = a_base()
    save_adapter(
        tmp_path, Adapter(low_rank=some_matrices(base), rows={}), base=BaseReference(), config=None
    )
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="adapter_model.safetensors cannot be read"):
        read_adapter(tmp_path)
    file.unlink()
    with pytest.raises(ModelError, match="adapter_model.safetensors cannot be read"):
        read_adapter(tmp_path)


@pytest.mark.parametrize(
    ("base", "message"),
    [("a name", "must be an object"), ({"name": "x"}, "must be"), ({"path": 3}, "base.path is no")],
)
def test_a_base_that_cannot_be_read_is_an_error(tmp_path: Path, base: object, message: str) -> None:
    (tmp_path / "pasta_config.json").write_text(json.dumps({"base": base}))
    with pytest.raises(ModelError, match=message):
        read_base(tmp_path)
