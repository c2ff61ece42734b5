"""Weights of linear layers as int8 codes, with one scale for each output.

Such a model is one whose weights are ``code * scale``: that is what the tests of exactness and the
engine's reference compute with. Compiled products read the codes: a byte of each weight.
Activations, embeddings that are no linear layer's matrix too, and the cache are float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from pasta_lm.models.load import leave_memory

INT8 = "int8"  # the dtype that asks for it
MAX_INT8 = 127
ROWS_AT_ONCE = 256  # rows of a weight that are rounded together: they stay in the processor
_KEPT_BITS = ~0x7F  # leaves a scale 17 significant bits: its product with 7 bits is exact

# Legend: I inputs, O outputs, V vocabulary.


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes int8 [O, I] and scales float32 [O] for a weight [O, I].

    Quantising ``dequantise`` of the result gives the same codes and scales.
    """
    codes, scales = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight))
    parts = (tensor.split(ROWS_AT_ONCE) for tensor in (weight, codes, scales))
    for part, some_codes, some_scales in zip(*parts, strict=True):
        exact = part.float().abs().amax(dim=1) / MAX_INT8
        some_scales.copy_(exact.view(torch.int32).bitwise_and(_KEPT_BITS).view(torch.float32))
        divisors = some_scales.where(some_scales > 0, 1.0)[:, None]
        some_codes.copy_((part.float() / divisors).round_().clamp_(-MAX_INT8, MAX_INT8))
    return codes, scales


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the weight float32 [..., I] that codes [..., I] and scales [...] stand for."""
    return codes.float() * scales[..., None]


def multiply(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """Return x [..., I] times the weight of codes [O, I] transposed, plus a bias [O]."""
    parts = zip(codes.split(ROWS_AT_ONCE), scales.split(ROWS_AT_ONCE), strict=True)
    out = torch.cat([F.linear(x, dequantise(*part)) for part in parts], dim=-1)
    return out if bias is None else out + bias


@cache
def linear_operation() -> Any:
    """Return the operation of an ``Int8Linear``: of x [..., I], codes, scales and a bias [O]."""

    @torch.library.custom_op("pasta_lm::int8_linear", mutates_args=())
    def linear(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        return multiply(x, codes, scales, bias)

    @linear.register_fake
    def _(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        return x.new_empty(*x.shape[:-1], codes.shape[0])

    return torch.ops.pasta_lm.int8_linear.default


class _Int8(nn.Module):
    """A layer with codes [O, I] instead of a weight; ``weight`` is what they stand for."""

    def __init__(self, codes: nn.Parameter, scales: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.codes = codes
        self.register_buffer("scales", scales)
        self.bias = bias if bias is None else nn.Parameter(bias.detach().float(), False)

    @property
    def weight(self) -> Tensor:
        return self.rows(slice(None))

    def rows(self, ids: Tensor | slice) -> Tensor:
        return dequantise(self.codes[ids], self.get_buffer("scales")[ids])


class Int8Linear(_Int8):
    """A linear layer whose products read codes where they are compiled."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = linear_operation()(x, self.codes, self.scales, self.bias)
        return out


class Int8Embedding(_Int8):
    """An embedding with the matrix [V, I] of a linear layer."""

    forward = _Int8.rows


class SavedEmbedding(nn.Module):
    """An embedding with rows of 16 bits as they were saved, which it returns in float32."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.codes = nn.Parameter(weight.detach().view(torch.int16), requires_grad=False)
        self._dtype = weight.dtype

    @property
    def weight(self) -> Tensor:
        return self.forward(slice(None))

    def forward(self, ids: Tensor | slice) -> Tensor:
        return self.codes[ids].view(self._dtype).float()


def round_layer(model: PreTrainedModel, name: str, weight: Tensor) -> None:
    """Replace a linear layer by one of codes for a weight [O, I], which may be a new one.

    The input embedding is replaced too if it has the layer's matrix. Modules that compute
    something else keep float32 weights that codes stand for.
    """
    layer, inputs = model.get_submodule(name), model.get_input_embeddings()
    before = layer.get_parameter("weight")
    codes, scales = quantise(weight.detach())
    is_shared = inputs is not None and getattr(inputs, "weight", None) is before
    is_linear, shared = type(layer).forward is nn.Linear.forward, nn.Parameter(codes, False)
    if is_linear:
        model.set_submodule(name, Int8Linear(shared, scales, layer.bias))  # type: ignore[arg-type]
    scales_rows = is_shared and type(inputs).forward is not nn.Embedding.forward
    if scales_rows or not is_linear:  # it computes something else
        before.data = dequantise(codes, scales)
        return
    if is_shared:
        model.set_input_embeddings(Int8Embedding(shared, scales))
    leave_memory(before)


@torch.no_grad()
def round_weights(model: PreTrainedModel) -> None:
    """Give each linear layer codes, in place; other weights become float32."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            round_layer(model, name, module.weight)
    inputs = model.get_input_embeddings()
    if type(inputs).forward is nn.Embedding.forward and inputs.weight.dtype.itemsize == 2:
        model.set_input_embeddings(SavedEmbedding(inputs.get_parameter("weight")))
    for weight in model.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.float()
    model.config.dtype = torch.float32


@torch.no_grad()
def restore_matrices(model: PreTrainedModel) -> None:
    """Give the matrices with a row for each token [V, I] their float32 weights again, in place."""
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(outputs, Int8Linear)
    linear = nn.Linear(outputs.codes.shape[1], len(outputs.codes), outputs.bias is not None)
    linear.weight, linear.bias = nn.Parameter(outputs.weight), outputs.bias  # type: ignore[assignment]
    model.set_output_embeddings(linear)
    if isinstance(inputs, Int8Embedding | SavedEmbedding):
        is_tied = isinstance(inputs, Int8Embedding)
        weight = linear.weight if is_tied else nn.Parameter(inputs.weight)
        embedding = nn.Embedding.from_pretrained(weight)
        embedding.weight = weight  # the same one if it is tied
        model.set_input_embeddings(embedding)
