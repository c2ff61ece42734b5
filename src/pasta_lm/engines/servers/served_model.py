"""Read everything about a model but its weights: what an engine in front of servers needs."""

from __future__ import annotations

from pathlib import Path

from pasta_lm.engines.servers.completions import ServedModel
from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.models.folder import PASTA
from pasta_lm.models.load import load_without_weights


def read_served(source: str | Path) -> ServedModel:
    """Return the facts of the model that servers hold, from its folder or hub id.

    Raises:
        ModelNotFoundError: there are no configuration and tokenizer, as in an adapter or GGUF file.
        ModelError: its ``pasta_config.json`` is broken.
        VocabularyError: that file and its tokenizer disagree.
    """
    pretrained = load_without_weights(source)
    config = pretrained.config
    return ServedModel(
        vocabulary=pretrained.vocabulary,
        eos_ids=pretrained.eos_ids,
        name=pretrained.name,
        max_position=pretrained.last_position,
        positions=config.positions if config else PositionStrategy.PREDICT,
        join=config.join if config else Join.SHARED,
        trained_strategy=config.trained_strategy if config else PASTA,
    )
