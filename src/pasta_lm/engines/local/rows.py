"""Run passes of the local engine as rows: each thread's text, read with a cache of its own.

With positions ``continue`` and join ``recompute`` every token stands behind a plain causal text. A
row reads the text up to its token from the longest beginning of it in a cache, which is copied if
another text goes on from it. A cache that is missing costs that its tokens are read again, and
changes no logit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pasta_lm.engines.local.planning import ActiveRequest
from pasta_lm.engines.passes.row_reader import RowCache, RowReader, RowReading, copy_cache
from pasta_lm.engines.passes.runner import EntryTensors, RequestSpan
from pasta_lm.engines.request import Request
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.thread import Thread
from pasta_lm.interpreter.visibility import PROMPT_OWNER
from pasta_lm.language.parser import Form

# Legend: W rows whose logits are wanted, V vocabulary (rows of the model's output matrix).


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
        self._reader = reader
        self.caches: WeakKeyDictionary[EntryTensors, dict[int, RowCache]] = WeakKeyDictionary()
        """By owner; of each request by what it is given anew when it was preempted."""

    def run(
        self, spans: Sequence[tuple[ActiveRequest, RequestSpan]], indices: Sequence[int]
    ) -> Tensor:
        """Return the logits of the tokens at these indices of a pass, float32 [W, V]."""
        logits: dict[int, Tensor] = {}
        for active, span in spans:
            due = sorted({index for index in indices if span.start <= index < span.stop})
            if not due and self._reader.reading is RowReading.PARTS:
                self._read(active, span.num_entries - 1)  # a part of a prompt
            for index in due:
                logits[index] = self._read(active, span.first_slot + index - span.start)
            caches = self.caches.get(active.tensors, {})
            for owner in caches.keys() - _needed(active, caches):
                del caches[owner]
        return torch.stack([logits[index] for index in indices]) if indices else torch.empty(0)

    def _read(self, active: ActiveRequest, slot: int) -> Tensor:
        """Read the text that ends in a slot; return the logits [V] behind it."""
        caches = self.caches.setdefault(active.tensors, {})
        entries = active.entries
        owner, seen = entries[slot].owner, entries.visible(entries[slot].row, slot + 1)
        text = tuple(entries[other].token for other in seen)  # itself the last
        starts = {
            other: len(cache.text)
            for other, cache in caches.items()
            if len(cache.text) < len(text) and text[: len(cache.text)] == cache.text
        }
        cache = None
        if starts:
            nearest = max(starts, key=lambda other: (starts[other], other == owner))
            cache = caches.pop(nearest)
            if nearest != owner and nearest in _needed(active, caches, but=owner):
                caches[nearest] = copy_cache(cache)
        caches[owner], logits = self._reader.read(cache, text)
        return logits


def _needed(active: ActiveRequest, caches: Collection[int], but: int | None = None) -> set[int]:
    """Return the owners from whose caches texts, but that of one owner, go on."""
    interpreters = [response.interpreter for response in active.responses]
    owners = {thread.owner for it in interpreters for thread in it.threads if thread.is_alive}
    owners |= {_first_unjoined(interpreter.main).owner for interpreter in interpreters}
    owners -= {but}
    return owners if owners <= {*caches} else owners | {PROMPT_OWNER}


def _first_unjoined(thread: Thread) -> Thread:
    # At a sync the text is read from the end of its first block.
    return _first_unjoined(thread.unjoined[0]) if thread.unjoined else thread
