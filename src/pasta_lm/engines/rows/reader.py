"""Read plain texts with a model's own cache: keys and values, recurrent states, or both.

Any causal model of transformers can be read so, if a cache can be copied and what is read behind it
has the logits of a pass over the whole text. The self-test measures that.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import torch
import transformers
from torch import Tensor

from pasta_lm.engines.local import self_test
from pasta_lm.errors import UnsupportedModelError

if TYPE_CHECKING:
    from transformers.utils.generic import ModelOutput

CACHES = ("cache", "past_key_values", "cache_params", "state", "mems")  # as models name theirs
NUM_TESTED = 3  # tokens that the self-test reads in one part, and one by one
TOLERANCE = 3e-2
"""Largest difference of logits, float32. Without its state a model is wrong by units; the large
random weights of some tiny models turn rounding into hundredths."""

# Legend: V vocabulary (rows of the model's output matrix).


@dataclass(slots=True)
class RowCache:
    """A text that was read, and what the model keeps of it, which changes when the text goes on."""

    text: tuple[int, ...]
    kept: object | None = None


class RowReading(Enum):
    """How a model reads tokens behind a cache with the logits of a pass over the whole text."""

    PARTS = "several tokens in a pass"
    STEPS = "one token in a pass"
    WHOLE = "the whole text anew in each pass"  # the cache is the text


@dataclass(eq=False)
class RowReader:
    """A model that reads texts; ``counts``: it does not know by its cache where a token stands."""

    model: transformers.PreTrainedModel
    reading: RowReading
    counts: bool = False

    @property
    def in_parts(self) -> bool:
        return self.reading is RowReading.PARTS

    @cached_property
    def _names(self) -> tuple[str, ...]:
        names = inspect.signature(self.model.forward).parameters
        return tuple(name for name in (*CACHES, "logits_to_keep") if name in names)

    @torch.inference_mode()
    def read(self, cache: RowCache | None, tokens: Sequence[int]) -> tuple[RowCache, Tensor]:
        """Read tokens behind those of a cache; return it and the logits [V] behind the last."""
        before = RowCache(()) if cache is None else cache
        text = (*before.text, *tokens)
        if self.reading is RowReading.WHOLE:
            return RowCache(text), _last(self._pass(text, 0, use_cache=False))
        kept, first, logits = before.kept, len(before.text), torch.empty(0)
        size = len(tokens) if cache is None or self.in_parts else 1
        for start in range(first, len(text), size):
            own = {} if kept is None else {self._names[0]: kept}
            out = self._pass(text[start : start + size], start, use_cache=True, **own)
            kept, logits = out.get(self._names[0]) if self._names else None, _last(out)
            if kept is None:
                raise UnsupportedModelError(f"{type(self.model).__name__} has no cache of a text")
        return RowCache(text, kept), logits

    def _pass(self, tokens: Sequence[int], start: int, **settings: object) -> ModelOutput:
        ids = torch.tensor([[*tokens]], device=self.model.device)
        if "logits_to_keep" in self._names:
            settings["logits_to_keep"] = 1
        if self.counts:
            places = torch.arange(start, start + len(tokens), device=ids.device)
            settings["position_ids"] = places[None]
        out: ModelOutput = self.model(input_ids=ids, **settings)
        return out


def _last(out: ModelOutput) -> Tensor:
    logits_1NV: Tensor = out["logits"]
    return logits_1NV[0, -1].float()


def copy_cache(cache: RowCache) -> RowCache:
    """Return a copy of which no tensor is shared."""
    with torch.inference_mode():
        return copy.deepcopy(cache)


def find_reader(model: transformers.PreTrainedModel) -> RowReader:
    """Return the reader of a model, in evaluation mode; refuse one that no reader reads exactly."""
    tested, reason = self_test.models_to_test(model), ""
    for reading, counts in product(RowReading, (False, True)):
        try:
            difference = max(rows_difference(RowReader(each, reading, counts)) for each in tested)
        except Exception as exc:  # whatever a foreign architecture does
            reason = f"{type(exc).__name__}: {exc}"
            continue
        if difference <= TOLERANCE:
            return RowReader(model, reading, counts)
        reason = f"its logits differ by {difference:.2g}, {TOLERANCE:g} is allowed"
    name = type(model).__name__
    raise UnsupportedModelError(f"{name} does not read a text from left to right: {reason}")


@torch.inference_mode()
def rows_difference(reader: RowReader) -> float:
    """Return the largest difference, float32, of texts read bit by bit from one pass over each.

    Two texts take turns, so that a state outside their caches shows; so do copies of the caches.
    """
    inputs, alone = self_test.logits_alone(reader.model)
    differences: list[float] = []

    def read(cache: RowCache | None, index: int, start: int, stop: int) -> RowCache:
        cache, logits = reader.read(cache, inputs[index][start:stop].tolist())
        difference = (logits - alone[index][stop - 1].float()).abs().max()
        differences.append(float(difference.nan_to_num(torch.inf, torch.inf)))
        return cache

    firsts = len(inputs[0]) - 2 * NUM_TESTED, 1  # a text of one token is a prompt, too
    caches = [read(None, index, 0, first) for index, first in enumerate(firsts)]
    copies = [copy_cache(cache) for cache in caches]
    for step in range(NUM_TESTED):
        for index, first in enumerate(firsts):
            caches[index] = read(caches[index], index, first + step, first + step + 1)
    for index, first in enumerate(firsts):
        stop = first + NUM_TESTED
        read(copies[index], index, first, stop)
        read(caches[index], index, stop, stop + NUM_TESTED)
    return max(differences)
