"""Measure whether a model is exact with flattened passes and a cache, without trusting its flags.

Two random inputs, longer than every window, go through flattened passes, the last tokens one by one
beside the cache, and each alone through the model's own eager attention without a cache. A state
carried from token to token, a layer run twice, an own attention or an ignored mask fail here.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
import transformers
from torch import Tensor

from pasta_lm.engines.passes.attention import NAME, LayerCall, additive, attend, in_window, register
from pasta_lm.errors import PastaError, UnsupportedModelError
from pasta_lm.models.load import last_position, matrix_of, rope_parameters

TOLERANCE = 1e-3  # largest difference of logits, float32, at which a model still counts as exact
MAX_TESTED_PARAMETERS = 20_000_000  # larger models are tested at tiny width alone
MAX_PARAMETERS_WITHOUT_TWIN = 300_000_000  # for a model that cannot be made tiny
NUM_CACHED_STEPS = 3  # tokens of each input that are fed one by one, beside the cache
MIN_LENGTHS, MAX_LENGTH = (24, 13), 1100  # tokens of the inputs: the first grows with windows
TINY_SCALE = 0.2  # deviation of weights: large enough for logits to depend on every token
_SPANS = ("window", "window_size", "chunk_size", "chunk_length")  # ends of names of settings

# Legend: N tokens of a pass, K entries of the cache, H query heads, G key/value heads, D head size.


class FlattenedPass:
    """Passes over several inputs with one cache; each token sees the past of its own input."""

    def __init__(self, name: str, device: torch.device) -> None:
        self._name = name  # the model's, for errors
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}
        self.done: set[int] = set()  # layers that have attended in this pass
        self._inputs_K = self._positions_K = torch.empty(0, dtype=torch.int64, device=device)

    def begin(self, inputs: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Begin a pass over tokens of these inputs at these positions; return the positions [N]."""
        both = torch.tensor([inputs, positions], device=self._inputs_K.device)
        inputs_N, positions_N = both.unbind()
        self._inputs_K = torch.cat([self._inputs_K, inputs_N])
        self._positions_K = torch.cat([self._positions_K, positions_N])
        self.done.clear()
        return positions_N

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        if call.layer in self.done:
            where = f"layer {call.layer}, where the cache has keys for one attention a layer"
            raise UnsupportedModelError(f"{self._name} attends twice in {where}")
        self.done.add(call.layer)
        keys, values = self._cache.get(call.layer, (k_GND[:, :0], v_GND[:, :0]))
        k_GND, v_GND = torch.cat([keys, k_GND], dim=1), torch.cat([values, v_GND], dim=1)
        self._cache[call.layer] = k_GND, v_GND
        num_old = len(self._inputs_K) - q_HND.shape[1]
        inputs_N, positions_N = self._inputs_K[num_old:, None], self._positions_K[num_old:]
        visible = (inputs_N == self._inputs_K) & (positions_N[:, None] >= self._positions_K)
        if call.window is not None:
            visible = visible & in_window(positions_N, self._positions_K, call.window)
        return attend(call, q_HND, k_GND, v_GND, additive(visible, q_HND.dtype))


def check_exact(model: transformers.PreTrainedModel) -> None:
    """Refuse a model, in evaluation mode, for which flattened passes would not be exact."""
    for tested in models_to_test(model):
        name = type(tested).__name__
        try:
            difference = flattened_difference(tested)
        except PastaError:
            raise
        except Exception as exc:  # whatever a foreign architecture does with flattened input
            reason = f"cannot run on a flattened list of tokens: {type(exc).__name__}: {exc}"
            raise UnsupportedModelError(f"{name} {reason}") from exc
        if not difference <= TOLERANCE:
            differs = f"its logits differ by {difference:.2g} from its own attention"
            raise UnsupportedModelError(
                f"{name} is not exact when flattened: {differs} (at most {TOLERANCE:g} is "
                "allowed), so threads could not share a cache"
            )


def models_to_test(model: transformers.PreTrainedModel) -> list[transformers.PreTrainedModel]:
    """Return a tiny model of the same architecture, and the model itself where that is accurate."""
    config = model.config
    if any(settings.get("rope_type") == "dynamic" for settings in rope_parameters(config)):
        raise UnsupportedModelError(
            f"{config.model_type} uses 'dynamic' RoPE: its angles depend on the largest "
            "position in a pass, so one response would change another's logits"
        )
    num_parameters = sum(weight.numel() for weight in model.parameters())
    try:
        tiny = tiny_model(config)
    except UnsupportedModelError:
        if num_parameters > MAX_PARAMETERS_WITHOUT_TWIN or model.dtype != torch.float32:
            raise
        return [model]
    # Weights can hide a fault: those of an untrained model are so small that its logits hardly
    # depend on what came before.
    is_accurate = num_parameters <= MAX_TESTED_PARAMETERS and model.dtype == torch.float32
    return [tiny, model] if is_accurate else [tiny]


@torch.inference_mode()
def flattened_difference(model: transformers.PreTrainedModel) -> float:
    register()
    inputs, alone = logits_alone(model)
    flattened = FlattenedPass(type(model).__name__, inputs[0].device)
    differences = []
    with _attention(model, NAME):
        for tokens in _passes([*map(len, inputs)]):
            positions_N = flattened.begin(*zip(*tokens, strict=True))
            out = model(
                input_ids=torch.stack([inputs[index][i] for index, i in tokens])[None],
                position_ids=positions_N[None], use_cache=False, pasta_pass=flattened,
            )  # fmt: skip
            if not flattened.done:
                raise UnsupportedModelError(
                    f"{type(model).__name__} keeps a state or computes its attention itself, not "
                    "by the attention function of transformers, so threads could not share a cache"
                )
            expected = torch.stack([alone[index][i] for index, i in tokens])
            differences.append((out.logits[0].float() - expected.float()).abs().max())
    return float(torch.stack(differences).nan_to_num(torch.inf, torch.inf).max())


def logits_alone(model: transformers.PreTrainedModel) -> tuple[list[Tensor], list[Tensor]]:
    """Return random inputs, and the logits of one pass of the model's own attention over each."""
    device = next(model.parameters()).device
    lengths, num_rows = _lengths(model), len(matrix_of(model.get_input_embeddings()))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(num_rows, (2, max(lengths)), generator=generator)
    inputs = [row[:length].to(device) for row, length in zip(ids, lengths, strict=True)]
    with _attention(model, "eager"):
        return inputs, [model(input_ids=ids_N[None], use_cache=False).logits[0] for ids_N in inputs]


def _passes(lengths: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    # The input and the position of each token: a pass of all but the last, then steps.
    bounds = [range(max(1, length - NUM_CACHED_STEPS), length) for length in lengths]
    yield [(index, i) for index, steps in enumerate(bounds) for i in range(steps.start)]
    for step in range(max(map(len, bounds))):
        yield [(index, steps[step]) for index, steps in enumerate(bounds) if step < len(steps)]


def _lengths(model: transformers.PreTrainedModel) -> tuple[int, int]:
    # The first is longer than every window if the context allows it.
    config = model.config.get_text_config()
    longest = max((getattr(config, name) for name in _spans(config)), default=0)
    first, second = max(MIN_LENGTHS[0], min(longest + 8, MAX_LENGTH)), MIN_LENGTHS[1]
    last = last_position(model)
    context = first if last is None else last + 1
    return min(first, context), min(second, context)


def _spans(config: transformers.PreTrainedConfig) -> list[str]:
    settings = config.to_dict()
    return [name for name, size in settings.items() if name.endswith(_SPANS) and type(size) is int]


@contextmanager
def _attention(model: transformers.PreTrainedModel, name: str) -> Iterator[None]:
    before = model.config._attn_implementation
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_attn_implementation(name)
        try:
            yield
        finally:
            model.set_attn_implementation(before)


# A tiny model of the same architecture

_TINY: dict[str, int] = {
    "hidden_size": 64, "intermediate_size": 96, "vocab_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rotary_dim": 8,
    "max_position_embeddings": 512, "query_pre_attn_scalar": 16, "num_kv_shared_layers": 1,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 32, "pad_token_id": 0, "q_lora_rank": 24,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "qk_head_dim": 32,
    "v_head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16,
    "mamba_d_ssm": 128, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "num_heads": 8,
    "state_size": 16, "ssm_state_size": 16, "attn_layer_period": 2, "attn_layer_offset": 1,
    "n_mamba_heads": 8, "mamba_headdim": 16, "linear_num_heads": 4, "linear_head_dim": 16,
    "embedding_dim": 64, "attention_head_dim": 32, "decoder_attention_heads": 4,
}  # fmt: skip
_LAYER_LISTS = ("layer_types", "no_rope_layers", "mlp_layer_types")
_LAYER_INDICES = {"attn_layer_indices": [1, 3], "hybrid_layer_ids": [1, 3]}
_FIXED = (AttributeError, ValueError)  # raised by settings that follow from others


def tiny_model(config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel:
    try:
        small = _small(config.get_text_config())
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            tiny: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
                small, attn_implementation="eager", trust_remote_code=False
            )
            for matrix in (weight for weight in tiny.eval().parameters() if weight.dim() > 1):
                matrix.normal_(0, TINY_SCALE)
            tiny(input_ids=torch.ones(1, 2, dtype=torch.int64), use_cache=False)
    except Exception as exc:  # a foreign configuration may refuse anything
        reason = f"{type(config).__name__} could not be made small for the self-test: {exc}"
        raise UnsupportedModelError(reason) from exc
    return tiny


def _small(config: transformers.PreTrainedConfig) -> transformers.PreTrainedConfig:
    config = copy.deepcopy(config)
    if by_layer := config.to_dict().get("per_layer_config"):
        config.per_layer_config = None  # else settings that differ by layer cannot be read
    small, sizes = copy.deepcopy(config), {**_TINY, **dict.fromkeys(_spans(config), 8)}
    names = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    num_heads, num_groups, num_layers = (getattr(config, name, None) for name in names)
    if inner := getattr(config, "attention_hidden_size", None):
        sizes["attention_hidden_size"] = sizes["hidden_size"] * inner // config.hidden_size
    if num_groups == num_heads:
        sizes["num_key_value_heads"] = _TINY["num_attention_heads"]
    for name, size in (*sizes.items(), *_LAYER_INDICES.items()):
        with suppress(*_FIXED):
            if getattr(small, name, None) or name == "head_dim":
                setattr(small, name, size)
    for name in config.to_dict():
        values = getattr(config, name, None)
        if isinstance(values, list) and (len(values) == num_layers or name in _LAYER_LISTS):
            # Few layers, but every kind among them.
            kinds = [value for index, value in enumerate(values) if value not in values[:index]]
            with suppress(*_FIXED):
                setattr(small, name, [*kinds, *kinds, *values][: _TINY["num_hidden_layers"]])
    if by_layer:
        by_kind = {config.layer_types[int(layer)]: items for layer, items in by_layer.items()}
        small.per_layer_config = {
            layer: {name: sizes[name] // 2 if name in sizes else value for name, value in items}
            for layer, kind in enumerate(small.layer_types)
            if (items := by_kind.get(kind, {}).items())
        }
    small.dtype = torch.float32
    return small


def tiny_llama() -> transformers.PreTrainedModel:
    return tiny_model(transformers.AutoConfig.for_model("llama"))


def run_self_test() -> dict[str, object]:
    began_s = time.perf_counter()
    difference = flattened_difference(tiny_llama())
    wall_s = time.perf_counter() - began_s
    return {"max_difference": difference, "wall_s": wall_s, "is_exact": difference <= TOLERANCE}
