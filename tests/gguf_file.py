"""Tiny GGUF files: a random Llama as llama.cpp would store it, and the weights it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.small_tokenizers import byte_level
from tests.taught import CHAT

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 2
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    **{
        f"model.layers.{layer}.{ours}": f"blk.{layer}.{theirs}"
        for layer in range(LAYERS)
        for ours, theirs in {
            "input_layernorm": "attn_norm",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }.items()
    },
}


def a_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of the files; transformers gives all of their kind this token."""
    tokenizer = byte_level()
    tokenizer.add_tokens("<|endoftext|>", special_tokens=True)
    tokenizer.chat_template = CHAT
    return tokenizer


def a_llama(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a random model with tied embeddings, always the same."""
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=HIDDEN, intermediate_size=INNER,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        max_position_embeddings=256, initializer_range=0.2, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def write_gguf(
    path: Path, kind: Type = Type.Q4_1, *, more: Callable[[gguf.GGUFWriter], object] = id
) -> dict[str, Tensor]:
    """Write a file and return its dequantised weights by the names of transformers."""
    tokenizer = a_tokenizer()
    model = a_llama(tokenizer)
    writer = gguf.GGUFWriter(path, "llama")
    _write_settings(writer, model.config)
    _write_tokenizer(writer, tokenizer)
    more(writer)
    writer.add_chat_template(CHAT)
    found = {}
    for ours, theirs in NAMES.items():
        weight = model.get_parameter(f"{ours}.weight").detach().numpy()
        stored = kind if weight.ndim == 2 and kind is not Type.F32 else Type.F32
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(ours.rpartition(".")[2])
        data = gguf.quantize(_permuted(weight, heads), stored)
        writer.add_tensor(f"{theirs}.weight", data, raw_dtype=stored)
        values = gguf.dequantize(gguf.quantize(weight, stored), stored)
        found[f"{ours}.weight"] = torch.from_numpy(values.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


def _permuted(weight: np.ndarray, heads: int | None) -> np.ndarray:
    """Return rows in the order in which llama.cpp rotates them."""
    if heads is None:
        return weight
    halves = weight.reshape(heads, 2, len(weight) // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _write_settings(writer: gguf.GGUFWriter, config: LlamaConfig) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast) -> None:
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = {*tokenizer.get_added_vocab()}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.CONTROL if t in special else kinds.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
