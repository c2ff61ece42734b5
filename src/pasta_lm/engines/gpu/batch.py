"""A forward pass, and the choice of its tokens, in arrays of fixed shape, which graphs can hold.

Rows of all requests stand one after the other; padding behind them feeds and sees nothing. A few
buckets serve every pass: rows and blocks, whose padding costs a little, are rounded to powers of
two, the bounds of tables to few values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pasta_lm.engines.passes.sampling import Choice, TokenMasks, draw_likely, draw_settings
from pasta_lm.interpreter.interpreter import Legal
from pasta_lm.interpreter.placement import Entry

TOKEN, POSITION, SLOT, POOL_SLOT, OWNER = range(5)  # lines of ``PagedBatch.rows``
LATEST = torch.iinfo(torch.int32).max  # the cutoff of an owner all of whose entries are visible
MIN_PAGES, MIN_OWNERS = 32, 16
MAX_QUERIES = 32  # rows times query heads of a key head that one instance of the kernel takes
MIN_SPLIT_KEYS = 64  # fewer keys an instance are not worth combining
MAX_SPLITS = 64
WANTED_INSTANCES = 264  # two for each multiprocessor of an H100 or H200
MAX_MASKS = 64  # rows of the table of legal tokens: a grammar needs about a dozen
NUM_LINES = 7  # settings of a choice: those of a draw, then the bias of a fork and the mask

# Legend: N rows (padding included), W rows whose logits are wanted, B blocks of rows of one
# request, R requests, P pages of a request at most, O owners at most, V vocabulary, M masks.


class Bucket(NamedTuple):
    """The shape of a pass."""

    num_rows: int
    num_blocks: int
    num_requests: int
    num_pages: int  # the pages of each request
    num_owners: int
    block_rows: int  # rows of a block at most
    num_wanted: int = 1  # rows whose logits are wanted


class RequestSize(NamedTuple):
    """The size of one request in a pass, on which the bucket depends."""

    num_rows: int
    num_pages: int
    num_owners: int


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The rows of one request in a pass."""

    fed: Sequence[Entry]  # entries that the pass feeds, one row each
    first_slot: int  # the slot of the first; the others follow
    pages: Sequence[int]  # the pool's, in order of slot
    num_owners: int

    @property
    def size(self) -> RequestSize:
        return RequestSize(len(self.fed), len(self.pages), self.num_owners)


def bucket_of(requests: Sequence[RequestSize], group: int, num_wanted: int = 1) -> Bucket:
    """Return the smallest bucket for requests; ``group`` are the query heads of a key head."""
    largest = max(request.num_rows for request in requests)
    block_rows = min(_rounded(largest, 1), max(1, MAX_QUERIES // group))
    num_rows = power_of_two(sum(request.num_rows for request in requests))
    blocks = sum(-(-request.num_rows // block_rows) for request in requests)
    # One request, or about as many as there are rows: two shapes instead of one for each number.
    fewest = -(-num_rows // block_rows)
    return Bucket(
        num_rows=num_rows,
        num_blocks=fewest if blocks <= fewest else num_rows,
        num_requests=1 if len(requests) == 1 else num_rows,
        num_pages=_rounded(max(request.num_pages for request in requests), MIN_PAGES),
        num_owners=_rounded(max(request.num_owners for request in requests), MIN_OWNERS),
        block_rows=block_rows,
        # One, as of a prompt, or all.
        num_wanted=1 if num_wanted <= 1 else max(num_rows, power_of_two(num_wanted)),
    )


def num_splits(bucket: Bucket, num_key_heads: int, page_size: int) -> int:
    """Return the number of parts of the keys of a block, a power of two."""
    by_work = WANTED_INSTANCES / (bucket.num_blocks * num_key_heads)
    by_keys = bucket.num_pages * page_size // MIN_SPLIT_KEYS
    return power_of_two(max(1, min(int(by_work), by_keys, MAX_SPLITS)))


def power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _rounded(number: int, least: int) -> int:
    while least < number:
        least *= 4  # where padding costs next to nothing
    return least


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """The arrays of one pass, int32."""

    bucket: Bucket
    page_size: int
    rows: Tensor  # [5, N]: token, position, slot in its request, slot in the pool, owner; padding
    # has no slot (-1)
    blocks: Tensor  # [4, B]: first row, number of rows (padding: 0), request, keys of the request
    table: Tensor  # [R, P]: the pages of each request
    cutoffs: Tensor  # [N, O]: for each row the first slot of each owner that it may not see
    wanted: Tensor  # [W]: the rows whose logits are wanted; padding: the first row

    @staticmethod
    def sizes(bucket: Bucket) -> tuple[int, int, int, int, int]:
        num_rows, num_requests = bucket.num_rows, bucket.num_requests
        tables = num_requests * bucket.num_pages, num_rows * bucket.num_owners
        return 5 * num_rows, 4 * bucket.num_blocks, *tables, bucket.num_wanted

    @classmethod
    def num_numbers(cls, bucket: Bucket) -> int:
        return sum(cls.sizes(bucket))

    @classmethod
    def of_numbers(cls, bucket: Bucket, page_size: int, numbers: Tensor) -> PagedBatch:
        """Return the arrays as views of one tensor, so that one copy moves all of them."""
        rows, blocks, table, cutoffs, wanted = numbers.split(cls.sizes(bucket))
        return cls(
            bucket, page_size, rows.view(5, -1), blocks.view(4, -1),
            table.view(bucket.num_requests, -1), cutoffs.view(bucket.num_rows, -1), wanted,
        )  # fmt: skip

    @classmethod
    def of(cls, requests: Sequence[RequestRows], bucket: Bucket, page_size: int) -> PagedBatch:
        numbers = torch.empty(cls.num_numbers(bucket), dtype=torch.int32)
        batch = cls.of_numbers(bucket, page_size, numbers)
        batch.fill(requests)
        return batch

    def fill(self, requests: Sequence[RequestRows], wanted: Sequence[int] = ()) -> None:
        """Describe other rows in the same arrays; without requests all rows are padding."""
        # NumPy takes lists of numbers in a third of the time that tensors take.
        tensors = (self.rows, self.blocks, self.table, self.cutoffs, self.wanted)
        arrays = [tensor.numpy() for tensor in tensors]
        for array in arrays:
            array.fill(0)
        rows, blocks, table, cutoffs, wanted_rows = arrays
        wanted_rows[: len(wanted)] = wanted
        rows[SLOT : POOL_SLOT + 1] = -1
        if not (fed := [entry for request in requests for entry in request.fed]):
            return
        slots = [request.first_slot + i for request in requests for i in range(len(request.fed))]
        pool_slots = [slot for request in requests for slot in self._pool_slots(request)]
        lines = ([e.token for e in fed], [e.position for e in fed], slots, pool_slots)
        rows[:, : len(fed)] = [*lines, [e.owner for e in fed]]
        described = _blocks(requests, self.bucket.block_rows)
        blocks.T[: len(described)] = described
        for index, request in enumerate(requests):
            table[index, : len(request.pages)] = request.pages
        cutoffs[: len(fed)] = _cutoffs(fed, self.bucket.num_owners)

    def _pool_slots(self, request: RequestRows) -> list[int]:
        size, stop = self.page_size, request.first_slot + len(request.fed)
        return [request.pages[s // size] * size + s % size for s in range(request.first_slot, stop)]

    def to(self, device: torch.device) -> PagedBatch:
        arrays = (self.rows, self.blocks, self.table, self.cutoffs, self.wanted)
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


# The choice of tokens. The rules are those of ``local/sampling.py``; penalties and biases of other
# tokens stay there.


class MaskTable:
    """Masks of legal tokens side by side, so that a row of a pass names one by its number."""

    def __init__(self, masks: TokenMasks, device: torch.device) -> None:
        self._masks, self.fork_id = masks, masks.fork_id
        self._numbers: dict[tuple[Legal, bool], int] = {}
        self.table_MV = torch.zeros(MAX_MASKS, masks.vocab_size, device=device)

    def number(self, choice: Choice) -> int | None:
        key = choice.legal, choice.params.ignore_eos
        if (number := self._numbers.get(key)) is None and len(self._numbers) < MAX_MASKS:
            number = self._numbers[key] = len(self._numbers)
            self.table_MV[number] = self._masks.row(*key)
        return number


def settings_of(choices: Sequence[Choice], masks: MaskTable) -> list[tuple[float, ...]] | None:
    """Return the settings of each choice; None: some need more than settings."""
    lines = []
    for choice in choices:
        number = masks.number(choice)
        if number is None or choice.seen is not None or choice.added or choice.allowed is not None:
            return None
        lines.append((*draw_settings(choice), choice.fork_bias, number))
    return lines


def choose_rows(logits_WV: Tensor, settings: Tensor, masks: MaskTable, *, draws: bool) -> Tensor:
    """Return a token for each row, int64 [W]; with ``draws`` some rows have a temperature.

    ``settings`` are float64 [7, W]; zeros are greedy. A token of -1 is not among the likeliest: it
    must be drawn from all logits.
    """
    *_, fork_bias, mask = settings
    scores_WV = logits_WV + masks.table_MV[mask.long()]
    scores_WV[:, masks.fork_id] += fork_bias.to(scores_WV.dtype)
    best_W = scores_WV.argmax(dim=-1)  # the first of equals: ties by id
    if not draws:
        return best_W
    has_temperature = settings[0] > 0
    temperature = torch.where(has_temperature, settings[0], 1.0)  # greedy rows are not read
    drawn_W = draw_likely(scores_WV, torch.stack((temperature, *settings[1:5])))
    return torch.where(has_temperature, drawn_W, best_W)
