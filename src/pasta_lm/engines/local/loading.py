"""Load a model as one that the engine can run exactly; the self-test decides whether it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm.engines.cpu import capture
from pasta_lm.engines.cpu.eight_bits import FLOAT8, INT8, EightBits, round_weights
from pasta_lm.engines.gpu.attention import has_triton
from pasta_lm.engines.local.attention import NAME, register
from pasta_lm.engines.local.pool import LayerShape
from pasta_lm.engines.local.rotation import Rotation, find_rotations, probe
from pasta_lm.engines.local.runner import LogitsFunction
from pasta_lm.engines.local.self_test import check_exact
from pasta_lm.errors import UsageError, VocabularyError
from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.models.folder import PASTA
from pasta_lm.models.load import load_pretrained
from pasta_lm.models.pieces import add_pieces
from pasta_lm.models.settings import DTYPES, last_position
from pasta_lm.models.vocabulary import Vocabulary

EIGHT_BITS = {kind.name: kind for kind in (INT8, FLOAT8)}
DTYPE_NAMES = (*DTYPES, *EIGHT_BITS)
FLOAT8_CAPABILITY = (8, 9)  # of the first GPUs that have such numbers


@dataclass(eq=False)
class LoadedModel:
    """A model that calls our attention function, with its vocabulary and its training."""

    model: PreTrainedModel
    vocabulary: Vocabulary
    name: str
    eos_ids: frozenset[int]  # all ids that end main
    kind: Kind = Kind.GENERATED
    positions: PositionStrategy = PositionStrategy.PREDICT  # the strategy that it was trained with
    trained_strategy: str = PASTA  # 'pasta', 'apar' or 'sot', if it has tag pieces
    join: Join = Join.SHARED  # the join that it was trained with
    eight_bits: EightBits | None = None  # how the weights of its linear layers are written

    def join_with(self, positions: PositionStrategy) -> Join:
        """Return the join that it was trained with, as far as it goes with positions."""
        return self.join if positions is self.positions else Join.SHARED

    def __post_init__(self) -> None:
        """Switch the model to evaluation and our attention; it needs a row for each tag piece."""
        num_rows = min(self.num_tokens, self.vocab_size)
        if max(self.vocabulary.piece_ids.values(), default=0) >= num_rows:
            raise VocabularyError(
                f"the tokenizer has tag pieces for which the model has no rows: it has {num_rows}",
                hint="add the pieces to tokenizer and model together",
            )
        register()
        self.model.eval()
        self.model.set_attn_implementation(NAME)

    @property
    def device(self) -> torch.device:
        """Return the model's device."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of its weights, which is that of its cache."""
        return next(self.model.parameters()).dtype

    @property
    def dtype_name(self) -> str:
        """Return the dtype of its weights as ``load`` takes it."""
        kind = self.eight_bits
        return str(self.dtype).removeprefix("torch.") if kind is None else kind.name

    @property
    def vocab_size(self) -> int:
        """Return the rows of the output matrix; it may be padded beyond the tokenizer."""
        weight: torch.Tensor = self.model.get_output_embeddings().weight
        return weight.shape[0]

    @cached_property
    def num_tokens(self) -> int:
        """Return the rows of the input matrix: one more than the largest id that can be fed."""
        weight: Any = self.model.get_input_embeddings().weight
        return len(weight)

    @cached_property
    def max_position(self) -> int | None:
        """Return the last position that the model may be given, or None."""
        return last_position(self.model)

    @cached_property
    def layer_shapes(self) -> Sequence[LayerShape]:
        """Return the shape of each layer's keys and values, found by a pass of one token."""
        recorder = probe(self.model, 0, 0)
        return [
            LayerShape(key.shape[0], key.shape[-1], recorder.values[layer].shape[-1])
            for layer, key in sorted(recorder.keys.items())
        ]

    @cached_property
    def fast_logits(self) -> LogitsFunction | None:
        """Return a faster function with the model's logits, or None."""
        return capture(self.model, eight_bits=self.eight_bits)

    @cached_property
    def rotations(self) -> Mapping[int, Rotation | None]:
        """Return how each layer turns its keys; an ``UnsupportedModelError`` if one cannot."""
        return find_rotations(self.model)


def load(
    source: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = None,
    base: str | Path | None = None,
) -> LoadedModel:
    """Load a model with ``load_pretrained``, and test that the engine is exact for it.

    Args:
        source: As ``load_pretrained`` takes it.
        dtype: 'float32', 'bfloat16' or 'float16'; None: as it was saved, float32 on a CPU.
            Weights of linear layers in eight bits: 'int8' on a CPU, all else float32; 'float8' on
            a GPU, all else bfloat16.
        device: None: a GPU if there is one.
        base: The base of an adapter; None: as the adapter says.
    """
    place = usable_device(device)
    weights = _dtype(dtype, place)
    names = (source,) if base is None else (base, source)
    pretrained = load_pretrained(*names, dtype=weights)
    model, config = pretrained.model, pretrained.config
    eight_bits = EIGHT_BITS.get(dtype or "")
    if eight_bits is not None:
        round_weights(model, eight_bits)
    check_exact(model)
    loaded = LoadedModel(
        model.to(place),  # type: ignore[arg-type]
        pretrained.vocabulary,
        pretrained.name,
        pretrained.eos_ids,
        eight_bits=eight_bits,
    )
    if config is not None:
        loaded.positions, loaded.trained_strategy = config.positions, config.trained_strategy
        loaded.join = config.join
    return loaded


def usable_device(name: str | None) -> torch.device:
    """Return a device that this machine has: a GPU if there is one and none is named."""
    wanted = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError) as exc:  # unknown name, no such GPU, torch without CUDA
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        hint = f"this machine has {', '.join(['cpu', *gpus])}"
        raise UsageError(f"device {wanted!r} cannot be used", hint=hint) from exc


def _dtype(name: str | None, place: torch.device) -> torch.dtype | None:
    if name is None:
        return torch.float32 if place.type == "cpu" else None
    if name not in DTYPE_NAMES:
        raise UsageError(f"unknown dtype {name!r}", hint=f"one of {', '.join(DTYPE_NAMES)}")
    if name == INT8.name and place.type != "cpu":
        raise UsageError(f"{name} weights are read by a CPU only", hint="bfloat16, or device cpu")
    is_gpu = place.type == "cuda" and has_triton()
    has_float8 = is_gpu and torch.cuda.get_device_capability(place) >= FLOAT8_CAPABILITY
    if name == FLOAT8.name and not has_float8:
        raise UsageError(
            f"{name} weights are read by a GPU of compute capability 8.9 or more, with Triton",
            hint="int8 on a CPU, or bfloat16",
        )
    return EIGHT_BITS[name].dtype if name in EIGHT_BITS else DTYPES[name]


def with_pieces(loaded: LoadedModel) -> LoadedModel:
    """Return a loaded model with tag pieces; its matrices and its tokenizer grow in place."""
    tokenizer = loaded.vocabulary.tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    piece_ids = add_pieces(loaded.model, tokenizer)
    if loaded.eight_bits is not None:
        round_weights(loaded.model, loaded.eight_bits)  # the new rows
    return replace(loaded, vocabulary=Vocabulary(tokenizer, piece_ids))
