"""Load a model that the engine runs exactly: a self-test at load decides whether it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from pasta_lm.engines import devices as devices
from pasta_lm.engines.capture.tracing import capture
from pasta_lm.engines.cpu.int8 import INT8, restore_matrices, round_layer, round_weights
from pasta_lm.engines.passes.attention import NAME, register
from pasta_lm.engines.passes.pool import LayerShape
from pasta_lm.engines.passes.row_reader import RowReader, exact_reader
from pasta_lm.engines.passes.runner import KeyRecorder, LogitsFunction, plain_logits
from pasta_lm.errors import UsageError, VocabularyError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.models.folder import PASTA
from pasta_lm.models.generation import sampling_settings
from pasta_lm.models.load import last_position, load_pretrained, matrix_of, num_parameters
from pasta_lm.models.pieces import add_pieces
from pasta_lm.models.vocabulary import Vocabulary

MAX_DEFAULT_SLOTS = 64 * 8192  # in a GPU's cache that nobody has sized


@dataclass(eq=False)
class LoadedModel:
    """A model with its vocabulary and its training."""

    model: transformers.PreTrainedModel
    vocabulary: Vocabulary
    name: str
    eos_ids: frozenset[int]  # all ids that end main
    kind: Kind = Kind.GENERATED
    positions: PositionStrategy = PositionStrategy.PREDICT  # the strategy that it was trained with
    trained_strategy: str = PASTA  # 'pasta', 'apar' or 'sot', if it has tag pieces
    fork_bias: float = 0.0
    join: Join = Join.SHARED  # the join that it was trained with
    is_int8: bool = False  # the weights of its linear layers are ones that int8 codes stand for
    reader: RowReader | None = None  # threads are rows; None: it calls our attention function

    def __post_init__(self) -> None:
        """Switch the model to evaluation and our attention; it needs a row for each tag piece."""
        num_rows = min(self.num_tokens, self.vocab_size)
        if max(self.vocabulary.piece_ids.values(), default=0) >= num_rows:
            problem = "the tokenizer has tag pieces for which the model has no rows"
            hint = "add the pieces to tokenizer and model together"
            raise VocabularyError(f"{problem}: it has {num_rows}", hint=hint)
        self.model.eval()
        if self.reader is None:
            register()
            self.model.set_attn_implementation(NAME)
        else:  # untaught, it is asked for what rows can decode
            self.positions, self.join = PositionStrategy.CONTINUE, Join.RECOMPUTE
            if self.model.device.type != "cpu":  # eager attention stores all scores
                with suppress(ValueError):
                    self.model.set_attn_implementation("sdpa")

    @cached_property
    def sampling(self) -> Mapping[str, float]:
        return sampling_settings(self.model)

    def join_with(self, positions: PositionStrategy) -> Join:
        return self.join if positions is self.positions else Join.SHARED

    @cached_property
    def device(self) -> torch.device:
        return self.model.device

    @cached_property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def dtype_name(self) -> str:
        return INT8 if self.is_int8 else str(self.dtype).removeprefix("torch.")

    @cached_property
    def num_parameters(self) -> int:
        return num_parameters(self.model)

    @cached_property
    def vocab_size(self) -> int:
        """Return the rows of the output matrix, which may exceed the tokenizer."""
        return len(matrix_of(self.model.get_output_embeddings()))

    @cached_property
    def num_tokens(self) -> int:
        """Return the rows of the input matrix: one more than the largest id that can be fed."""
        return len(matrix_of(self.model.get_input_embeddings()))

    @cached_property
    def max_position(self) -> int | None:
        return last_position(self.model)

    @cached_property
    def layer_shapes(self) -> Sequence[LayerShape]:
        """Return the shape of each layer's keys and values, measured by a pass of one token."""
        if self.reader is not None:
            reason = "has no cache that threads share: its caches have no size to be set"
            raise UsageError(f"{self.name} {reason}")
        recorder, first = KeyRecorder(), torch.zeros(1, dtype=torch.int64, device=self.model.device)
        with torch.inference_mode():
            plain_logits(self.model, first, first, first, recorder)
        return [
            LayerShape(key.shape[0], key.shape[-1], recorder.values[layer].shape[-1])
            for layer, key in sorted(recorder.keys.items())
        ]

    @cached_property
    def fast_logits(self) -> LogitsFunction | None:
        return None if self.reader else capture(self.model)

    @property
    def logits(self) -> LogitsFunction:
        return self.fast_logits or partial(plain_logits, self.model)


def load(source: str | Path, *, dtype: str | None = None, device: str | None = None) -> LoadedModel:
    """Load a model as ``Pasta.from_pretrained``; test that the engine is exact for it."""
    target = devices.usable_device(device)
    weights = devices.weights_dtype(dtype, target)
    is_int8 = dtype == INT8
    change = round_layer if is_int8 else None
    pretrained = load_pretrained(source, dtype=None if is_int8 else weights, change=change)
    model, config = pretrained.model, pretrained.config
    if is_int8:
        round_weights(model)
    reader = exact_reader(model)
    model.to(target)  # type: ignore[arg-type]
    facts = pretrained.vocabulary, pretrained.name, pretrained.eos_ids
    loaded = LoadedModel(model, *facts, is_int8=is_int8, reader=reader)
    if config is not None:
        loaded.positions, loaded.trained_strategy = config.positions, config.trained_strategy
        loaded.fork_bias, loaded.join = config.fork_bias, config.join
    return loaded


def with_pieces(loaded: LoadedModel) -> LoadedModel:
    tokenizer = loaded.vocabulary.tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    if loaded.is_int8:
        restore_matrices(loaded.model)
    piece_ids = add_pieces(loaded.model, tokenizer)
    if loaded.is_int8:
        round_weights(loaded.model)
    return replace(loaded, vocabulary=Vocabulary(tokenizer, piece_ids))


def pool_slots(
    memory: str | None, loaded: LoadedModel, num_tokens: int | None = None
) -> int | None:
    """Return the entries of a cache, ``num_tokens`` at most; None: as suits the engine.

    ``memory`` is '2GiB', or '40%' of what is free beside the weights. A GPU's cache never exceeds
    what is free there when the layers are joined.
    """
    if memory is None and (loaded.reader or loaded.device.type != "cuda"):
        return num_tokens
    shapes = loaded.layer_shapes
    _ = loaded.logits  # joining layers takes memory
    devices.free_memory()
    free = devices.free_bytes(loaded.device)
    budget = max(free // 2, free - devices.SHAPES_BYTES - devices.PASS_BYTES)
    budget = budget if memory is None else devices.budget_bytes(memory, free)
    numbers = sum(shape.num_heads * (shape.key_size + shape.value_size) for shape in shapes)
    entry_bytes = numbers * loaded.dtype.itemsize  # in all layers
    num_slots = budget // entry_bytes
    if num_slots < 1:
        name = memory or f"{budget} bytes, of {free} that are free,"
        raise UsageError(f"a cache of {name} holds nothing: an entry has {entry_bytes} bytes")
    return min(num_slots, num_tokens or (MAX_DEFAULT_SLOTS if memory is None else num_slots))
