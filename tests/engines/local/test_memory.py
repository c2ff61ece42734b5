"""A budget in bytes or as a share of the device becomes a number of cache entries."""

from __future__ import annotations

import pytest
import torch

from pasta_lm.engines.gpu.devices import budget_bytes, free_bytes
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import pool_slots
from pasta_lm.errors import UsageError
from tests.architectures import loaded


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ("4096", 4096),
        ("800MB", 800_000_000),
        ("2GiB", 2 << 30),
        ("1.5 kib", 1536),
        ("40%", 400),
        ("100%", 1000),
    ],
)
def test_a_budget_is_a_number_of_bytes_or_a_share_of_what_is_free(
    memory: str, expected: int
) -> None:
    assert budget_bytes(memory, 1000) == expected


@pytest.mark.parametrize("memory", ["", "-1GB", "lots", "101%", "3 apples", "GB"])
def test_what_is_no_size_is_refused(memory: str) -> None:
    with pytest.raises(UsageError, match="has no size"):
        budget_bytes(memory, 1000)


def test_the_cache_of_a_budget_takes_that_many_bytes() -> None:
    model = loaded("llama")
    num_slots = pool_slots("1MiB", model)
    pool = TorchEngine(model, pool_tokens=num_slots).pool
    size = sum(one.numel() * one.element_size() for one in (*pool.keys, *pool.values))
    page = pool.page_size * size // pool.num_slots
    assert (1 << 20) - page < size < (1 << 20) + page
    with pytest.raises(UsageError, match="holds nothing"):
        pool_slots("10", model)


def test_this_machine_has_memory() -> None:
    assert free_bytes(torch.device("cpu")) > 1 << 20
