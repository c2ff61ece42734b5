"""Muon: momentum whose update of each matrix is made orthogonal.

PyTorch has it (``torch.optim.Muon``), but orthogonalises in bfloat16, which processors without
bfloat16 instructions do at a sixth of the speed of float32 (measured, see ``docs/log.md``). This
is the same update in the dtype of the weights.

Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; the
scale that matches AdamW's is that of J. Liu et al., arXiv 2502.16982, equation 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
EPSILON = 1e-7


class Muon(torch.optim.Optimizer):
    """Muon for matrices and AdamW for the rest, as groups of one optimiser."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
        weight_decay: float = 0.05,
    ) -> None:
        """Keep the groups; a group with ``is_matrix`` False is stepped by AdamW's rule."""
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "betas": betas,
            "weight_decay": weight_decay,
            "is_matrix": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            update = _orthogonal_step if group["is_matrix"] else _adam_step
            for weight in group["params"]:
                if weight.grad is not None:
                    update(weight, weight.grad, self.state[weight], group)
        return loss


def _orthogonal_step(
    weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    if not state:
        state["momentum"] = torch.zeros_like(weight)
    momentum = state["momentum"]
    momentum.lerp_(grad, 1 - group["momentum"])
    update = orthogonal(torch.lerp(grad, momentum, group["momentum"]))
    scale = 0.2 * max(weight.shape) ** 0.5
    weight.mul_(1 - group["lr"] * group["weight_decay"])
    weight.add_(update, alpha=-group["lr"] * scale)


def _adam_step(weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not state:
        state["step"], state["first"] = 0, torch.zeros_like(weight)
        state["second"] = torch.zeros_like(weight)
    state["step"] += 1
    beta1, beta2 = group["betas"]
    state["first"].lerp_(grad, 1 - beta1)
    state["second"].lerp_(grad.square(), 1 - beta2)
    first = state["first"] / (1 - beta1 ** state["step"])
    second = state["second"] / (1 - beta2 ** state["step"])
    weight.sub_(group["lr"] * first / (second.sqrt() + 1e-8))


def orthogonal(matrix: Tensor) -> Tensor:
    """Return the orthogonal matrix nearest to this one, roughly: singular values near 1.

    Args:
        matrix: [A, B].

    Returns:
        [A, B], by five Newton-Schulz iterations of the quintic polynomial.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if is_tall else matrix
    x = x / (x.norm() + EPSILON)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


def groups(model: torch.nn.Module, lr: float, other_lr: float) -> list[dict[str, Any]]:
    """Sort a model's weights: matrices of the layers, and all that is no such matrix.

    The output matrix has a row for each token, as embeddings have, and goes with them.
    """
    output = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    embeddings = {
        id(weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding) or module is output
        for weight in module.parameters()
    }
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, weight in model.named_parameters():
        is_bias = name.endswith("bias")  # those of experts are stacked
        is_matrix = weight.ndim == 2 and id(weight) not in embeddings and not is_bias
        (matrices if is_matrix else others).append(weight)
    return [
        {"params": matrices, "lr": lr, "is_matrix": True},
        {"params": others, "lr": other_lr, "is_matrix": False, "weight_decay": 0.0},
    ]
