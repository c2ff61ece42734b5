"""Load a model that the engine runs exactly: a self-test at load decides whether it does."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from pasta_lm.engines.cpu.eight_bits import FLOAT8, INT8, EightBits, round_weights
from pasta_lm.engines.cpu.kernels import faster_dtype as faster_dtype
from pasta_lm.engines.cpu.tracing import capture
from pasta_lm.engines.gpu.attention import has_triton
from pasta_lm.engines.local.attention import NAME, register
from pasta_lm.engines.local.pool import LayerShape
from pasta_lm.engines.local.runner import (
    LogitsFunction,
    Rotation,
    find_rotations,
    plain_logits,
    probe,
)
from pasta_lm.engines.local.self_test import check_exact, unused_gpu
from pasta_lm.engines.rows.reader import RowReader, find_reader
from pasta_lm.errors import (
    UnsupportedModelError,
    UsageError,
    VocabularyError,
)
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.models.folder import PASTA
from pasta_lm.models.load import (
    DTYPES,
    last_position,
    load_pretrained,
    sampling_settings,
)
from pasta_lm.models.pieces import add_pieces
from pasta_lm.models.vocabulary import Vocabulary

EIGHT_BITS = {kind.name: kind for kind in (INT8, FLOAT8)}
AUTO = "auto"
DTYPE_NAMES = (AUTO, *DTYPES, *EIGHT_BITS)
FLOAT8_CAPABILITY = (8, 9)  # of the first GPUs that have such numbers


@dataclass(eq=False)
class LoadedModel:
    """A model with its vocabulary and its training.

    It calls our attention function, or its threads are rows.
    """

    model: transformers.PreTrainedModel
    vocabulary: Vocabulary
    name: str
    eos_ids: frozenset[int]  # all ids that end main
    kind: Kind = Kind.GENERATED
    positions: PositionStrategy = PositionStrategy.PREDICT  # the strategy that it was trained with
    trained_strategy: str = PASTA  # 'pasta', 'apar' or 'sot', if it has tag pieces
    fork_bias: float = 0.0
    join: Join = Join.SHARED  # the join that it was trained with
    eight_bits: EightBits | None = None  # how the weights of its linear layers are written
    reader: RowReader | None = None  # of threads as rows; None: passes are flattened

    def __post_init__(self) -> None:
        """Switch the model to evaluation and our attention; it needs a row for each tag piece."""
        num_rows = min(self.num_tokens, self.vocab_size)
        if max(self.vocabulary.piece_ids.values(), default=0) >= num_rows:
            raise VocabularyError(
                f"the tokenizer has tag pieces for which the model has no rows: it has {num_rows}",
                hint="add the pieces to tokenizer and model together",
            )
        self.model.eval()
        if self.reader is None:
            register()
            self.model.set_attn_implementation(NAME)

    @cached_property
    def sampling(self) -> Mapping[str, float]:
        """Return the sampling that its authors set, as fields of ``SamplingParams``."""
        return sampling_settings(self.model)

    def join_with(self, positions: PositionStrategy) -> Join:
        """Return the join that it was trained with, as far as it goes with positions."""
        return self.join if positions is self.positions else Join.SHARED

    @cached_property
    def device(self) -> torch.device:
        return self.model.device

    @cached_property
    def dtype(self) -> torch.dtype:
        """Return the dtype of its weights, which is that of its cache."""
        return next(self.model.parameters()).dtype

    @property
    def dtype_name(self) -> str:
        """Return the dtype of its weights as ``load`` takes it."""
        kind = self.eight_bits
        return str(self.dtype).removeprefix("torch.") if kind is None else kind.name

    @cached_property
    def num_parameters(self) -> int:
        return int(self.model.num_parameters())

    @cached_property
    def num_query_heads(self) -> int:
        return int(self.model.config.get_text_config().num_attention_heads)

    @cached_property
    def vocab_size(self) -> int:
        """Return the rows of the output matrix, which may exceed the tokenizer."""
        return len(self.model.get_output_embeddings().weight)

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
        """Return the shape of each layer's keys and values, measured by a pass of one token."""
        if self.reader is not None:
            return ()  # the model's own caches hold them
        recorder = probe(self.model, 0, 0)
        return [
            LayerShape(key.shape[0], key.shape[-1], recorder.values[layer].shape[-1])
            for layer, key in sorted(recorder.keys.items())
        ]

    @cached_property
    def fast_logits(self) -> LogitsFunction | None:
        """Return a faster function with the model's logits, or None."""
        return None if self.reader else capture(self.model, eight_bits=self.eight_bits)

    @property
    def logits(self) -> LogitsFunction:
        return self.fast_logits or partial(plain_logits, self.model)

    @cached_property
    def rotations(self) -> Mapping[int, Rotation | None]:
        """Return how each layer turns its keys; an ``UnsupportedModelError`` if one cannot."""
        return find_rotations(self.model)

    @property
    def can_rotate(self) -> bool:
        with suppress(UnsupportedModelError):
            return self.reader is None and bool(self.rotations)
        return False


def load(
    source: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = None,
    base: str | Path | None = None,
) -> LoadedModel:
    """Load a model with ``load_pretrained``, and test that the engine is exact for it.

    ``dtype`` None stands for: float32 on a CPU, bfloat16 on a GPU that has it, else as saved.
    'auto' is bfloat16 on a CPU that multiplies it, and faster, too.
    'int8' (CPU) and 'float8' (GPU) are those of linear layers, beside float32 and bfloat16.
    ``base`` is that of an adapter, None: as the adapter says.
    """
    place = usable_device(device)
    weights = weights_dtype(dtype, place)
    names = (source,) if base is None else (base, source)
    pretrained = load_pretrained(*names, dtype=weights)
    model, config = pretrained.model, pretrained.config
    eight_bits = EIGHT_BITS.get(dtype or "")
    if eight_bits is not None:
        round_weights(model, eight_bits)
    reader = exact_reader(model)
    loaded = LoadedModel(
        model.to(place),  # type: ignore[arg-type]
        pretrained.vocabulary,
        pretrained.name,
        pretrained.eos_ids,
        eight_bits=eight_bits,
        reader=reader,
    )
    if reader is not None:  # untaught, it is asked for what rows can decode
        loaded.positions, loaded.join = PositionStrategy.CONTINUE, Join.RECOMPUTE
    if config is not None:
        loaded.positions, loaded.trained_strategy = config.positions, config.trained_strategy
        loaded.fork_bias = config.fork_bias
        loaded.join = config.join
    return loaded


def exact_reader(model: transformers.PreTrainedModel) -> RowReader | None:
    """Return the reader of a model whose threads are rows; None: flattened passes are exact.

    A model that is exact in neither way is an ``UnsupportedModelError``.
    """
    try:
        check_exact(model)
    except UnsupportedModelError as exc:
        reader = find_reader(model)
        warn_once(f"{exc.message}: each thread is decoded by itself, as a row with its own cache")
        return reader
    return None


def usable_device(name: str | None) -> torch.device:
    """Return a device that this machine has: a GPU if there is one and none is named."""
    wanted = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if name is None and (fault := unused_gpu()):
        warn_once(fault)
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError) as exc:  # unknown name, no such GPU, torch without CUDA
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        hint = f"this machine has {', '.join(['cpu', *gpus])}"
        raise UsageError(f"device {wanted!r} cannot be used", hint=hint) from exc


def weights_dtype(name: str | None, place: torch.device) -> torch.dtype | None:
    if name is None or name == AUTO:
        return faster_dtype()[0] if name and place.type == "cpu" else default_dtype(place)
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


def default_dtype(place: torch.device) -> torch.dtype | None:
    """Return the dtype of weights on a device; None: as saved."""
    if place.type != "cuda":
        return torch.float32 if place.type == "cpu" else None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else None


warn_once = cache(logging.getLogger(__name__).warning)


def with_pieces(loaded: LoadedModel) -> LoadedModel:
    """Return a loaded model with tag pieces; its matrices and its tokenizer grow in place."""
    tokenizer = loaded.vocabulary.tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    piece_ids = add_pieces(loaded.model, tokenizer)
    if loaded.eight_bits is not None:
        round_weights(loaded.model, loaded.eight_bits)  # the new rows
    return replace(loaded, vocabulary=Vocabulary(tokenizer, piece_ids))


# The size of the cache

_UNITS = {"": 1} | {
    f"{prefix}{ending}": base**power
    for ending, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate(("", "k", "m", "g", "t"))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%|[KMGT]?i?B|)\s*", re.IGNORECASE)


def default_cache(device: torch.device) -> str | None:
    """Return the memory of the cache on a device; None: a small fixed number of entries."""
    return "80%" if device.type == "cuda" else None


def pool_slots(memory: str, loaded: LoadedModel) -> int:
    """Return how many cache entries fit '2GiB', or '40%' of the memory free beside the weights."""
    shapes = loaded.layer_shapes
    if not shapes:
        reason = "each thread has a cache of its own, and all are bounded by their tokens"
        raise UsageError(f"{loaded.name} cannot be given a cache of {memory}: {reason}")
    numbers = sum(shape.num_heads * (shape.key_size + shape.value_size) for shape in shapes)
    entry_bytes = numbers * loaded.dtype.itemsize  # in all layers
    num_slots = budget_bytes(memory, free_bytes(loaded.device)) // entry_bytes
    if num_slots < 1:
        raise UsageError(f"a cache of {memory} holds nothing: an entry has {entry_bytes} bytes")
    return num_slots


def budget_bytes(memory: str, free: int) -> int:
    """Return the bytes of a budget; a percentage is one of the free bytes."""
    size = _SIZE.fullmatch(memory)
    if size is None or (size[2] == "%" and float(size[1]) > 100):
        raise UsageError(
            f"a cache of {memory!r} has no size", hint="such as 800MB, 2GiB or 40% of what is free"
        )
    if size[2] == "%":
        return int(free * float(size[1]) / 100)
    return int(float(size[1]) * _UNITS[size[2].lower()])


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return int(dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux: half of all memory is a careful guess
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
