"""Weights of linear layers in eight bits, with one scale for each output.

Such a model is one whose weights are ``code * scale``: passes of many rows, the tests of exactness
and the engine's reference compute with these. Passes of a few rows read the codes instead: a byte
of each weight. Activations, embeddings but the output matrix, and the cache keep their dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MAX_INT8 = 127
MAX_FLOAT8_ROWS = 16  # that its kernel takes: the least side of a product in Triton
MAX_FLOAT8 = 448.0  # the largest number of float8_e4m3fn
_KEPT_BITS = ~0x7F  # of a scale: 17 significant bits, so that its product with 7 bits is exact

# Legend: I inputs, O outputs.


@dataclass(frozen=True, slots=True)
class EightBits:
    """A way to write weights in eight bits."""

    name: str  # the dtype that asks for it
    dtype: torch.dtype  # of the weights that codes stand for, and of activations
    quantise: Callable[[Tensor], tuple[Tensor, Tensor]]
    """From a weight [O, I] to codes [O, I] and scales float32 [O]; quantising ``dequantise`` of
    the result gives the same weight."""


def _to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    largest = weight.abs().amax(dim=1)
    scales = (largest / MAX_INT8).view(torch.int32).bitwise_and(_KEPT_BITS).view(torch.float32)
    codes = (weight / _divisors(scales)).round_().clamp_(-MAX_INT8, MAX_INT8)
    return codes.to(torch.int8), scales


def _to_float8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Let scales be powers of two: bfloat16 then holds code times scale exactly."""
    weight = weight.float()
    largest = weight.abs().amax(dim=1)
    mantissa, exponent = torch.frexp(largest / MAX_FLOAT8)
    exponent = exponent - (mantissa == 0.5).int()
    scales = torch.ldexp(torch.ones_like(largest), exponent).where(largest > 0, 0.0)
    return (weight / _divisors(scales)).to(torch.float8_e4m3fn), scales


def _divisors(scales: Tensor) -> Tensor:
    return scales.where(scales > 0, 1.0)[:, None]


INT8 = EightBits("int8", torch.float32, _to_int8)
FLOAT8 = EightBits("float8", torch.bfloat16, _to_float8)


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the weight float32 [..., I] that codes [..., I] and scales [...] stand for."""
    return codes.float() * scales[..., None]


@torch.no_grad()
def round_weights(model: nn.Module, kind: EightBits) -> None:
    """Round the weight of each linear layer to one that eight bits stand for, in place.

    The model is of the dtype of ``kind``. An embedding with the matrix of a linear layer is
    rounded too.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(dequantise(*kind.quantise(module.weight)))
