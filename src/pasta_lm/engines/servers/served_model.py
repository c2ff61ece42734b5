"""Read everything about a model but its weights: what an engine in front of servers needs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from pasta_lm.engines.servers.completions import ServedModel
from pasta_lm.errors import ModelNotFoundError
from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.models.checkpoint import read_tokenizer
from pasta_lm.models.folder import PASTA, read_pasta_config
from pasta_lm.models.settings import eos_ids, last_position, tag_pieces
from pasta_lm.models.vocabulary import Vocabulary


def read_served(source: str | Path) -> ServedModel:
    """Return the facts of the model that servers hold, from its folder or hub id.

    Raises:
        ModelNotFoundError: there are no configuration and tokenizer, as in an adapter or GGUF file.
        ModelError: its ``pasta_config.json`` is broken.
        VocabularyError: that file and its tokenizer disagree.
    """
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = read_tokenizer(source)
        with torch.device("meta"):  # no memory, no weights
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as exc:
        raise ModelNotFoundError(
            f"{source} holds no configuration and tokenizer of a whole model",
            hint="name the folder that the servers serve: pasta export MODEL OUT --merged",
        ) from exc
    with suppress(OSError):  # without the file, the ends are those of the configuration
        model.generation_config = GenerationConfig.from_pretrained(source)
    known = read_pasta_config(Path(source)) if Path(source).is_dir() else None
    return ServedModel(
        vocabulary=Vocabulary(tokenizer, known.piece_ids if known else tag_pieces(tokenizer)),
        eos_ids=eos_ids(model, tokenizer),
        name=Path(source).name if Path(source).exists() else str(source),
        max_position=last_position(model),
        positions=known.positions if known else PositionStrategy.PREDICT,
        join=known.join if known else Join.SHARED,
        trained_strategy=known.trained_strategy if known else PASTA,
    )
