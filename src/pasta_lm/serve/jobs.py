"""The jobs of the queue: requests with the streams of their events, and the metrics of all.

Metrics have vLLM's names under ``pasta:``; figures of threads are added.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pasta_lm.engines.request import Finished, Request, StreamEvent, TextDelta
from pasta_lm.serve.errors import ApiError

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 30, 60)
LONG_SECONDS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
RATIOS = (1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 6, 8)
LIMITS = ("length", "queue_full", "queue_wait", "wall_time", "stall")
GAUGES = {
    "num_requests_running": "Requests that decode.",
    "num_requests_waiting": "Requests in the queue.",
    "kv_cache_usage_perc": "Used share of the cache; 1 is full.",
    "num_threads_running": "Threads that decode.",
    "num_threads_waiting": "Threads at a sync, or deferred.",
    "num_orphan_threads": "Threads without a reader; must be 0.",
}

Load = dict[str, float]
"""The engine's load, by the names of the gauges."""
Batch = list[StreamEvent]
"""The events of one request in one step."""


class ResponseStream:
    """The events of one HTTP request, a batch a step, for one reader."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Batch | ApiError] = asyncio.Queue()

    def put(self, item: Batch | ApiError) -> None:
        self._items.put_nowait(item)

    async def next(self) -> Batch:
        """Return the next batch, the first one empty when a request runs; raise an ``ApiError``."""
        item = await self._items.get()
        if isinstance(item, ApiError):
            raise item
        return item


@dataclass(slots=True, eq=False)
class Job:
    """One request of a stream, from the queue to its end."""

    request: Request
    stream: ResponseStream
    first_sample: int  # in its stream
    num_unfinished: int  # samples
    client: str = ""  # whose turn it is, an address
    arrived_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    last_text_s: float | None = None
    number: int | None = None  # the engine's, while it runs there
    deadline: asyncio.TimerHandle | None = None


class Metrics:
    """Counters and histograms of one server, fed by the engine loop, and gauges of its load."""

    def __init__(self, model: str, load: Callable[[], Load]) -> None:
        self._registry = CollectorRegistry()
        self._model = model

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            labels, registry = ["model_name"], self._registry
            made = Histogram(f"pasta:{name}", text, labels, buckets=buckets, registry=registry)
            return made.labels(model)

        def value(name: str) -> float:
            return load().get(name, 0)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pasta:{name}", text, ["model_name", *labels], registry=self._registry)

        self._first = histogram("time_to_first_token_seconds", "To the first text.", SECONDS)
        self._between = histogram("inter_token_latency_seconds", "Between two steps.", SECONDS)
        self._whole = histogram("e2e_request_latency_seconds", "Whole request.", LONG_SECONDS)
        self._queued = histogram("request_queue_time_seconds", "In the queue.", LONG_SECONDS)
        self._parallelism = histogram("parallelism", "Content tokens / critical path.", RATIOS)
        self._path = histogram("critical_path_tokens", "Critical path of a response.", TOKENS)
        self._prompt = counter("prompt_tokens", "Tokens of prompts.").labels(model)
        cached = "Tokens of prompts whose keys were there already."
        self._cached = counter("prefix_cache_hits", cached).labels(model)
        self._generated = counter("generation_tokens", "Tokens of all threads.").labels(model)
        self._success = counter("request_success", "Finished responses.", "finished_reason")
        self._limits = counter("limit_hits", "Limits that were met.", "limit")
        for limit in LIMITS:
            self._limits.labels(model, limit)
        for name, text in GAUGES.items():
            gauge = Gauge(f"pasta:{name}", text, ["model_name"], registry=self._registry)
            gauge.labels(model).set_function(partial(value, name))

    def stepped(self, job: Job, batch: Sequence[StreamEvent], now_s: float) -> None:
        if any(isinstance(event, TextDelta) for event in batch):
            if job.last_text_s is None:
                self._first.observe(now_s - job.arrived_s)
                self._prompt.inc(len(job.request.prompt))
                self._queued.observe((job.started_s or now_s) - job.arrived_s)
            else:
                self._between.observe(now_s - job.last_text_s)
            job.last_text_s = now_s
        finished = [event for event in batch if isinstance(event, Finished)]
        for event in finished:
            trace, reason = event.answer.trace, event.answer.finish_reason
            self._success.labels(self._model, reason).inc()
            self._generated.inc(trace.num_tokens)
            if event.sample == 0:  # samples share their prompt
                self._cached.inc(trace.num_cached_tokens)
            self._parallelism.observe(trace.parallelism)
            self._path.observe(trace.critical_path)
            if reason == "length":
                self.failed("length")
        if finished and len(finished) == job.num_unfinished:
            self._whole.observe(now_s - job.arrived_s)

    def failed(self, code: str) -> None:
        self._limits.labels(self._model, code).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
