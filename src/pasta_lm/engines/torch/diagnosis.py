"""Say what torch finds on this machine, and whether it computes what it should."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pasta_lm.engines.torch.loading import load
from pasta_lm.engines.torch.self_test import TOLERANCE, flattened_difference
from pasta_lm.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What a tiny random model gave."""

    max_difference: float
    """Largest difference of logits from the model's own attention, float32."""
    wall_s: float

    @property
    def is_exact(self) -> bool:
        """Tell whether the difference is one of rounding alone."""
        return self.max_difference <= TOLERANCE


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What can be said of a model that has been loaded; that it loads means that it is exact."""

    name: str
    architecture: str
    num_parameters: int
    device: str
    dtype: str
    has_tag_pieces: bool
    can_rotate: bool
    max_position: int | None


def devices() -> list[str]:
    """Return where a model can be, by name; the CPU always."""
    num_threads = torch.get_num_threads()
    names = [f"cpu ({num_threads} thread{'s' * (num_threads > 1)})"]
    for index in range(torch.cuda.device_count()):
        names.append(f"cuda:{index} ({torch.cuda.get_device_name(index)})")
    return names


def self_test() -> SelfTest:
    """Run two sequences of a tiny random Llama in one pass, against its own attention."""
    began_s = time.perf_counter()
    config = AutoConfig.for_model(
        "llama",
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    return SelfTest(flattened_difference(model), time.perf_counter() - began_s)


def describe(
    source: str | Path, *, dtype: str | None = None, device: str | None = None
) -> ModelReport:
    """Load a model, which tests it, and say what it can do.

    Args:
        source: A folder that ``save_pretrained`` wrote, or a hub id.
        dtype: As ``load`` takes it.
        device: As ``load`` takes it.

    Raises:
        ModelNotFoundError: nothing is there.
        UnsupportedModelError: the engine would not be exact for it.
    """
    loaded = load(source, dtype=dtype, device=device)
    try:
        can_rotate = bool(loaded.rotations)
    except UnsupportedModelError:
        can_rotate = False
    return ModelReport(
        loaded.name,
        type(loaded.model).__name__,
        sum(parameter.numel() for parameter in loaded.model.parameters()),
        str(loaded.device),
        str(loaded.dtype).removeprefix("torch."),
        loaded.vocabulary.has_pieces,
        can_rotate,
        loaded.max_position,
    )
