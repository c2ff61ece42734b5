"""Decode given answers as on a GPU, and note each pass: the host's time and the events.

Passes are paged ones. In place of CUDA graphs there are calls whose time is subtracted, so the
model may be as small as one likes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pasta_lm.engines.gpu.graphs import Function, Outputs
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.engines.response import Response
from pasta_lm.models.annotated import Record
from pasta_lm.strategies import pasta, sequential
from pasta_lm.strategies.replay import bounded

CHUNK_TOKENS = 512  # of prompts beside threads that decode, as on a GPU


class Clock(NamedTuple):
    """Seconds by the wall and of this process."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Clock:
        """Read both."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, before: Clock) -> Clock:
        """Return what has passed."""
        return Clock(self.wall_s - before.wall_s, self.cpu_s - before.cpu_s)


@dataclass
class Device:
    """Stands for CUDA graphs: runs each pass and notes its time, or runs none but the first."""

    computes: bool = True
    spent: Clock | None = None  # None: the last pass was too large for a graph

    def __call__(self, function: Function) -> Function:
        """Return the function with its time noted; without computing, what it gave first."""
        outputs = function()

        def run() -> Outputs:
            began = Clock.now()
            found = function() if self.computes else outputs
            self.spent = Clock.now().since(began)
            return found

        return run


@dataclass
class Watched:
    """A response in a pass: its threads that decode, and after it what has changed."""

    response: Response
    legal: dict[int, object] = field(init=False)

    def __post_init__(self) -> None:
        self.legal = self._legal()

    def _legal(self) -> dict[int, object]:
        return {
            live.thread.id: self.response.legal(live) for live in self.response.threads_to_decode()
        }

    def events(self) -> dict[str, bool]:
        """Return which kinds of events the pass had for this response."""
        after, fed = self._legal(), [one for one in self.response.live.values() if one.feeds_next]
        has_new = any(one.thread.id not in self.legal or one.joined is not None for one in fed)
        is_event = has_new or any(number not in after for number in self.legal)
        masks = any(after.get(number, legal) != legal for number, legal in self.legal.items())
        return {"any": is_event, "new_rows": has_new, "with_masks": is_event or masks}


class Step(NamedTuple):
    """One pass under full load."""

    num_rows: int
    host: Clock | None  # outside the device; None: it computed a prompt too
    events: list[dict[str, bool]]  # of each response that decoded


def engine_on(device: Device, loaded: LoadedModel, num_entries: int) -> TorchEngine:
    """Return an engine whose passes run on this device."""
    engine = TorchEngine(loaded, pool_tokens=num_entries, chunk_tokens=CHUNK_TOKENS, paged=True)
    assert engine.paged is not None
    engine.paged._backend = device  # no setting: users have graphs or plain calls
    return engine


def decode(
    engine: TorchEngine, device: Device, requests: Sequence[Request], in_flight: int
) -> list[Step]:
    """Decode requests, so many at once, and return the passes while so many are there."""
    waiting, steps = deque(requests), list[Step]()
    while waiting or engine.has_work:
        while waiting and len(engine.active) < in_flight:
            engine.submit(waiting.popleft())
        is_full = len(engine.active) == in_flight
        decoding = [one for one in engine.active.values() if one.is_computed]
        watched = [Watched(response) for one in decoding for response in one.responses]
        device.spent, began = None, Clock.now()
        engine.step()
        whole = Clock.now().since(began)
        if is_full and watched:
            is_pure = device.spent is not None and len(watched) == in_flight
            events = [one.events() for one in watched]
            num_rows = sum(len(one.legal) for one in watched)
            steps.append(Step(num_rows, whole.since(device.spent) if is_pure else None, events))
    return steps


def requests_of(loaded: LoadedModel, records: Sequence[Record], strategy: str) -> list[Request]:
    """Return the requests that decode given answers."""
    vocabulary, params, found = loaded.vocabulary, SamplingParams(), []
    for one in records:
        prompt = vocabulary.encode_prompt(one.prompt) or vocabulary.encode_text("\n")
        document = one.document.with_lengths(vocabulary.count_tokens)
        if strategy == sequential.NAME:
            request = sequential.replay(prompt, document, vocabulary, params)
        else:
            join = loaded.join_with(loaded.positions)
            request = pasta.replay(prompt, document, vocabulary, params, loaded.positions, join)
        found.append(bounded(request, None))
    return found
