"""The facts of a model that stock servers hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.models.folder import PASTA
from pasta_lm.models.generation import sampling_settings
from pasta_lm.models.load import last_position, load_without_weights
from pasta_lm.models.vocabulary import Vocabulary

SERVERS = "servers"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The facts of a model whose weights are in servers."""

    vocabulary: Vocabulary
    eos_ids: frozenset[int]  # all ids that end main
    name: str | None = None  # for the trace; None: as the server calls it
    max_position: int | None = None  # the last position that it may be given
    positions: PositionStrategy = PositionStrategy.CONTINUE  # those that it was trained with
    join: Join = Join.RECOMPUTE
    trained_strategy: str = PASTA
    fork_bias: float = 0.0
    sampling: Mapping[str, float] = field(default_factory=dict)  # its authors' settings
    kind: Kind = Kind.GENERATED
    device: str = SERVERS
    dtype_name: str = SERVERS  # what they chose when they started

    def join_with(self, positions: PositionStrategy) -> Join:
        return self.join if positions is self.positions else Join.SHARED


def read_served(source: str | Path) -> ServedModel:
    """Return the facts of the model that servers hold, from its folder or hub id.

    Raises:
        ModelNotFoundError: there are no configuration and tokenizer, as in an adapter or GGUF file.
        ModelError: its ``pasta_config.json`` is broken.
        VocabularyError: that file and its tokenizer disagree.
    """
    pretrained = load_without_weights(source)
    config, sampling = pretrained.config, sampling_settings(pretrained.model)
    sampling.pop("repetition_penalty", None)  # theirs counts tag pieces and other threads
    return ServedModel(
        vocabulary=pretrained.vocabulary, eos_ids=pretrained.eos_ids, name=pretrained.name,
        max_position=last_position(pretrained.model),
        positions=config.positions if config else PositionStrategy.PREDICT,
        join=config.join if config else Join.SHARED,
        trained_strategy=config.trained_strategy if config else PASTA,
        fork_bias=config.fork_bias if config else 0.0, sampling=sampling,
    )  # fmt: skip
