"""Write a model and its adapter for stock servers: a folder, or a GGUF file for llama.cpp.

The folder is what transformers, vLLM and SGLang load. GGUF files are written of models that
llama.cpp runs exactly as transformers does: Llama, Qwen2 and Qwen3 with byte-level BPE and ordinary
rotary positions. Anything else is refused. Output is complete or not there at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType, TokenType
from gguf.quants import quant_shape_to_byte_shape as byte_shape
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm import errors
from pasta_lm.errors import UnsupportedModelError, UsageError, cause
from pasta_lm.models.checkpoint import GENERATION, IMPLIED, RECORD, TOKENIZER, first_line
from pasta_lm.models.folder import check_same_ids, record_of, write_pasta_config
from pasta_lm.models.load import DTYPES, Pretrained, load_pretrained, rope_parameters
from pasta_lm.models.names import GGUF
from pasta_lm.models.pieces import mark_special, num_token_rows
from pasta_lm.run_folder import written_whole

_MIB = 2**20
_RESERVE = 64 * _MIB  # for the tokenizer, settings and the file system's own records
_GGUF_DTYPES = {
    "float32": (Type.F32, LlamaFileType.ALL_F32),
    "bfloat16": (Type.BF16, LlamaFileType.MOSTLY_BF16),
    "float16": (Type.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (Type.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
_ARCHITECTURES = {name: gguf.MODEL_ARCH[name.upper()] for name in ("llama", "qwen2", "qwen3")}
_PERMUTED = {"llama"}  # llama.cpp rotates neighbouring pairs there, transformers two halves

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# The steps that split a text before the merges, and llama.cpp's name for them.
_SPLITS: dict[tuple[tuple[str, object], ...], str] = {
    (("ByteLevel", True),): "gpt-2",
    (("Digits", True), ("ByteLevel", True)): "smollm",
    (("Split", _WORDS + _REST), ("ByteLevel", False)): "qwen2",
    (("Split", _WORDS + "{1,3}" + _REST), ("ByteLevel", False)): "llama-bpe",
}
_LOOKS_WORDS_UP = {"llama-bpe"}  # whole words before any merge: ignore_merges


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export."""

    path: Path
    source: Pretrained
    num_bytes: int
    dtype: str


def export_merged(source: str | Path, out: Path, dtype: str = "bfloat16") -> Export:
    """Write a model folder without adapters, complete or not at all."""
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    _refuse_existing(out)
    pretrained = _read_exportable(source, DTYPES[dtype])
    num_bytes = sum(weight.nbytes for weight in pretrained.model.parameters())
    with _exported(out, num_bytes) as made:
        _write_folder(pretrained, made)
    return Export(out, pretrained, sum(file.stat().st_size for file in out.iterdir()), dtype)


def _read_exportable(source: str | Path, dtype: torch.dtype | None) -> Pretrained:
    pretrained = load_pretrained(source, dtype=dtype)
    tokenizer, piece_ids = pretrained.tokenizer, pretrained.piece_ids
    mark_special(tokenizer, [*piece_ids])
    check_same_ids(piece_ids, tokenizer.get_vocab())
    num_rows = num_token_rows(pretrained.model)
    if (last := max(tokenizer.get_vocab().values())) >= num_rows:
        rows = f"token {last}, and the model has only {num_rows} rows"
        hint = "add tokens to tokenizer and model together"
        raise errors.VocabularyError(f"the tokenizer of {source} has {rows}", hint=hint)
    return pretrained


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise UsageError(f"{out} exists already", hint="name another place, or delete it first")


@contextmanager
def _exported(out: Path, num_bytes: int) -> Iterator[Path]:
    """Give a path to write to, which becomes ``out`` at the end; a full disk is an error before."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free, needed = shutil.disk_usage(out.parent).free, num_bytes + _RESERVE
        if free < needed:
            room = f"{free // _MIB:,} MiB free, and the export takes {needed // _MIB:,} MiB"
            hint = "name another disk, or a smaller dtype"
            raise errors.PastaError(f"{out.parent} has {room}", hint=hint)
        with written_whole(out) as made:
            yield made
            _refuse_existing(out)
    except OSError as exc:
        hint = "check the disk and its permissions"
        raise errors.PastaError(f"{out} cannot be written: {cause(exc)}", hint=hint) from exc


def _write_folder(pretrained: Pretrained, folder: Path) -> None:
    model = pretrained.model
    try:
        model.save_pretrained(folder)
        pretrained.tokenizer.save_pretrained(folder)
    except ValueError as exc:  # such as settings of generation that contradict each other
        reason = f"transformers refuses to save the model: {first_line(exc)}"
        raise errors.ModelError(reason) from exc
    except SafetensorError as exc:  # a full disk is not an OSError there
        raise OSError(cause(exc)) from exc
    if pretrained.config is not None:
        write_pasta_config(folder, pretrained.config)
    # Names of version 4 of transformers, which some servers have. It knows no ``rope_parameters``,
    # and would silently fall back to another base frequency, nor version 5's class of tokenizers.
    settings: dict[str, object] = {"torch_dtype": str(model.dtype).removeprefix("torch.")}
    rope, *others = rope_parameters(model.config)
    if "rope_theta" in rope and not others:  # else there is none, or one for each kind of layer
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        settings["rope_theta"] = rope["rope_theta"]
        if scaling.get("rope_type", "default") != "default":
            settings["rope_scaling"] = scaling
    _change(folder / "config.json", settings)
    _change(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def _change(file: Path, settings: dict[str, object]) -> None:
    data = json.loads(file.read_text("utf-8")) | settings
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export_gguf(source: str | Path, out: Path, dtype: str = "bfloat16") -> Export:
    """Write a GGUF file, complete or not at all.

    Matrices have the dtype (float16 where rows do not divide into blocks of q8_0); vectors are
    float32, as llama.cpp wants them. The tag pieces are tokens of type CONTROL. Keys that only this
    package reads have the training, the settings and the tokenizer, so that all can be read again.
    """
    if dtype not in _GGUF_DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(_GGUF_DTYPES)}")
    if out.suffix != GGUF:
        raise UsageError(f"{out} does not end in {GGUF}", hint=f"name it {out.name}{GGUF}")
    _refuse_existing(out)
    pretrained = _read_exportable(source, torch.float32)
    model, (kind, file_type) = pretrained.model, _GGUF_DTYPES[dtype]
    _check_supported(model.config)
    tensors = list(_tensors(model, kind))
    num_bytes = sum(prod(byte_shape(values.shape, stored)) for _, values, stored in tensors)
    with _exported(out, num_bytes) as made:
        writer = gguf.GGUFWriter(made, str(model.config.model_type))
        try:
            writer.add_name(out.stem)
            writer.add_file_type(file_type)
            _add_settings(writer, model.config, num_token_rows(model))
            _add_tokenizer(writer, pretrained)
            _write(writer, tensors)
        finally:
            writer.close()
    return Export(out, pretrained, out.stat().st_size, dtype)


def _refusal(reason: str) -> UnsupportedModelError:
    hint = "`pasta export --merged` and then convert_hf_to_gguf.py of llama.cpp may support it"
    return UnsupportedModelError(reason, hint=hint)


def _check_supported(config: Any) -> None:
    refused = f"no GGUF file can be written for architecture {config.model_type!r}"
    if config.model_type not in _ARCHITECTURES:
        raise _refusal(f"{refused}, only for {', '.join(_ARCHITECTURES)}")
    rope = config.rope_parameters
    differs = {
        f"activation {config.hidden_act}": config.hidden_act != "silu",
        f"rotary positions {rope.get('rope_type')}": rope.get("rope_type") != "default",
        "partial rotary positions": rope.get("partial_rotary_factor", 1.0) != 1.0,
        "sliding windows": bool(getattr(config, "use_sliding_window", False)),
        "biases of the attention": bool(getattr(config, "attention_bias", False)),
        "biases of the MLP": bool(getattr(config, "mlp_bias", False)),
    }
    if reasons := [reason for reason, is_there in differs.items() if is_there]:
        raise _refusal(f"no GGUF file can be written for a {config.model_type} with {reasons[0]}")


def _tensors(model: PreTrainedModel, kind: Type) -> Iterator[tuple[str, Tensor, Type]]:
    # Tied matrices come once: without ``output.weight`` llama.cpp takes the embedding.
    config: Any = model.config
    names = gguf.get_tensor_name_map(_ARCHITECTURES[config.model_type], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for ours, weight in model.named_parameters():
        theirs = names.get_name(ours, try_suffixes=(".weight", ".bias"))
        if theirs is None:
            raise _refusal(f"llama.cpp has no name for the weight {ours}")
        data = weight.detach().cpu()
        num_heads = heads.get(ours.split(".")[-2])
        if config.model_type in _PERMUTED and num_heads:  # pairs of each head: [heads, 2, half, D]
            rows = data.view(num_heads, 2, -1, data.shape[-1])
            data = rows.transpose(1, 2).reshape(data.shape)
        stored = kind if data.ndim > 1 else Type.F32
        if data.shape[-1] % gguf.GGML_QUANT_SIZES[stored][0]:
            stored = Type.F16
        yield theirs, data, stored


def _write(writer: gguf.GGUFWriter, tensors: list[tuple[str, Tensor, Type]]) -> None:
    for name, tensor, kind in tensors:
        # From any dtype but uint8, the writer takes the shape as it is.
        size, dtype = prod(byte_shape(tensor.shape, kind)), np.dtype("float32")
        writer.add_tensor_info(name, tuple(tensor.shape), dtype, size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, tensor, kind in tensors:
        writer.write_tensor_data(gguf.quantize(tensor.contiguous().numpy(), kind))


def _add_settings(writer: gguf.GGUFWriter, config: Any, num_rows: int) -> None:
    head_size = getattr(config, "head_dim", None)
    head_size = head_size or config.hidden_size // config.num_attention_heads
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(num_rows)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def pre_tokenizer_name(tokenizer: PreTrainedTokenizerFast) -> str:
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    model, first = data["model"], data["pre_tokenizer"] or {}
    name = _SPLITS.get(tuple(map(_step, first.get("pretokenizers", [first]))))
    is_plain = data["normalizer"] is None or data["normalizer"]["type"] == "NFC"
    is_bpe = model["type"] == "BPE" and not model.get("byte_fallback")
    looks_up = bool(model.get("ignore_merges"))
    if name is None or not is_plain or not is_bpe or looks_up != (name in _LOOKS_WORDS_UP):
        kinds = ", ".join(_SPLITS.values())
        raise _refusal(f"the tokenizer is none of the byte-level BPE that are supported: {kinds}")
    return name


def _step(step: object) -> tuple[str, object]:
    match step:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}:
            return "ByteLevel", use_regex
        case {"type": "Digits", "individual_digits": individual}:
            return "Digits", individual
        case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}:
            return "Split", regex
    return "", None


def _add_tokenizer(writer: gguf.GGUFWriter, pretrained: Pretrained) -> None:
    tokenizer, config = pretrained.tokenizer, pretrained.config
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer_name(tokenizer))
    tokens, types = zip(*_tokens(pretrained), strict=True)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in data["model"]["merges"]])
    _add_special_ids(writer, pretrained)
    template = tokenizer.chat_template
    if isinstance(template, dict):
        writer.add_chat_template([{"name": k, "template": text} for k, text in template.items()])
    elif template:
        writer.add_chat_template(template)
    # What this package reads again beside that, as a model folder holds it.
    record = {} if config is None else record_of(config)
    record = {key: value for key, value in record.items() if key not in IMPLIED}
    if config is not None:
        record["trained_strategy"] = config.trained_strategy
    writer.add_string(RECORD, json.dumps(record))
    writer.add_string(GENERATION, pretrained.model.generation_config.to_json_string())
    writer.add_string(TOKENIZER, tokenizer.backend_tokenizer.to_str())


def _tokens(pretrained: Pretrained) -> Iterator[tuple[str, TokenType]]:
    spelled = {token_id: token for token, token_id in pretrained.tokenizer.get_vocab().items()}
    added = pretrained.tokenizer.added_tokens_decoder
    for token_id in range(num_token_rows(pretrained.model)):
        kind = TokenType.NORMAL if token_id in spelled else TokenType.UNUSED
        if token_id in added:
            kind = TokenType.CONTROL if added[token_id].special else TokenType.USER_DEFINED
        yield spelled.get(token_id, f"[PAD{token_id}]"), kind


def _add_special_ids(writer: gguf.GGUFWriter, pretrained: Pretrained) -> None:
    # llama.cpp has places for three tokens that end a text.
    tokenizer = pretrained.tokenizer
    eos, bos = tokenizer.eos_token_id, tokenizer.bos_token_id
    ends = sorted(pretrained.eos_ids, key=lambda token_id: (token_id != eos, token_id))
    if len(ends) > 3:
        raise UnsupportedModelError(f"{len(ends)} tokens end a text; GGUF has places for three")
    adders = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    others = (
        (writer.add_bos_token_id, bos),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    )
    for add, token_id in (*zip(adders, ends, strict=False), *others):
        if token_id is not None:
            add(token_id)
    prefix = pretrained.vocabulary.prompt_prefix
    if prefix not in ((), (bos,)):
        raise _refusal("the tokenizer begins a text with other tokens than its begin-of-text")
    writer.add_add_bos_token(bool(prefix))
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
