"""Tiny random models with recurrent layers and others that are decoded as rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoConfig

from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.passes.row_reader import find_reader
from pasta_lm.engines.passes.self_test import TINY_SCALE, tiny_model
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language.tags import PIECES
from pasta_lm.models.vocabulary import Vocabulary
from tests.architectures import CLOSING_SCALE, NUM_PADDED_ROWS, NUM_STRUCTURAL, TAG_SCALE
from tests.small_tokenizers import FAMILIES, add_markers

SCALE = 0.1  # deviation of weights: with larger ones some recurrent layers magnify rounding
HYBRIDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ["qwen3_next", "qwen3_5_text", "falcon_h1", "nemotron_h", "jamba", "mamba2"], {}
    ),
    **dict.fromkeys(["mixtral", "llama4_text", "deepseek_v3", "recurrent_gemma"], {}),
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
}


@cache
def hybrid(name: str) -> LoadedModel:
    """Return the model of a family, the same to every test, whose rows fork at random."""
    tokenizer = FAMILIES["byte_level"]()
    pieces = add_markers(tokenizer, PIECES)
    model = tiny_model(AutoConfig.for_model(name, **HYBRIDS[name]))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for matrix in (each for each in model.parameters() if each.dim() > 1):
            matrix *= SCALE / TINY_SCALE
        model.resize_token_embeddings(len(tokenizer) + NUM_PADDED_ROWS, mean_resizing=False)
        for matrix in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            matrix.normal_(0, SCALE)
        tag_ids = sorted(pieces.values())
        matrix[tag_ids] *= CLOSING_SCALE
        matrix[tag_ids[:NUM_STRUCTURAL]] *= TAG_SCALE / CLOSING_SCALE
    ends, reader = frozenset([tokenizer.eos_token_id]), find_reader(model)
    vocabulary, kind = Vocabulary(tokenizer, pieces), Kind.RANDOM_WEIGHTS
    return LoadedModel(model, vocabulary, f"tiny-{name}", ends, kind, reader=reader)
