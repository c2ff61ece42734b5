"""Threads of compiled products, and the large pages of their weights."""

from __future__ import annotations

import mmap

import pytest
import torch

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.library import PAGE, HugePages


@pytest.mark.parametrize(("of_torch", "idle", "used"), [(4, 8, 4), (4, 1, 1), (4, 3, 3)])
def test_compiled_functions_never_use_more_threads_than_torch_may_or_than_cores_are_idle(
    of_torch: int, idle: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: of_torch)
    monkeypatch.setattr(library, "idle_cores", lambda: idle)
    assert library.num_threads() == used


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_large_pages_hold_copies_side_by_side(dtype: torch.dtype) -> None:
    pages = HugePages()
    tensors = [torch.arange(-60, 60).to(dtype).view(2, -1) + i for i in range(3)]
    copies = [pages.copy(tensor) for tensor in tensors]
    assert all(torch.equal(a, b) for a, b in zip(copies, tensors, strict=True))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        places = [copy.data_ptr() for copy in copies]
        assert places[0] % PAGE == 0
        assert all(place % 64 == 0 for place in places)
        assert places == sorted(places)
        assert all(copy.untyped_storage().nbytes() >= copy.nbytes for copy in copies)


def test_a_tensor_larger_than_a_block_has_a_block_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pasta_lm.engines.cpu.library.BLOCK", PAGE)
    pages = HugePages()
    small, large = torch.ones(10), torch.arange(PAGE, dtype=torch.float32)
    assert torch.equal(pages.copy(small), small)
    assert torch.equal(pages.copy(large), large)
    assert torch.equal(pages.copy(small), small)


def test_without_large_pages_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    tensor = torch.ones(3)
    assert HugePages().copy(tensor) is tensor
