"""Weights of linear layers as int8 codes, with one scale for each output.

Such a model is one whose weights are ``code * scale``: passes of many rows, the tests of exactness
and the engine's reference compute with these. Passes of a few rows read the codes instead: a byte
of each weight. Activations, embeddings but the output matrix, and the cache are float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

INT8 = "int8"  # the dtype that asks for it
MAX_INT8 = 127
_KEPT_BITS = ~0x7F  # of a scale: 17 significant bits, so that its product with 7 bits is exact

# Legend: I inputs, O outputs.


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes int8 [O, I] and scales float32 [O] for a weight float32 [O, I].

    Quantising ``dequantise`` of the result gives the same codes and scales.
    """
    largest = weight.abs().amax(dim=1)
    scales = (largest / MAX_INT8).view(torch.int32).bitwise_and(_KEPT_BITS).view(torch.float32)
    divisors = scales.where(scales > 0, 1.0)[:, None]
    codes = (weight / divisors).round_().clamp_(-MAX_INT8, MAX_INT8)
    return codes.to(torch.int8), scales


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the weight float32 [..., I] that codes [..., I] and scales [...] stand for."""
    return codes.float() * scales[..., None]


@torch.no_grad()
def round_weights(model: nn.Module) -> None:
    """Round the weight of each linear layer of a float32 model to one that codes stand for.

    It happens in place. An embedding with the matrix of a linear layer is rounded too.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(dequantise(*quantise(module.weight)))
