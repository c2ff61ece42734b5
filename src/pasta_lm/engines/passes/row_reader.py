"""Read plain texts with a model's own cache: keys and values, recurrent states, or both.

Any causal model of transformers can be read so, if a cache can be copied and what is read behind it
has the logits of a pass over the whole text. The self-test measures that.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import product

import torch
import transformers
from torch import Tensor

from pasta_lm.engines.devices import warn_once
from pasta_lm.engines.passes.self_test import check_exact, logits_alone, models_to_test
from pasta_lm.errors import UnsupportedModelError

CACHES = ("cache", "past_key_values", "cache_params", "state", "mems")  # as models name theirs
NUM_TESTED = 3  # tokens that the self-test reads in one part, and one by one
TOLERANCE = 3e-2
"""Largest difference of logits, float32. Without its state a model is wrong by units; the large
random weights of some tiny models turn rounding into hundredths."""

# Legend: V vocabulary (rows of the model's output matrix).


@dataclass(frozen=True, slots=True)
class RowCache:
    """A text that was read, and what the model keeps of it, which changes when the text goes on."""

    text: tuple[int, ...]
    kept: object


class RowReading(Enum):
    """How a model reads tokens behind a cache with the logits of a pass over the whole text."""

    PARTS = "several tokens in a pass"
    STEPS = "one token in a pass"
    WHOLE = "the whole text anew in each pass"


@dataclass(eq=False)
class RowReader:
    """A model that reads texts; ``counts``: it does not know by its cache where a token stands."""

    model: transformers.PreTrainedModel
    reading: RowReading
    counts: bool = False

    @cached_property
    def _parameters(self) -> Collection[str]:
        return inspect.signature(self.model.forward).parameters.keys()

    @torch.inference_mode()
    def read(self, cache: RowCache | None, text: Sequence[int]) -> tuple[RowCache, Tensor]:
        """Read a text, behind its beginning in a cache; return its cache, and the next logits [V].

        The cache that is given is of no use afterwards.
        """
        if self.reading is RowReading.WHOLE:
            cache = None
        first, kept = (0, None) if cache is None else (len(cache.text), cache.kept)
        size = len(text) if cache is None or self.reading is RowReading.PARTS else 1
        logits = torch.empty(0)
        for start in range(first, len(text), size):
            kept, logits = self._pass(text[start : start + size], start, kept)
        return RowCache((*text,), kept), logits

    def _pass(self, tokens: Sequence[int], start: int, kept: object) -> tuple[object, Tensor]:
        ids = torch.tensor([[*tokens]], device=self.model.device)
        name = next((name for name in CACHES if name in self._parameters), "")
        settings: dict[str, object] = {} if kept is None else {name: kept}
        if "logits_to_keep" in self._parameters:
            settings["logits_to_keep"] = 1
        if self.counts:
            settings["position_ids"] = start + torch.arange(len(tokens), device=ids.device)[None]
        uses_cache = self.reading is not RowReading.WHOLE
        out = self.model(input_ids=ids, use_cache=uses_cache, **settings)
        return out.get(name), out.logits[0, -1].float()


def copy_cache(cache: RowCache) -> RowCache:
    with torch.inference_mode():
        return copy.deepcopy(cache)


def exact_reader(model: transformers.PreTrainedModel) -> RowReader | None:
    """Return the reader of a model whose threads are rows; None: flattened passes are exact.

    A model, in evaluation mode, that is exact in neither way is an ``UnsupportedModelError``.
    """
    try:
        check_exact(model)
    except UnsupportedModelError as exc:
        reader, way = find_reader(model), "each thread is decoded by itself, as a row"
        warn_once(f"{exc.message}: {way} with a cache of its own")
        return reader
    return None


def find_reader(model: transformers.PreTrainedModel) -> RowReader:
    tested, reason = models_to_test(model), ""
    for reading, counts in product(RowReading, (False, True)):
        try:
            difference = max(rows_difference(RowReader(other, reading, counts)) for other in tested)
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
    inputs, alone = logits_alone(reader.model)
    differences = []

    def read(cache: RowCache | None, index: int, stop: int) -> RowCache:
        cache, logits = reader.read(cache, inputs[index][:stop].tolist())
        differences.append((logits - alone[index][stop - 1].float()).abs().max())
        return cache

    stops = [len(inputs[0]) - 2 * NUM_TESTED, 1]  # a text of one token is a prompt, too
    caches = [read(None, index, stop) for index, stop in enumerate(stops)]
    copies = [copy_cache(cache) for cache in caches]
    for _ in range(NUM_TESTED):
        stops = [stop + 1 for stop in stops]
        caches = [read(caches[index], index, stop) for index, stop in enumerate(stops)]
    for index, stop in enumerate(stops):
        read(copies[index], index, stop)
        read(caches[index], index, stop + NUM_TESTED)
    return float(torch.stack(differences).nan_to_num(torch.inf, torch.inf).max())
