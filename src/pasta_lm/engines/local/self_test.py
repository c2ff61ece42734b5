"""Measure whether a model is exact when its input is flattened, without trusting its flags.

Two random inputs longer than the smallest window go through one flattened pass and, each alone,
through the model's own eager attention. Architectures that carry state from token to token, make
positions of their own or ignore the mask fail here, whatever they claim to support.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from pasta_lm.engines.local.attention import NAME, LayerCall, additive, attend, in_window, register
from pasta_lm.errors import PastaError, UnsupportedModelError

TOLERANCE = 1e-3  # largest difference of logits, float32, at which a model still counts as exact
MAX_TESTED_PARAMETERS = 300_000_000  # larger models are tested at tiny width instead

# Legend: N tokens, H query heads, D head size.


class FlattenedPass:
    """Several inputs in one flattened pass; each token sees the past of its own."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        parts = [torch.arange(length, device=device) for length in lengths]
        self.positions_N = torch.cat(parts)
        of_N = torch.repeat_interleave(
            torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device)
        )
        past = torch.ones(len(of_N), len(of_N), device=device).tril().bool()
        self._visible_NN = past & (of_N[:, None] == of_N)

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        """Attend inside each input, under the layer's window."""
        visible = self._visible_NN
        if call.window is not None:
            visible = visible & in_window(self.positions_N, self.positions_N, call.window)
        return attend(call, q_HND, k_GND, v_GND, additive(visible, q_HND.dtype))


def check_exact(model: PreTrainedModel) -> None:
    """Refuse a model, in evaluation mode, for which the engine would not be exact.

    Its attention implementation may be any, and is restored.

    Raises:
        UnsupportedModelError: with the model's name and the reason.
    """
    config = model.config
    if any(one.get("rope_type") == "dynamic" for one in rope_parameters(config)):
        raise UnsupportedModelError(
            f"{config.model_type} uses 'dynamic' RoPE: its angles depend on the largest "
            "position in a pass, so one response would change another's logits"
        )
    num_parameters = sum(p.numel() for p in model.parameters())
    dtype = next(model.parameters()).dtype
    is_tested = num_parameters <= MAX_TESTED_PARAMETERS and dtype == torch.float32
    if is_tested:
        _check_flattened(model)
    try:
        twin = tiny_twin(config)
    except UnsupportedModelError:
        if not is_tested:
            raise
        return
    # Weights can hide a fault: those of an untrained model are so small that its logits hardly
    # depend on what came before.
    _check_flattened(twin)


def _check_flattened(model: PreTrainedModel) -> None:
    name = type(model).__name__
    try:
        difference = flattened_difference(model)
    except PastaError:
        raise
    except Exception as exc:  # whatever a foreign architecture does with flattened input
        raise UnsupportedModelError(
            f"{name} cannot run on a flattened list of tokens: {type(exc).__name__}: {exc}"
        ) from exc
    if not difference <= TOLERANCE:
        raise UnsupportedModelError(
            f"{name} is not exact when flattened: its logits differ by {difference:.2g} from its "
            f"own attention (at most {TOLERANCE:g} is allowed), so threads could not share a cache"
        )


def rope_parameters(config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    """Yield a configuration's RoPE settings: one, or one for each type of layer."""
    given = getattr(config.get_text_config(), "rope_parameters", None) or {}
    nested = [value for value in given.values() if isinstance(value, dict)]
    yield from nested or [given]


def flattened_difference(model: PreTrainedModel) -> float:
    """Return the largest difference, float32, of a flattened pass from the model's own logits."""
    register()
    device = next(model.parameters()).device
    lengths = _lengths(model.config)
    generator = torch.Generator().manual_seed(0)
    weight: Any = model.get_input_embeddings().weight
    sequences = [
        torch.randint(len(weight), (length,), generator=generator).to(device) for length in lengths
    ]
    flattened = FlattenedPass(lengths, device)
    with torch.inference_mode():
        with _attention(model, "eager"):
            alone = [model(input_ids=ids[None], use_cache=False).logits[0] for ids in sequences]
        with _attention(model, NAME):
            out = model(
                input_ids=torch.cat(sequences)[None],
                position_ids=flattened.positions_N[None],
                use_cache=False,
                pasta_pass=flattened,
            )
    difference = float((out.logits[0].float() - torch.cat(alone).float()).abs().max())
    # Not a number compares as false with every tolerance.
    return difference if difference == difference else float("inf")


def _lengths(config: PreTrainedConfig) -> tuple[int, int]:
    """Return two lengths, the first longer than the smallest window."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    longest = getattr(text, "max_position_embeddings", None) or 64
    first = 24 if not window else min(window + 8, 1100)
    return min(first, longest), min(13, longest)


@contextmanager
def _attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    before = model.config._attn_implementation
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_attn_implementation(name)
        try:
            yield
        finally:
            model.set_attn_implementation(before)


TWIN_SCALE = 0.2  # deviation of weights: large enough for logits to depend on every token

_TINY: dict[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "attention_chunk_size": 8,
    "max_position_embeddings": 512,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 16,
}


def tiny_twin(config: PreTrainedConfig) -> PreTrainedModel:
    """Return a random model of the same architecture and settings at tiny width, float32.

    The same configuration gives the same tiny model.

    Raises:
        UnsupportedModelError: the configuration cannot be made small.
    """
    try:
        small = _small(config.get_text_config())
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            twin = AutoModelForCausalLM.from_config(small, attn_implementation="eager").eval()
            for parameter in twin.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, TWIN_SCALE)
            twin(input_ids=torch.ones(1, 2, dtype=torch.int64), use_cache=False)
    except Exception as exc:  # a foreign configuration may refuse anything
        raise UnsupportedModelError(
            f"{type(config).__name__} could not be made small for the self-test: {exc}"
        ) from exc
    checked: PreTrainedModel = twin
    return checked


def _small(config: PreTrainedConfig) -> PreTrainedConfig:
    small = copy.deepcopy(config)
    for name, size in _TINY.items():
        if getattr(small, name, None) is not None:
            setattr(small, name, size)
    for name in ("layer_types", "no_rope_layers", "mlp_layer_types"):
        kinds = getattr(small, name, None)
        if isinstance(kinds, list):
            # Few layers, but every kind of layer among them.
            setattr(small, name, [*dict.fromkeys(kinds), *kinds][: _TINY["num_hidden_layers"]])
    small.dtype = torch.float32
    return small


# Self-test of this machine


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The result of the self-test of this machine."""

    max_difference: float  # largest difference of logits from the model's own attention, float32
    wall_s: float

    @property
    def is_exact(self) -> bool:
        """Return whether the difference is rounding only."""
        return self.max_difference <= TOLERANCE


def devices() -> list[str]:
    """Return the names of the devices that a model can run on, the CPU first."""
    num_threads, num_gpus = torch.get_num_threads(), torch.cuda.device_count()
    gpus = [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(num_gpus)]
    return [f"cpu ({num_threads} thread{'s' * (num_threads > 1)})", *gpus]


def run_self_test() -> SelfTest:
    """Run two inputs through a tiny random Llama in one pass, against its own attention."""
    began_s = time.perf_counter()
    difference = flattened_difference(tiny_twin(AutoConfig.for_model("llama")))
    return SelfTest(difference, time.perf_counter() - began_s)
