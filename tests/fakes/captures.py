"""A capture of passes that is as unkind as CUDA's: it knows addresses, and waits for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from pasta_lm.engines.gpu import decoder
from pasta_lm.engines.gpu.attention import LayerMemory, attend_gathered, place_entries
from pasta_lm.engines.gpu.batch import Bucket, PagedBatch
from pasta_lm.engines.gpu.decoder import Function
from pasta_lm.engines.passes.attention import LayerCall

WAITS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.nonzero.default,
)


class Waits(RuntimeError):
    """An operation waits for the device inside a capture."""


class Address(NamedTuple):
    """Where a tensor that was there before the capture lies; it may be freed."""

    storage: StorageWeakRef
    dtype: torch.dtype
    layout: tuple[Any, ...]

    def tensor(self) -> Tensor:
        assert not self.storage.expired(), "a captured graph reads freed memory"
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)


class Recorder(TorchDispatchMode):
    """Keeps each operation, what it makes, and addresses of what was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in WAITS:
            raise Waits(str(func))
        out = func(*args, **(kwargs or {}))
        read = tree_map(self._address, (args, kwargs or {}))
        old = {_storage(x) for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)}
        made = [x for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
        self._made |= {_storage(x) for x in made} - old
        self.operations.append((func, *read, [None if _storage(x) in old else x for x in made]))
        return out

    def _address(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or _storage(value) in self._made:
            return value
        layout = value.storage_offset(), value.size(), value.stride()
        return Address(StorageWeakRef(value.untyped_storage()), value.dtype, layout)

    def replay(self) -> None:
        """Run all operations again, into the same memory."""
        for func, args, kwargs, kept in self.operations:
            args, kwargs = tree_map(_resolve, (args, kwargs), is_leaf=_is_address)
            made = [x for x in tree_flatten(func(*args, **kwargs))[0] if isinstance(x, Tensor)]
            for old, new in zip(kept, made, strict=True):
                if old is not None:
                    old.copy_(new)


def _is_address(value: object) -> bool:
    return isinstance(value, Address)


def _resolve(value: Any) -> Any:
    return value.tensor() if isinstance(value, Address) else value


def _storage(value: Tensor) -> int:
    return value.untyped_storage()._cdata


def capture(function: Function) -> Function:
    """Capture as ``CudaGraphs`` does, which holds the output and the memory of the graph alone."""
    with Recorder() as recorder:
        output = function()

    def replay() -> Tensor:
        recorder.replay()
        return output

    return replay


# Kernels, which a capture sees as one operation each.

_calls: list[tuple[LayerCall, Bucket, int]] = []


@torch.library.custom_op("pasta_tests::attend", mutates_args={"keys", "values"})
def _attend(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, entries: Tensor,
    arrays: Sequence[Tensor], call: int,
) -> Tensor:  # fmt: skip
    layer, bucket, page_size = _calls[call]
    batch = PagedBatch(bucket, page_size, *arrays)
    return attend_gathered(layer, q, k, v, LayerMemory(keys, values, entries, batch))


@torch.library.custom_op("pasta_tests::place", mutates_args={"entries"})
def _place(entries: Tensor, arrays: Sequence[Tensor], call: int) -> None:
    place_entries(PagedBatch(*_calls[call][1:], *arrays), entries)


def _arrays(batch: PagedBatch) -> list[Tensor]:
    return [batch.rows, batch.blocks, batch.table, batch.cutoffs, batch.wanted]


def attend(call: LayerCall, q: Tensor, k: Tensor, v: Tensor, memory: LayerMemory) -> Tensor:
    """Return ``attend_gathered`` as one operation."""
    *tensors, batch = memory
    _calls.append((call, batch.bucket, batch.page_size))
    return _attend(q, k, v, *tensors, _arrays(batch), len(_calls) - 1)


def place(batch: PagedBatch, entries: Tensor) -> None:
    """Do as ``place_entries``, as one operation."""
    _calls.append((LayerCall(0, None, None, None, None), batch.bucket, batch.page_size))
    _place(entries, _arrays(batch), len(_calls) - 1)


def capture_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let decoders on a CPU capture their passes."""
    monkeypatch.setattr(decoder, "attend_gathered", attend)
    monkeypatch.setattr(decoder, "place_entries", place)
    monkeypatch.setattr(decoder, "graphs_of", lambda device: capture)
