"""Memory of large pages for weights, which are read from beginning to end for every token.

Weights in pages of 2 MiB are read up to a fifth faster than in pages of 4 KiB: the processor looks
up fewer addresses. Linux gives such pages on request (``madvise``); elsewhere nothing is copied.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

PAGE = 2 << 20
BLOCK = 32 * PAGE  # bytes that are taken from the system at once
ALIGNMENT = 64  # bytes of a cache line


class HugePages:
    """Copies of tensors side by side in large pages, in the order in which they are made."""

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self._used = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a contiguous copy in large pages, or the tensor itself if there are none."""
        if not hasattr(mmap, "MADV_HUGEPAGE") or tensor.device.type != "cpu" or not tensor.numel():
            return tensor
        num_bytes = tensor.numel() * tensor.element_size()
        if self._block is None or self._used + num_bytes > len(self._block):
            self._block, self._used = _new_block(num_bytes)
        copy = torch.frombuffer(
            self._block, dtype=tensor.dtype, count=tensor.numel(), offset=self._used
        )
        self._used += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return copy.view(tensor.shape).copy_(tensor)


def _new_block(num_bytes: int) -> tuple[mmap.mmap, int]:
    """Return memory for a tensor and others behind it, and where its first large page begins."""
    size = -(-max(num_bytes, BLOCK) // PAGE) * PAGE + PAGE
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        block.madvise(mmap.MADV_HUGEPAGE)
    first = torch.frombuffer(block, dtype=torch.uint8, count=1).data_ptr()
    return block, -first % PAGE
