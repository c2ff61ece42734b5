"""What an export holds: read back by transformers, as a stock server would read it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gguf
import pytest
import torch
from gguf import TokenType
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from pasta_lm.engines.local.loading import load
from pasta_lm.errors import ModelNotFoundError, PastaError, UnsupportedModelError, UsageError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.language.tags import PIECES, PROMISE_OPEN, SYNC
from pasta_lm.models.export import Export, export_gguf, export_merged, pre_tokenizer_name
from pasta_lm.models.folder import save_model_folder
from pasta_lm.models.load import DTYPES, load_pretrained
from pasta_lm.models.pieces import tag_pieces
from tests.adapters import a_base_folder, an_adapter, config_of
from tests.architectures import ARCHITECTURES, NUM_PADDED_ROWS, build
from tests.small_tokenizers import FAMILIES, add_markers, byte_level
from tests.taught import CHAT

IDS = torch.arange(5, 45)[None]
ROPE = {"rope_type": "default", "rope_theta": 25_000.0}
SIZES = {"hidden_size": 64, "intermediate_size": 96}  # q8_0: blocks of 32
BOTH = pytest.mark.parametrize(
    ("export", "name"), [(export_merged, "out"), (export_gguf, "out.gguf")]
)
Exporter = Callable[..., Export]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def a_model(name: str, tokenizer: Any, **changes: Any) -> Any:
    """Return a random model whose norms and biases matter."""
    given = {**SIZES, "eos_token_id": tokenizer.eos_token_id, "rope_parameters": ROPE}
    config = ARCHITECTURES[name].config(**(given | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=0.5, std=0.2)
    return model.eval()


def a_folder(path: Path, name: str = "llama", tokenizer: Any = None, **changes: Any) -> Path:
    """Save a random model with tag pieces and a padded embedding."""
    tokenizer = tokenizer or byte_level()
    tokenizer.chat_template = CHAT
    add_markers(tokenizer, PIECES)
    changes = {"vocab_size": len(tokenizer) + NUM_PADDED_ROWS, **changes}
    model = a_model(name, tokenizer, **changes)
    config = replace(config_of(tag_pieces(tokenizer)), limits=Limits(max_threads=3))
    save_model_folder(model, tokenizer, path, config)
    return path


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model.eval()(IDS).logits[0].float()
    return found


def logits_of(source: Path, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return logits(load_pretrained(source, dtype=dtype).model)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_merged_folder_is_the_model_for_plain_transformers_and_how_it_was_trained(
    tmp_path: Path, dtype: str, is_tied: bool
) -> None:
    source = a_folder(tmp_path / "mine", tie_word_embeddings=is_tied)
    done = export_merged(source, tmp_path / "out", dtype)
    model = AutoModelForCausalLM.from_pretrained(done.path, attn_implementation="eager")
    assert model.dtype is DTYPES[dtype]
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is is_tied
    assert torch.equal(logits(model), logits_of(source, DTYPES[dtype]))
    tokenizer = AutoTokenizer.from_pretrained(done.path)
    assert type(tokenizer).__name__ != "LlamaTokenizer"
    assert tokenizer.chat_template == CHAT
    text = f'So:{PROMISE_OPEN}one" tokens="3"/>{SYNC}'
    pieces = [PROMISE_OPEN, '" tokens="3"/>', SYNC]
    assert {*tokenizer.convert_tokens_to_ids(pieces)} <= {*tokenizer.encode(text)}
    special = {str(one) for one in tokenizer.added_tokens_decoder.values() if one.special}
    assert special >= {*PIECES}
    assert done.num_bytes > done.source.model.num_parameters() * DTYPES[dtype].itemsize
    for name in ("pasta_config.json", "generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_text() == (source / name).read_text()


@pytest.mark.parametrize(
    "rope", [ROPE, {"rope_type": "linear", "rope_theta": 99.0, "factor": 2.0}], ids=str
)
def test_servers_with_version_4_of_transformers_find_their_names(
    tmp_path: Path, rope: dict[str, object]
) -> None:
    source = a_folder(tmp_path / "mine", rope_parameters=rope)
    export_merged(source, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["rope_theta"], config["torch_dtype"]) == (rope["rope_theta"], "bfloat16")
    assert config.get("rope_scaling", {}).get("factor") == rope.get("factor")
    again = AutoConfig.from_pretrained(tmp_path / "out")
    assert again.rope_parameters == AutoConfig.from_pretrained(source).rope_parameters
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


FACTS = (
    *("eos_ids", "positions", "join", "trained_strategy", "fork_bias", "sampling"),
    *("max_position", "vocab_size", "num_tokens", "num_parameters"),
)
OF_WORDS = ("piece_ids", "thinks", "thinking", "num_tokens", "prompt_prefix", "has_chat_template")
TEXT = f'So:{PROMISE_OPEN}one" tokens="3"/>{SYNC}  12 caf\u0065\u0301 \u2615'


@pytest.mark.parametrize("is_taught", [True, False])
@BOTH
def test_an_export_read_again_has_every_fact_of_its_source(
    tmp_path: Path, export: Exporter, name: str, is_taught: bool
) -> None:
    tokenizer = byte_level()
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    assert pre_tokenizer_name(tokenizer) == "smollm"
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    source = a_folder(tmp_path / "mine", tokenizer=tokenizer)
    config, file = source / "pasta_config.json", source / "generation_config.json"
    more = {"fork_bias": 1.5, "join": "recompute", "thinks": None}
    more["thinking"] = {"start": "<a>", "end": "</a>", "skip": ""}
    config.write_text(json.dumps(json.loads(config.read_text()) | more))
    settings = {"eos_token_id": [1, 5, 9], "temperature": 0.5, "do_sample": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    if not is_taught:
        config.unlink()
    export(source, tmp_path / name, "float32")
    expected, found = load(source), load(tmp_path / name)
    for fact in FACTS:
        assert getattr(found, fact) == getattr(expected, fact), fact
    for fact in OF_WORDS:
        assert getattr(found.vocabulary, fact) == getattr(expected.vocabulary, fact), fact
    words, others = expected.vocabulary.tokenizer, found.vocabulary.tokenizer
    assert others.backend_tokenizer.to_str() == words.backend_tokenizer.to_str()
    assert others.chat_template == words.chat_template
    read = load_pretrained(source), load_pretrained(tmp_path / name)
    assert read[0].config == read[1].config
    assert torch.allclose(*(logits(each.model) for each in read), atol=1e-4)


@BOTH
def test_templates_by_name_are_read_again(tmp_path: Path, export: Exporter, name: str) -> None:
    source = a_folder(tmp_path / "mine")
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = {"default": CHAT, "tool_use": CHAT + "tools"}
    tokenizer.save_pretrained(source)
    export(source, tmp_path / name, "float32")
    again = load_pretrained(tmp_path / name)
    assert again.tokenizer.chat_template == tokenizer.chat_template


def test_a_gguf_file_by_another_writer_keeps_tags_with_spaces_as_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta_lm.models.export.TOKENIZER", "another.key")
    source = a_folder(tmp_path / "mine")
    export_gguf(source, tmp_path / "out.gguf", "float32")
    expected, found = load(source).vocabulary, load(tmp_path / "out.gguf").vocabulary
    assert found.piece_ids == expected.piece_ids
    for text in (TEXT, CHAT):
        assert found.tokenizer.encode(text) == expected.tokenizer.encode(text)
        assert found.encode_text(text) == expected.encode_text(text)


@BOTH
def test_an_adapter_is_merged_into_its_base(tmp_path: Path, export: Exporter, name: str) -> None:
    base = a_base_folder(tmp_path / "base", "qwen2", **SIZES, tie_word_embeddings=True)
    adapter, plain = an_adapter(tmp_path / "mine", base), logits_of(base)
    done = export(adapter, tmp_path / name, "float32")
    assert len(done.source.piece_ids) == len(PIECES)
    logits_of_export = logits_of(done.path)
    assert torch.allclose(logits_of_export, logits_of(adapter), atol=1e-4)
    assert not torch.allclose(logits_of_export[:, : plain.shape[1]], plain, atol=0.1)
    assert not (tmp_path / name / "adapter_config.json").exists()
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelNotFoundError, match="base of the adapter"):
        export(adapter, tmp_path / f"again-{name}")
    assert not (tmp_path / f"again-{name}").exists()


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_has_the_logits_of_the_model(tmp_path: Path, name: str, is_tied: bool) -> None:
    # transformers reads no other size of a head from the files of Qwen3.
    changes = {"head_dim": 128} if name == "qwen3" else {}
    source = a_folder(tmp_path / "mine", name, tie_word_embeddings=is_tied, **changes)
    done = export_gguf(source, tmp_path / "out.gguf", "float32")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="out.gguf")
    assert torch.allclose(logits(model), logits_of(source), atol=1e-4)
    assert model.config.max_position_embeddings == 2048
    assert done.num_bytes > 4 * done.source.model.num_parameters()


@pytest.mark.parametrize(
    ("dtype", "bound"), [("bfloat16", 2**-8), ("float16", 2**-11), ("q8_0", 1 / 127)]
)
def test_weights_are_within_the_bound_of_their_dtype(
    tmp_path: Path, dtype: str, bound: float
) -> None:
    source = a_folder(tmp_path / "mine", "qwen2")
    export_gguf(source, tmp_path / "out.gguf", dtype)
    expected = dict(load_pretrained(source, dtype=torch.float32).model.named_parameters())
    model = load_pretrained(tmp_path / "out.gguf").model
    for name, weight in model.named_parameters():
        true = expected[name]
        largest = true.abs().amax(-1, keepdim=True)
        assert ((weight - true).abs() <= bound * largest).all(), name
        if weight.ndim == 1:
            assert torch.equal(weight, true), name


def fields_of(file: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


def test_the_metadata_are_those_of_the_model(tmp_path: Path) -> None:
    source = a_folder(tmp_path / "mine")
    export_gguf(source, tmp_path / "out.gguf", "q8_0")
    found, config = fields_of(tmp_path / "out.gguf"), AutoConfig.from_pretrained(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    expected = {
        "general.architecture": "llama",
        "general.file_type": gguf.LlamaFileType.MOSTLY_Q8_0,
        "llama.rope.freq_base": 25_000.0,
        "llama.rope.dimension_count": config.head_dim,
        "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.bos_token_id": tokenizer.bos_token_id,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": CHAT,
    }
    assert {name: found.get(name) for name in expected} == expected
    written = json.loads((source / "pasta_config.json").read_text())
    assert json.loads(found["pasta.config"]) == {
        "trained_strategy": "pasta",
        **{name: written[name] for name in ("positions", "join", "limits")},
    }


def test_tag_pieces_are_control_tokens_and_padding_is_unused(tmp_path: Path) -> None:
    source = a_folder(tmp_path / "mine")
    export_gguf(source, tmp_path / "out.gguf")
    found, tokenizer = fields_of(tmp_path / "out.gguf"), AutoTokenizer.from_pretrained(source)
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == len(tokenizer) + NUM_PADDED_ROWS
    for token, token_id in tokenizer.get_vocab().items():
        assert tokens[token_id] == token
        is_added = token_id in tokenizer.added_tokens_decoder
        assert types[token_id] == (TokenType.CONTROL if is_added else TokenType.NORMAL)
    assert {*types[len(tokenizer) :]} == {TokenType.UNUSED}
    assert {types[tokens.index(piece)] for piece in PIECES} == {TokenType.CONTROL}


SUPPORTED = {"llama", "wide_llama", "qwen2", "qwen3"}


def refuse(source: Path, reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        export_gguf(source, source.parent / "out.gguf")
    assert "convert_hf_to_gguf.py of llama.cpp" in str(caught.value.hint)
    assert [path.name for path in source.parent.iterdir()] == [source.name]


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - SUPPORTED))
def test_another_architecture_is_refused_with_the_supported_ones(tmp_path: Path, name: str) -> None:
    tokenizer = FAMILIES[ARCHITECTURES[name].tokenizer]()
    add_markers(tokenizer, PIECES)
    build(name).save_pretrained(tmp_path / "mine")
    tokenizer.save_pretrained(tmp_path / "mine")
    refuse(tmp_path / "mine", "only for llama, qwen2, qwen3")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"attention_bias": True}, "biases of the attention"),
        ({"mlp_bias": True}, "biases of the MLP"),
        ({"rope_parameters": ROPE | {"rope_type": "linear", "factor": 2.0}}, "positions linear"),
    ],
)
def test_a_setting_that_llama_cpp_would_compute_otherwise_is_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    refuse(a_folder(tmp_path / "mine", **changes), reason)


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"byte_level"}))
def test_another_tokenizer_is_refused(tmp_path: Path, name: str) -> None:
    refuse(a_folder(tmp_path / "mine", tokenizer=FAMILIES[name]()), "none of the byte-level BPE")


@BOTH
def test_nothing_is_written_over_and_a_dtype_must_be_known(
    tmp_path: Path, export: Exporter, name: str
) -> None:
    with pytest.raises(UsageError, match="unknown dtype 'q4'"):
        export("not even read", tmp_path / name, "q4")
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        export("not even read", tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"
    with pytest.raises(UsageError, match=r"does not end in \.gguf"):
        export_gguf("not even read", tmp_path / "another")


@BOTH
def test_a_full_disk_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: Exporter, name: str
) -> None:
    source = a_folder(tmp_path / "mine")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    with pytest.raises(PastaError, match="MiB free, and the export takes"):
        export(source, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@BOTH
def test_after_an_error_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: Exporter, name: str
) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    source = a_folder(tmp_path / "mine")
    monkeypatch.setattr("pasta_lm.models.export.write_pasta_config", full)
    monkeypatch.setattr("pasta_lm.models.export._write", full)
    with pytest.raises(PastaError, match="cannot be written: No space left"):
        export(source, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
