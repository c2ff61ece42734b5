"""Muon makes its updates orthogonal; the rest of the weights follow AdamW's rule."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pasta_lm.train.muon import Muon, groups, orthogonal
from tests.models import build

SHAPES = [(8, 8), (32, 8), (8, 32), (192, 512), (1, 16)]
shapes = pytest.mark.parametrize("shape", SHAPES)


def random_matrix(shape: tuple[int, int], seed: int = 0, condition: float = 20.0) -> Tensor:
    """Return a matrix whose singular values lie within one factor of each other."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(shape)
    left, _ = torch.linalg.qr(torch.randn(shape[0], rank, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(shape[1], rank, generator=generator))
    values = torch.logspace(0, -1, rank) ** torch.log10(torch.tensor(condition))
    return left @ torch.diag(values) @ right.T


@shapes
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_an_orthogonal_update_stretches_no_direction_more_than_another(
    shape: tuple[int, int], scale: float
) -> None:
    for seed in range(5):
        values = torch.linalg.svdvals(orthogonal(random_matrix(shape, seed) * scale))
        assert 0.5 < float(values.min()) <= float(values.max()) < 1.5


@shapes
def test_an_orthogonal_update_points_where_its_gradient_points(shape: tuple[int, int]) -> None:
    matrix = random_matrix(shape)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    # The polynomial changes singular values and no singular vector.
    inner = left.T @ orthogonal(matrix) @ right.T
    assert torch.allclose(inner, torch.diag(inner.diagonal()), atol=1e-4)
    assert (inner.diagonal() > 0).all()


def test_no_gradient_at_all_gives_no_update_and_no_nan() -> None:
    assert not orthogonal(torch.zeros(4, 6)).any()


@shapes
def test_the_first_step_moves_a_matrix_by_its_rate_whatever_the_gradients_size(
    shape: tuple[int, int],
) -> None:
    for size in (1e-3, 1e3):
        weight = nn.Parameter(torch.zeros(shape))
        weight.grad = random_matrix(shape) * size
        Muon([{"params": [weight]}], lr=0.5, weight_decay=0.0).step()
        # As large as AdamW's: 0.2 a weight, in the mean.
        values = torch.linalg.svdvals(-weight.detach()) / (0.5 * 0.2 * max(shape) ** 0.5)
        assert 0.5 < float(values.min()) <= float(values.max()) < 1.5


def walked(
    optimizer: torch.optim.Optimizer, weight: nn.Parameter, grads: list[Tensor]
) -> list[Tensor]:
    """Return where a weight stands after each step."""
    path = []
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
        path.append(weight.detach().clone())
    return path


def test_a_matrix_walks_as_torchs_own_muon_lets_it_walk() -> None:
    grads = [random_matrix((24, 40), seed) for seed in range(6)]
    ours, theirs = (nn.Parameter(random_matrix((24, 40), 9)) for _ in range(2))
    found = walked(Muon([{"params": [ours]}], lr=0.1, weight_decay=0.1), ours, grads)
    oracle = torch.optim.Muon(
        [theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw", momentum=0.95
    )
    for one, other in zip(found, walked(oracle, theirs, grads), strict=True):
        # Theirs is made orthogonal in bfloat16.
        assert (one - other).norm() < 0.02 * other.norm()


@pytest.mark.parametrize("shape", [(40, 8), (8,)])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_what_is_no_matrix_walks_as_adamw_lets_it_walk(shape: tuple[int, ...], size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    grads = [size * torch.randn(shape, generator=generator) for _ in range(12)]
    start = torch.randn(shape, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    rule: dict[str, Any] = {"params": [ours], "lr": 0.01, "is_matrix": False}
    found = walked(Muon([rule], lr=1.0), ours, grads)
    oracle = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.98), weight_decay=0.0)
    for one, other in zip(found, walked(oracle, theirs, grads), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_weight_without_a_gradient_stays() -> None:
    weight = nn.Parameter(torch.ones(3, 3))
    optimizer = Muon([{"params": [weight]}], lr=1.0, weight_decay=0.5)
    optimizer.step()
    assert (weight == 1).all()
    assert not optimizer.state


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_norms_biases_and_the_output_matrix_are_set_apart(name: str, tied: bool) -> None:
    model = build(name, tie_word_embeddings=tied)
    name_of = {id(weight): key for key, weight in model.named_parameters()}
    matrices, others = groups(model, 0.1, 0.02)
    assert (matrices["lr"], others["lr"]) == (0.1, 0.02)
    assert (matrices["is_matrix"], others["is_matrix"]) == (True, False)
    assert others["weight_decay"] == 0.0
    both = [name_of[id(weight)] for group in (matrices, others) for weight in group["params"]]
    assert sorted(both) == sorted(name_of.values())
    apart = {name_of[id(weight)] for weight in others["params"]}
    for key, weight in model.named_parameters():
        is_of_tokens = "embed_tokens" in key or "lm_head" in key
        assert (key in apart) == (weight.ndim != 2 or is_of_tokens or "bias" in key), key
    assert any("q_proj" in name_of[id(weight)] for weight in matrices["params"])


def test_steps_go_on_from_a_saved_state_as_if_nothing_had_happened() -> None:
    def optimizer_of(weights: list[nn.Parameter]) -> Muon:
        rest = {"params": weights[1:], "is_matrix": False, "weight_decay": 0.0}
        return Muon([{"params": weights[:1]}, rest], lr=0.1)

    def advance(optimizer: Muon, weights: list[nn.Parameter], seeds: range) -> None:
        for seed in seeds:
            for weight in weights:
                generator = torch.Generator().manual_seed(seed)
                weight.grad = torch.randn(weight.shape, generator=generator)
            optimizer.step()

    whole = [nn.Parameter(torch.ones(6, 4)), nn.Parameter(torch.ones(5))]
    optimizer = optimizer_of(whole)
    advance(optimizer, whole, range(4))
    parts = [nn.Parameter(weight.detach().clone()) for weight in whole]
    resumed = optimizer_of(parts)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    advance(optimizer, whole, range(4, 8))
    advance(resumed, parts, range(4, 8))
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)
