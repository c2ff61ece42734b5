"""Weights of linear layers in eight bits, with one scale for each output.

A model with such weights is a float32 model whose weights are ``code * scale``, so whatever holds
for a model holds for it: passes of many rows, the tests of exactness and the engine's reference
compute with these weights. Passes of a few rows read the codes instead, a quarter of the bytes.
Activations, embeddings that are not the output matrix, and the cache stay float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

NAME = "int8"  # the dtype that asks for it
MAX_CODE = 127
_KEPT_BITS = ~0x7F  # of a scale: 17 significant bits, so that its product with 7 bits is exact

# Legend: I inputs, O outputs.


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes int8 [O, I] and the scales float32 [O] of a weight float32 [O, I].

    The largest weight of an output has the code 127 or -127. Quantising ``dequantise`` of the
    result gives the same codes and scales.
    """
    largest = weight.abs().amax(dim=1)
    scales = (largest / MAX_CODE).view(torch.int32).bitwise_and(_KEPT_BITS).view(torch.float32)
    divisors = scales.where(scales > 0, 1.0)[:, None]
    return (weight / divisors).round_().clamp_(-MAX_CODE, MAX_CODE).to(torch.int8), scales


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the weight float32 [O, I] that codes int8 [O, I] and scales [O] stand for."""
    return codes * scales[:, None]


@torch.no_grad()
def round_weights(model: nn.Module) -> None:
    """Round the weight of each linear layer to one that eight bits stand for, in place.

    Args:
        model: float32. An embedding that shares its matrix with a linear layer is rounded too.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(dequantise(*quantise(module.weight)))
