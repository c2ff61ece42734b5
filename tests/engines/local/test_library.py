"""Threads of compiled products, and the large pages of their weights."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import pytest
import torch

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.library import PAGE, HugePages
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Request, SamplingParams
from tests.architectures import loaded


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("by_user", "of_torch", "idle", "used"),
    [(None, 4, 8, 4), (None, 4, 1, 1), (None, 4, 3, 3), ("4", 4, 1, 4)],
)
def test_compiled_functions_take_the_idle_cores_unless_a_number_is_named(
    by_user: str | None, of_torch: int, idle: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(library.NUM_THREADS, raising=False)
    if by_user is not None:
        monkeypatch.setenv(library.NUM_THREADS, by_user)
    monkeypatch.setattr(library, "idle_cores", lambda: idle)
    torch.set_num_threads(of_torch)
    assert library.num_threads() == used
    with library.torch_on_one_thread():
        assert (torch.get_num_threads(), library.num_threads()) == (1, used)
    assert torch.get_num_threads() == of_torch


@pytest.mark.skipif(library.functions() is None, reason="no C compiler")
def test_torch_has_one_thread_in_passes_of_few_rows_and_its_own_number_outside() -> None:
    numbers: list[int] = []

    def note(*_: object) -> None:
        numbers.append(torch.get_num_threads())

    engine = TorchEngine(loaded("llama"), on_logits=note)
    torch.set_num_threads(3)
    prompt = (5,) * (library.MAX_ROWS + 1)
    request = Request(prompt=prompt, params=SamplingParams(max_tokens=3))
    engine.generate([request])
    assert torch.get_num_threads() == 3
    assert numbers[:3] == [3, 1, 1]


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
