"""Tiny random models of every supported architecture, sharp enough that a mistake shows.

Ordinary random weights attend to everything alike, and an oracle over near-uniform attention
proves little. Here the weights are large: heads attend to few keys, logits differ by units, and
tags are sampled often enough that generated answers fork.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language.tags import PIECES
from pasta_lm.models.generation import eos_ids
from pasta_lm.models.vocabulary import Vocabulary
from tests.small_tokenizers import FAMILIES, add_markers

WINDOW = 8
CONTEXT = 2048
NUM_STRUCTURAL = 4  # <promise topic=", <async>, </async>, <sync/>: the first of all pieces
NUM_PADDED_ROWS = 6  # the output matrix of many models is longer than their tokenizer
CLOSING_SCALE, TAG_SCALE = 2.0, 5.0  # how much longer the output rows of tags are than of words

_SIZES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": CONTEXT,
    "initializer_range": 0.19, "pad_token_id": None,
}  # fmt: skip
_ALTERNATING = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 32.0} | {
    "original_max_position_embeddings": CONTEXT // 32
}


@dataclass(frozen=True)
class Architecture:
    """A kind of model, the tokenizer that goes with it, and what is its own."""

    name: str
    tokenizer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    norm_scale: float = 1.0
    """For models that normalise queries and keys: how much longer both are made."""
    embedding_scale: float = 1.0
    """For models that normalise what layers add: how much shorter the tied embeddings are made."""

    def config(self, **changes: Any) -> PreTrainedConfig:
        config_class = getattr(transformers, f"{self.name}Config")
        return config_class(**{**_SIZES, **self.settings, **changes})  # type: ignore[no-any-return]


ARCHITECTURES = {
    "llama": Architecture("Llama", "llama_2_like"),
    "wide_llama": Architecture(  # sizes that compiled functions take: multiples of 32
        "Llama", "llama_2_like", {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
    ),
    "mistral": Architecture("Mistral", "llama_2_like", {"sliding_window": WINDOW}),
    "qwen2": Architecture("Qwen2", "byte_level"),
    "qwen3": Architecture("Qwen3", "byte_level", norm_scale=1.3),
    "gemma": Architecture("Gemma", "gemma_like"),
    "gemma2": Architecture(
        "Gemma2",
        "gemma_like",
        _ALTERNATING
        | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 12.0}
        | {"final_logit_softcapping": 20.0},
        embedding_scale=0.25,
    ),
    "gemma3": Architecture(
        "Gemma3Text",
        "gemma_like",
        {**_ALTERNATING, "query_pre_attn_scalar": 16},
        norm_scale=1.3,
        embedding_scale=0.25,
    ),
    "phi3": Architecture("Phi3", "whole_word_byte_level"),
    "olmo2": Architecture("Olmo2", "byte_level", norm_scale=1.3),
    "smollm3": Architecture("SmolLM3", "unigram", {"no_rope_layers": [1, 0, 1]}),
    "gpt_oss": Architecture(
        "GptOss",
        "whole_word_byte_level",
        _ALTERNATING
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"}
        | {"rope_parameters": _YARN},
    ),
    "cohere2": Architecture("Cohere2", "byte_level", {**_ALTERNATING, "logit_scale": 1.0}),
    "granite": Architecture(
        "Granite",
        "byte_level",
        {"embedding_multiplier": 2.0, "logits_scaling": 0.8}
        | {"residual_multiplier": 0.7, "attention_multiplier": 0.25},
    ),
}

DIFFERENT = frozenset({"llama", "qwen3", "gemma3", "gpt_oss"})
"""Together they have what the others have: norms, windows, two ropes, sinks, experts."""


def each_of(names: Iterable[str], different: Collection[str] = DIFFERENT) -> pytest.MarkDecorator:
    """Return the decorator of a test over models, of which those similar to others are slow."""
    similar = {name: [] if name in different else [pytest.mark.slow] for name in names}
    params = [pytest.param(name, marks=marks) for name, marks in similar.items()]
    return pytest.mark.parametrize("name", params)


every_architecture = each_of(ARCHITECTURES)


def build(name: str, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Return a new random model, float32, in evaluation mode."""
    architecture = ARCHITECTURES[name]
    tokenizer = FAMILIES[architecture.tokenizer]()
    pieces = add_markers(tokenizer, PIECES)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    num_rows = len(tokenizer) + NUM_PADDED_ROWS
    config = architecture.config(**{"vocab_size": num_rows, **ends, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        _sharpen(model, architecture, sorted(pieces.values()))
    return model.eval()


def _sharpen(model: PreTrainedModel, architecture: Architecture, tag_ids: list[int]) -> None:
    # Gemma's norms hold their weight less one.
    offset = float(architecture.name.startswith("Gemma"))
    scales = {"q_norm": architecture.norm_scale, "k_norm": architecture.norm_scale}
    scales["model.norm"] = 1 / architecture.embedding_scale
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "norm" in name:
                parameter += 0.2 * torch.randn_like(parameter)
                scale = next((s for part, s in scales.items() if part in name), 1.0)
                parameter.copy_(scale * (parameter + offset) - offset)
            elif parameter.dim() == 1:
                parameter.normal_(0, 0.5)  # biases and sinks
        output = model.get_output_embeddings().weight
        output *= architecture.embedding_scale
        output[tag_ids] *= CLOSING_SCALE
        output[tag_ids[:NUM_STRUCTURAL]] *= TAG_SCALE / CLOSING_SCALE


def load(name: str, model: PreTrainedModel) -> LoadedModel:
    """Return a model as the engine takes it, with a tokenizer that has the tags."""
    tokenizer = FAMILIES[ARCHITECTURES[name].tokenizer]()
    pieces = add_markers(tokenizer, PIECES)
    vocabulary = Vocabulary(tokenizer, pieces)
    ends = eos_ids(model, tokenizer)
    return LoadedModel(model, vocabulary, f"tiny-{name}", ends, Kind.RANDOM_WEIGHTS)


@cache
def loaded(name: str, device: str = "cpu") -> LoadedModel:
    """Return the model of an architecture, the same to every test."""
    return load(name, build(name).to(device))  # type: ignore[arg-type]


@contextmanager
def own_attention(model: LoadedModel) -> Iterator[None]:
    """Let a model attend by itself instead of with our function."""
    model.model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.model.set_attn_implementation("pasta")
