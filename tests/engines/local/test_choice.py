"""Rows and threads of compiled products are measured once for a machine, model and version."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pasta_lm.engines.cpu import kernels, library
from pasta_lm.engines.cpu.kernels import Gate, Linear, RmsNorm, join
from pasta_lm.engines.cpu.library import MAX_ROWS, PAGE, HugePages

needs_compiler = pytest.mark.skipif(library.functions() is None, reason="no C compiler")


def layers(width: int = 64) -> list[Linear]:
    weight = torch.randn(96, width, generator=torch.Generator().manual_seed(0))
    made = [join([weight], [None]) for _ in range(4)]
    made[1].put_before(RmsNorm(1e-5, None))
    made[2].put_before(Gate("silu"))
    return made


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_most_threads", [])
    monkeypatch.setattr(library, "idle_cores", lambda: 8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kernels, "MIN_WEIGHTS", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pasta-lm"


@needs_compiler
def test_the_choice_is_one_of_the_candidates_and_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = layers()
    kernels.choose(first)
    assert {layer.compiled_rows for layer in first} <= {0, *kernels.CANDIDATES}
    assert (folder / kernels.FILE).exists()
    monkeypatch.setattr(kernels, "_measure", None)
    again = layers()
    kernels.choose(again)
    assert [layer.compiled_rows for layer in again] == [layer.compiled_rows for layer in first]


def measured(
    monkeypatch: pytest.MonkeyPatch, folder: Path, seconds: Callable[[int, bool], float]
) -> int:
    """Choose with these times of a round, by rows and whether products are compiled."""
    monkeypatch.setattr(
        kernels, "_seconds", lambda layers, rows, is_compiled: seconds(rows, is_compiled)
    )
    made = layers()
    kernels.choose(made)
    return made[0].compiled_rows


@needs_compiler
@pytest.mark.parametrize("fastest", [*kernels.CANDIDATES, 0])
def test_the_largest_number_of_rows_that_is_faster_is_chosen(
    fastest: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(rows: int, is_compiled: bool) -> float:
        return 1.0 if rows <= fastest and is_compiled else 2.0

    assert measured(monkeypatch, folder, seconds) == fastest


@needs_compiler
@pytest.mark.parametrize(
    ("available", "spent", "chosen"),
    [
        (1, {1: 1.0}, 1),
        (2, {2: 1.0, 1: 2.0}, 2),
        (2, {2: 1.0, 1: 1.02}, 1),  # the second thread saves too little
        (8, {8: 3.0, 4: 2.0, 2: 2.5, 1: 4.0}, 4),
        (6, {6: 1.0, 3: 2.0, 1: 4.0}, 6),
    ],
)
def test_as_few_threads_as_are_fast_enough_are_chosen(
    available: int,
    spent: dict[int, float],
    chosen: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: available)
    measured(monkeypatch, folder, lambda rows, is_compiled: spent[library.num_threads()])
    assert library.num_threads() == chosen


@pytest.mark.parametrize(
    ("of_torch", "chosen", "idle", "used"),
    [(4, None, 8, 4), (4, 2, 8, 2), (2, 4, 8, 2), (4, 3, 1, 1), (4, None, 3, 3)],
)
def test_compiled_functions_never_use_more_threads_than_torch_may_or_than_cores_are_idle(
    of_torch: int, chosen: int | None, idle: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: of_torch)
    monkeypatch.setattr(library, "idle_cores", lambda: idle)
    if chosen is not None:
        library.use_threads(chosen)
    assert library.num_threads() == used


def test_a_busy_machine_is_not_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(library, "idle_cores", lambda: 1)
    kernels.choose(layers())
    assert not (folder / kernels.FILE).exists()


def test_a_small_model_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_measure", None)
    made = layers()
    kernels.choose(made)
    assert all(layer.compiled_rows == MAX_ROWS for layer in made if layer.compiled is not None)


def test_layers_without_compiled_products_are_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "functions", lambda: None)
    made = layers()
    kernels.choose(made)
    assert [layer.compiled_rows for layer in made] == [0] * 4


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
