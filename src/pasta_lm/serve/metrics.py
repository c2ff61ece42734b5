"""The metrics of ``/metrics``: vLLM's names under ``pasta:``, and figures of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pasta_lm.engines.request import Finished, StreamEvent, TextDelta
from pasta_lm.serve.streams import Job

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 30, 60)
LONG_SECONDS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
RATIOS = (1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 6, 8)
LIMITS = ("length", "queue_full", "queue_wait", "wall_time", "stall", "slow_reader")


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's load after its last step."""

    num_running: int = 0
    num_waiting: int = 0
    cache_usage: float = 0.0
    num_threads_running: int = 0
    num_threads_waiting: int = 0
    num_orphan_threads: int = 0  # of requests that nobody reads; must be 0

    def gauges(self) -> Iterable[tuple[str, float, str]]:
        """Return names, values and help of the gauges."""
        return (
            ("num_requests_running", self.num_running, "Requests that decode."),
            ("num_requests_waiting", self.num_waiting, "Requests in the queue."),
            ("kv_cache_usage_perc", self.cache_usage, "Used share of the cache; 1 is full."),
            ("num_threads_running", self.num_threads_running, "Threads that decode."),
            ("num_threads_waiting", self.num_threads_waiting, "Threads at a sync, or deferred."),
            ("num_orphan_threads", self.num_orphan_threads, "Threads without a reader; must be 0."),
        )


class Metrics(Collector):
    """Counters and histograms of one server, fed by the engine loop, and gauges of its load."""

    def __init__(self, model: str, load: Callable[[], Load]) -> None:
        self._registry = CollectorRegistry()
        self._model, self._load = model, load

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            labels, registry = ["model_name"], self._registry
            made = Histogram(f"pasta:{name}", text, labels, buckets=buckets, registry=registry)
            return made.labels(model)

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
        self._registry.register(self)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, value, text in self._load().gauges():
            gauge = GaugeMetricFamily(f"pasta:{name}", text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge

    def stepped(self, job: Job, batch: Sequence[StreamEvent], now_s: float) -> None:
        """Take the events of a request in one step."""
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
            self._finished(event)
        if finished and len(finished) == job.num_unfinished:
            self._whole.observe(now_s - job.arrived_s)

    def _finished(self, event: Finished) -> None:
        trace, reason = event.answer.trace, event.answer.finish_reason
        self._success.labels(self._model, reason).inc()
        self._generated.inc(trace.num_tokens)
        if event.sample == 0:  # samples share their prompt
            self._cached.inc(trace.num_cached_tokens)
        self._parallelism.observe(trace.parallelism)
        self._path.observe(trace.critical_path)
        if reason == "length":
            self.failed("length")

    def failed(self, code: str) -> None:
        """Count a limit that was met, or another error that ended a response."""
        self._limits.labels(self._model, code).inc()

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)
