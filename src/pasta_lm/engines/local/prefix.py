"""Prompts that begin alike: whole pages of keys and values are computed once, then copied.

A page of a prompt is known by the hash of all tokens up to its end. Where a request's prompt begins
with pages that a run of the pool holds, running or kept, they are copied and not computed. A copy,
because attention reads one run of consecutive pages; it costs a hundredth of the computation.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from pasta_lm.engines.local.pool import Pool, Run


class Found(NamedTuple):
    """First pages of a prompt that a run holds."""

    run: Run
    num_pages: int


class Prefixes:
    """The pages of prompts that a pool holds."""

    def __init__(self, pool: Pool) -> None:
        """Know nothing yet; from now on the pool says which kept runs it gives up."""
        self._pool = pool
        self._holders: defaultdict[bytes, list[Run]] = defaultdict(list)
        self._known: dict[int, Sequence[bytes]] = {}  # pages of each run, by its identity
        pool.on_evict = self._forget

    def page_hashes(self, prompt: Sequence[int]) -> list[bytes]:
        """Return a hash for each full page of a prompt but for its last token.

        The logits behind the last token are wanted, so that one is always computed.
        """
        size, hashes, last = self._pool.page_size, list[bytes](), b""
        for end in range(size, len(prompt), size):
            page = array("q", prompt[end - size : end]).tobytes()
            last = blake2b(last + page, digest_size=16).digest()
            hashes.append(last)
        return hashes

    def find(self, hashes: Sequence[bytes]) -> Found | None:
        """Return the run that holds the most first pages of a prompt; it counts as used."""
        for num_pages in range(len(hashes), 0, -1):
            if holders := self._holders.get(hashes[num_pages - 1]):
                self._pool.touch(holders[-1])
                return Found(holders[-1], num_pages)
        return None

    def holds(self, run: Run) -> bool:
        """Return whether a run still holds what it held."""
        return id(run) in self._known

    def computed(self, run: Run, hashes: Sequence[bytes]) -> None:
        """Note that a run holds these pages of a prompt."""
        if id(run) not in self._known:
            self._known[id(run)] = hashes
            for page_hash in hashes:
                self._holders[page_hash].append(run)

    def release(self, run: Run) -> None:
        """Give a run back to the pool: kept, if it holds a page that no other run holds."""
        hashes = self._known.get(id(run), ())
        if any(len(self._holders[page_hash]) == 1 for page_hash in hashes):
            self._pool.keep(run, len(hashes))
        else:
            self._pool.free(run)
            self._forget(run)

    def _forget(self, run: Run) -> None:
        for page_hash in self._known.pop(id(run), ()):
            self._holders[page_hash].remove(run)
            if not self._holders[page_hash]:
                del self._holders[page_hash]
