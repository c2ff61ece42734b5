"""The shape of a pass, rounded up so that a few shapes serve all passes.

A captured graph has one shape. Rows and blocks cost a little where they are padding, so they are
rounded to powers of two; pages and owners are only bounds of tables, so they are rounded to few
values. How many instances share the keys of a row follows from the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from pasta_lm.engines.gpu.batch import Bucket, RequestSize

MIN_PAGES, MIN_OWNERS = 32, 16
MAX_QUERIES = 64  # rows times query heads of a key head that one instance of the kernel takes
MIN_SPLIT_KEYS = 64  # fewer keys an instance are not worth combining
MAX_SPLITS = 64
WANTED_INSTANCES = 264  # two for each multiprocessor of an H100 or H200
_STEP = 4  # ratio of neighbouring sizes where padding costs next to nothing


def bucket_of(requests: Sequence[RequestSize], group: int) -> Bucket:
    """Return the smallest bucket for some requests.

    Args:
        requests: How large each one is.
        group: Query heads of each key head.
    """
    largest = max(request.num_rows for request in requests)
    block_rows = min(_rounded(largest, 1, _STEP), max(1, MAX_QUERIES // group))
    num_rows = power_of_two(sum(request.num_rows for request in requests))
    blocks = sum(-(-request.num_rows // block_rows) for request in requests)
    # One request, or about as many as there are rows: two shapes instead of one for each number.
    fewest = -(-num_rows // block_rows)
    return Bucket(
        num_rows=num_rows,
        num_blocks=fewest if blocks <= fewest else num_rows,
        num_requests=1 if len(requests) == 1 else num_rows,
        num_pages=_rounded(max(request.num_pages for request in requests), MIN_PAGES, _STEP),
        num_owners=_rounded(max(request.num_owners for request in requests), MIN_OWNERS, _STEP),
        block_rows=block_rows,
    )


def num_splits(bucket: Bucket, num_key_heads: int, page_size: int) -> int:
    """Return into how many parts the keys of a block are split, a power of two."""
    by_work = WANTED_INSTANCES / (bucket.num_blocks * num_key_heads)
    by_keys = bucket.num_pages * page_size // MIN_SPLIT_KEYS
    return power_of_two(max(1, min(int(by_work), by_keys, MAX_SPLITS)))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


def _rounded(number: int, least: int, ratio: int) -> int:
    while least < number:
        least *= ratio
    return least
