"""Run passes of the local engine as rows: each thread's text, read with a cache of its own.

With positions ``continue`` and join ``recompute`` every token stands behind a plain causal text, so
the tokens of a request are a tree: each has one before it. A row reads the path to its token from
the nearest cache on it. A cache is copied where the path forks; one that is missing costs that its
tokens are read again, and changes no logit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pasta_lm.engines.local.batch import EntryTensors, RequestSlice
from pasta_lm.engines.local.planning import ActiveRequest
from pasta_lm.engines.request import Request
from pasta_lm.engines.response import Response
from pasta_lm.engines.rows.reader import RowCache, RowReader, copy_cache
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.parser import Form

NOTHING = -1  # the slot before the first of a text

# Legend: W rows whose logits are wanted, V vocabulary (rows of the model's output matrix).


@dataclass(slots=True)
class RowCosts:
    """The work of rows beyond a pass over each token."""

    num_read: int = 0  # tokens
    num_read_again: int = 0  # of them, because no cache of the text before them was left
    num_copies: int = 0  # of caches, where texts fork


class RowCaches:
    """The caches of one request, each by the slot of the last token that it has read."""

    def __init__(
        self,
        entries: Entries,
        reader: RowReader,
        costs: RowCosts,
        *,
        num_prompt: int,
        num_samples: int,
    ) -> None:
        self._entries, self._reader, self._costs = entries, reader, costs
        self._num_prompt, self._num_samples = num_prompt, num_samples
        self._forks: set[int] = set()  # the slots of the promise ends that forked threads
        self._before: list[int] = []  # of each slot, that of the token before it in its text
        self._last: dict[int, int] = {}  # by owner
        self._num_behind: Counter[int] = Counter()  # the slots that have this one before them
        self._num_taken: Counter[int] = Counter()
        self._were_read: set[int] = set()
        self._caches: dict[int, RowCache] = {}

    def __len__(self) -> int:
        return len(self._caches)

    def place(self, forks: Iterable[int]) -> None:
        """Find the token before each that was placed since the last call; note slots of forks."""
        self._forks.update(forks)
        items = self._entries.items
        for slot in range(len(self._before), len(items)):
            owner, position = items[slot].owner, items[slot].position
            before = self._last.get(owner, NOTHING)
            if before == NOTHING and position:
                before = self._find(slot)
            assert position == (items[before].position + 1 if before != NOTHING else 0)
            self._before.append(before)
            self._num_behind[before] += 1
            self._last[owner] = slot

    def _find(self, slot: int) -> int:
        entry, items = self._entries[slot], self._entries.items
        return next(
            number
            for number in range(slot - 1, -1, -1)
            if items[number].position == entry.position - 1
            and number < entry.row.cutoff(items[number].owner)
        )

    def read(self, slot: int) -> Tensor:
        """Read the text that ends in a slot; return the logits [V] behind it."""
        path = [slot]
        while (before := self._before[path[-1]]) not in self._caches and before != NOTHING:
            path.append(before)
        cache = self._take(before)
        logits = torch.empty(0)
        for part in self._parts(path[::-1]):
            if part[0] != path[-1]:
                cache = self._take(self._before[part[0]])
            self._costs.num_read += len(part)
            self._costs.num_read_again += len(self._were_read.intersection(part))
            self._were_read.update(part)
            cache, logits = self._reader.read(cache, [self._entries[each].token for each in part])
            self._caches[part[-1]] = cache
        return logits

    def _parts(self, path: Sequence[int]) -> Iterator[Sequence[int]]:
        """Cut a path behind each token that other texts go on from."""
        start = 0
        for index, slot in enumerate(path, start=1):
            if index == len(path) or self._num_texts(slot) > 1:
                yield path[start:index]
                start = index

    def _num_texts(self, slot: int) -> int:
        """Return how many texts go on behind a token, as far as can be known."""
        num = self._num_behind[slot]
        if slot == self._num_prompt - 1:
            return max(num, self._num_samples)
        return max(num, 2 if slot in self._forks else 1)

    def _take(self, slot: int) -> RowCache | None:
        if slot == NOTHING:
            return None
        self._num_taken[slot] += 1
        if self._num_taken[slot] >= self._num_texts(slot):
            return self._caches.pop(slot)
        self._costs.num_copies += 1
        return copy_cache(self._caches[slot])

    def keep(self, owners: Collection[int]) -> None:
        """Drop the caches of all other owners, but for those of the prompt."""
        for slot in [*self._caches]:
            if slot >= self._num_prompt and self._entries[slot].owner not in owners:
                del self._caches[slot]


def as_rows(request: Request) -> Request:
    """Return a request as rows decode it; a ``RequestError`` if its texts are not plain ones."""
    plain, join = PositionStrategy.CONTINUE, Join.SHARED
    if request.forks and request.form is Form.MAIN:  # else no sync joins anything
        join = Join.RECOMPUTE
    if request.forks and (request.positions, request.join) != (plain, join):
        raise RequestError(
            f"positions {request.positions.value!r} with join {request.join.value!r} need keys "
            "that threads share, and this model's threads are rows, each with a cache of its own",
            hint=f"positions {plain.value!r} with join {join.value!r}, for which it must be taught",
        )
    return replace(request, positions=plain, join=join, guesser=None)


class RowsRunner:
    """Run the passes of a local engine as rows."""

    def __init__(self, reader: RowReader) -> None:
        self.costs = RowCosts()
        self._reader = reader
        # By what a request is given anew when it was preempted.
        self._requests: WeakKeyDictionary[EntryTensors, RowCaches] = WeakKeyDictionary()

    @property
    def num_caches(self) -> int:
        """Return how many caches unfinished requests hold."""
        return sum(map(len, self._requests.values()))

    def run(
        self, parts: Sequence[tuple[ActiveRequest, RequestSlice]], indices: Sequence[int]
    ) -> Tensor:
        """Return the logits of the tokens at these indices of a pass, float32 [W, V]."""
        logits: dict[int, Tensor] = {}
        for active, part in parts:
            caches = self._caches(active)
            threads = [t for each in active.responses for t in each.interpreter.threads]
            caches.place(thread.fork_point.slot for thread in threads if thread.fork_point)
            wanted = sorted({index for index in indices if part.start <= index < part.stop})
            num_prompt = min(len(active.request.prompt), part.num_entries)
            if not wanted and part.first_slot < num_prompt and self._reader.in_parts:
                caches.read(num_prompt - 1)  # a long prompt; other texts take turns with it
            for index in wanted:
                logits[index] = caches.read(part.first_slot + index - part.start)
            caches.keep({owner for response in active.responses for owner in _owners(response)})
        return torch.stack([logits[index] for index in indices]) if indices else torch.empty(0)

    def _caches(self, active: ActiveRequest) -> RowCaches:
        caches = self._requests.get(active.tensors)
        if caches is None:
            caches = self._requests[active.tensors] = RowCaches(
                active.entries,
                self._reader,
                self.costs,
                num_prompt=len(active.request.prompt),
                num_samples=active.request.params.n,
            )
        return caches


def _owners(response: Response) -> Iterator[int]:
    for thread in response.interpreter.threads:
        if thread.is_alive:
            yield thread.owner
        yield from (child.owner for child in thread.unjoined)
    for live in response.live.values():
        yield from (thread.owner for thread in live.joined or ())
