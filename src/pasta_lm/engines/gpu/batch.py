"""A forward pass as a few arrays of fixed shape: what paged attention and captured graphs read.

Rows of all requests stand one after the other; padding behind them feeds nothing and sees
nothing. The shape comes from a bucket, so that a few shapes serve every pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pasta_lm.interpreter.placement import Entry

NO_SLOT = -1
LATEST = torch.iinfo(torch.int32).max  # the cutoff of an owner all of whose entries are visible

# Legend: N rows (padding included), B blocks of rows of one request, R requests, P pages of a
# request at most, O owners at most.


class Bucket(NamedTuple):
    """The shape of a pass."""

    num_rows: int
    num_blocks: int
    num_requests: int
    num_pages: int  # of each request
    num_owners: int
    block_rows: int  # rows of a block at most


class RowIndex:
    """The lines of ``PagedBatch.rows``, as the kernels number them."""

    TOKEN, POSITION, SLOT, PLACE, OWNER = range(5)


class RequestSize(NamedTuple):
    """What the bucket of a pass depends on, of one request."""

    num_rows: int
    num_pages: int
    num_owners: int


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The rows of one request in a pass."""

    fed: Sequence[Entry]  # entries that the pass feeds, one row each
    first_slot: int  # the slot of the first; the others follow
    pages: Sequence[int]  # of the pool, in order of slot
    num_owners: int

    @property
    def size(self) -> RequestSize:
        """Return its size, from which the bucket follows."""
        return RequestSize(len(self.fed), len(self.pages), self.num_owners)


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """The arrays of one pass, int32."""

    bucket: Bucket
    page_size: int
    rows: Tensor
    """[5, N]: token, position, slot in its request, place in the pool, owner; padding has no slot
    and no place (-1)."""
    blocks: Tensor
    """[4, B]: first row, number of rows, request, keys of the request; padding has no rows."""
    table: Tensor
    """[R, P]: the pages of each request."""
    cutoffs: Tensor
    """[N, O]: for each row the first slot of each owner that it may not see."""

    @staticmethod
    def sizes(bucket: Bucket) -> tuple[int, int, int, int]:
        """Return how many numbers the arrays have."""
        num_rows, num_blocks, num_requests, num_pages, num_owners, _ = bucket
        return 5 * num_rows, 4 * num_blocks, num_requests * num_pages, num_rows * num_owners

    @classmethod
    def num_numbers(cls, bucket: Bucket) -> int:
        """Return how many numbers all arrays have together."""
        return sum(cls.sizes(bucket))

    @classmethod
    def of_numbers(cls, bucket: Bucket, page_size: int, numbers: Tensor) -> PagedBatch:
        """Return the arrays as views of one tensor, so that one copy moves all of them."""
        rows, blocks, table, cutoffs = numbers.split(cls.sizes(bucket))
        return cls(
            bucket, page_size, rows.view(5, -1), blocks.view(4, -1),
            table.view(bucket.num_requests, -1), cutoffs.view(bucket.num_rows, -1),
        )  # fmt: skip

    @classmethod
    def of(cls, requests: Sequence[RequestRows], bucket: Bucket, page_size: int) -> PagedBatch:
        """Return a pass over the rows of some requests, in the memory of the host."""
        numbers = torch.empty(cls.num_numbers(bucket), dtype=torch.int32)
        batch = cls.of_numbers(bucket, page_size, numbers)
        batch.fill(requests)
        return batch

    def fill(self, requests: Sequence[RequestRows]) -> None:
        """Describe other rows in the same arrays; without requests all rows are padding.

        The arrays are in the memory of the host. They are written as NumPy arrays: lists of
        numbers cost a third of the time that they cost as tensors.
        """
        arrays = (self.rows, self.blocks, self.table, self.cutoffs)
        rows, blocks, table, cutoffs = (array.numpy() for array in arrays)
        for array in (rows, blocks, table, cutoffs):
            array.fill(0)
        rows[RowIndex.SLOT : RowIndex.PLACE + 1] = NO_SLOT
        fed = [entry for request in requests for entry in request.fed]
        if not fed:
            return
        slots = [request.first_slot + i for request in requests for i in range(len(request.fed))]
        places = [place for request in requests for place in self._places(request)]
        lines = ([e.token for e in fed], [e.position for e in fed], slots, places)
        rows[:, : len(fed)] = [*lines, [e.owner for e in fed]]
        described = _blocks(requests, self.bucket.block_rows)
        blocks.T[: len(described)] = described
        for index, request in enumerate(requests):
            table[index, : len(request.pages)] = request.pages
        cutoffs[: len(fed)] = _cutoffs(fed, self.bucket.num_owners)

    def _places(self, request: RequestRows) -> list[int]:
        """Return where the new entries of a request stand in the pool."""
        size, stop = self.page_size, request.first_slot + len(request.fed)
        return [request.pages[s // size] * size + s % size for s in range(request.first_slot, stop)]

    def to(self, device: torch.device) -> PagedBatch:
        """Return the arrays on a device."""
        arrays = (self.rows, self.blocks, self.table, self.cutoffs)
        return PagedBatch(self.bucket, self.page_size, *(array.to(device) for array in arrays))


def _blocks(requests: Sequence[RequestRows], block_rows: int) -> list[tuple[int, int, int, int]]:
    blocks, start = [], 0
    for index, request in enumerate(requests):
        for first in range(0, len(request.fed), block_rows):
            size = min(block_rows, len(request.fed) - first)
            # Later rows of the same pass stand behind the last key that this block may see.
            blocks.append((start + first, size, index, request.first_slot + first + size))
        start += len(request.fed)
    return blocks


def _cutoffs(fed: Sequence[Entry], num_owners: int) -> list[list[int]]:
    lines, made = [], dict[int, list[int]]()
    for entry in fed:
        line = made.get(id(entry.row))  # entries of one thread share their row
        if line is None:
            line = made[id(entry.row)] = [0] * num_owners
            for owner, cutoff in entry.row.cutoffs.items():
                line[owner] = min(cutoff, LATEST)
        lines.append(line)
    return lines
