"""Settings of a model that decoding needs, read from its configuration and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from pasta_lm.language.tags import PIECES

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def tag_pieces(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the ids of all tag pieces if the tokenizer has every one of them, else nothing."""
    vocab = tokenizer.get_vocab()
    ids = {piece: vocab[piece] for piece in PIECES if piece in vocab}
    return ids if len(ids) == len(PIECES) else {}


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """Return every id that ends a text, from the generation settings, else from the tokenizer."""
    sources = getattr(model, "generation_config", None), model.config.get_text_config(), tokenizer
    candidates = (getattr(source, "eos_token_id", None) for source in sources)
    ids = next((ids for ids in candidates if ids is not None), ())
    return frozenset(ids) if isinstance(ids, (list, tuple)) else frozenset([ids])


def last_position(model: PreTrainedModel) -> int | None:
    """Return the last position that a model may be given, or None where it has no bound."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for parameters in rope_parameters(model.config):
        # Beyond the original length other factors would apply, to every response in the pass.
        if parameters.get("rope_type") == "longrope":
            context = parameters.get("original_max_position_embeddings", context)
    return None if context is None else int(context) - 1


def rope_parameters(config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    """Yield a configuration's RoPE settings: one, or one for each type of layer."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    yield from nested or [parameters]
