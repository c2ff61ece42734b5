"""The benchmark ``pasta bench load``: given answers, many at a time, sequentially and in parallel.

Answers are forced, so every strategy decodes the same text. Requests arrive all at once, or one
after the other with exponential gaps (a Poisson process). A request's latency begins when it
arrives, not when the engine has room for it.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from math import inf
from random import Random
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from pasta_lab.evaluate import continuous_batching
from pasta_lab.evaluate.continuous_batching import ContinuousBatching
from pasta_lm.engines.request import Failed, Finished, Request, SamplingParams
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter import speed
from pasta_lm.models.annotated import Record
from pasta_lm.strategies import pasta, sequential
from pasta_lm.strategies.replay import bounded

if TYPE_CHECKING:
    from pasta_lm.engines.local.engine import TorchEngine
    from pasta_lm.engines.local.loading import LoadedModel

WHEN_IT_PAYS = "pasta, when it pays"
STRATEGIES = (sequential.NAME, pasta.NAME, WHEN_IT_PAYS)
MIN_BLOCKS = 2
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}

logger = logging.getLogger(__name__)

Figures = dict[str, Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBenchmark:
    """What is measured."""

    requests: tuple[int, ...] = (1, 4, 16, 64)
    rate: float = inf
    """Requests a second; inf: all at once."""
    pool_tokens: int = 65_536
    max_threads: int | None = None
    """Of each response in one pass."""
    seed: int = 0
    peers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse settings that cannot be measured, as a ``UsageError``."""
        if not self.requests or min(self.requests) < 1:
            raise UsageError("--requests must be numbers from 1, such as 1,4,16")
        if not self.rate > 0:
            raise UsageError(f"--rate is {self.rate}, but must be above 0")
        if self.pool_tokens < 1:
            raise UsageError(f"a cache of {self.pool_tokens} entries holds nothing")
        if unknown := set(self.peers) - {continuous_batching.NAME}:
            hint = f"{continuous_batching.NAME} or none"
            raise UsageError(f"unknown peer {min(unknown)!r}", hint=hint)

    def arrivals(self, count: int) -> list[float]:
        """Return when each of some requests arrives, in seconds from the start."""
        if self.rate == inf:
            return [0.0] * count
        rng, now, found = Random(self.seed), 0.0, []
        for _ in range(count):
            found.append(now)
            now += rng.expovariate(self.rate)
        return found


@dataclass(slots=True)
class LoadRun:
    """What happened under one load."""

    num_tokens: int = 0
    """Content tokens of all answers."""
    wall_s: float = 0.0
    latency_s: list[float] = field(default_factory=list)
    peak_cache: float = 0.0
    """Largest used share of the pool."""
    num_passes: int = 0

    def figures(self) -> Figures:
        """Return throughput and latency."""
        cuts = quantiles(self.latency_s, n=100, method="inclusive") if self.latency_s[1:] else None
        found = {
            name: cuts[at - 1] if cuts else self.latency_s[0] for name, at in PERCENTILES.items()
        }
        return {
            "tokens_per_s": round(self.num_tokens / self.wall_s, 2),
            "wall_s": round(self.wall_s, 4),
            "latency_s": {name: round(value, 4) for name, value in found.items()},
            "forward_passes": self.num_passes,
            "peak_cache": round(self.peak_cache, 4),
        }


def measure_load(
    loaded: LoadedModel,
    records: Sequence[Record],
    settings: LoadBenchmark,
    progress: Progress | None = None,
) -> Figures:
    """Decode given answers under every load, by every strategy in turn.

    Args:
        loaded: The model; rows are added for tag pieces that it lacks.
        records: Annotated answers; those of two blocks or more are used, again from the first when
            a load asks for more.
        settings: The loads.
        progress: Called with the number of done and of all runs.

    Returns:
        The object that ``pasta bench load --json`` prints.

    Raises:
        UsageError: no answer has two blocks.
        RequestError: an answer is longer than the model's context or the pool.
    """
    from pasta_lm.engines.local.engine import TorchEngine
    from pasta_lm.engines.local.forking import step_costs
    from pasta_lm.engines.local.loading import with_pieces
    from pasta_lm.engines.local.timing import describe_run

    if not loaded.vocabulary.has_pieces:
        loaded = with_pieces(loaded)
    chosen = [one for one in records if len(one.document.blocks) >= MIN_BLOCKS]
    if not chosen:
        raise UsageError("no answer has two blocks or more", hint="name other annotated answers")
    requests = {name: _requests(loaded, chosen, name, settings) for name in STRATEGIES}
    with ExitStack() as stack:
        peer = _peer(loaded, settings, stack)  # first: the engine lays out the weights anew
        costs = step_costs(loaded)
        engine = TorchEngine(loaded, pool_tokens=settings.pool_tokens, costs=costs)
        for name in STRATEGIES:  # first passes allocate and compile
            decode(engine, requests[name][:1], [0.0])
        loads = _loads(engine, peer, requests, settings, progress)
    return {
        **describe_run(loaded),
        "rate": None if settings.rate == inf else settings.rate,
        "step_ms": dict(costs.step_ms),
        "num_answers": len(requests[pasta.NAME]),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "loads": loads,
    }


def _peer(
    loaded: LoadedModel, settings: LoadBenchmark, stack: ExitStack
) -> ContinuousBatching | None:
    """Start transformers' continuous batching; None if it is not asked for or does not run."""
    if continuous_batching.NAME not in settings.peers:
        return None
    try:
        opened = continuous_batching.opened(loaded.model, settings.pool_tokens)
        peer = stack.enter_context(opened)
        peer.decode([((1, 2, 3), 2)], [0.0])
    except Exception as exc:  # a foreign scheduler may refuse a model in any way
        logger.warning("no figures of transformers' continuous batching: %s", exc)
        return None
    return peer


def _loads(
    engine: TorchEngine,
    peer: ContinuousBatching | None,
    requests: Mapping[str, Sequence[Request]],
    settings: LoadBenchmark,
    progress: Progress | None,
) -> list[Figures]:
    loads, num_done = list[Figures](), 0
    for count in settings.requests:
        found: Figures = {"requests": count}
        for name in STRATEGIES:
            wanted = list(islice(cycle(requests[name]), count))
            found[name] = decode(engine, wanted, settings.arrivals(count)).figures()
            num_done += 1
            if progress is not None:
                progress(num_done, len(settings.requests) * len(STRATEGIES))
        one, many, paid = (found[name]["latency_s"]["p50"] for name in STRATEGIES)
        if settings.peers:
            wanted = list(islice(cycle(requests[sequential.NAME]), count))
            found[continuous_batching.NAME] = _peer_figures(peer, wanted, settings)
        found["speedup"] = round(speed.realised_speedup(one, many), 4)
        found["speedup_when_it_pays"] = round(speed.realised_speedup(one, paid), 4)
        loads.append(found)
    return loads


def _peer_figures(
    peer: ContinuousBatching | None, requests: Sequence[Request], settings: LoadBenchmark
) -> Figures | None:
    if peer is None:
        return None
    jobs = [(one.prompt, one.forced.num_tokens) for one in requests if one.forced is not None]
    run, began_s = LoadRun(), time.perf_counter()
    run.latency_s = peer.decode(jobs, settings.arrivals(len(jobs)))
    run.wall_s = time.perf_counter() - began_s
    run.num_tokens = sum(num_tokens for _, num_tokens in jobs)
    figures = run.figures()
    return {key: figures[key] for key in ("tokens_per_s", "wall_s", "latency_s")}


def _requests(
    loaded: LoadedModel, records: Sequence[Record], strategy: str, settings: LoadBenchmark
) -> list[Request]:
    vocabulary, params, found = loaded.vocabulary, SamplingParams(), []
    for record in records[: max(settings.requests)]:
        prompt = vocabulary.encode_prompt(record.prompt) or vocabulary.encode_text("\n")
        document = record.document.with_lengths(vocabulary.count_tokens)
        if strategy == sequential.NAME:
            one = sequential.replay(prompt, document, vocabulary, params)
        else:
            join = loaded.join_with(loaded.positions)
            one = pasta.replay(prompt, document, vocabulary, params, loaded.positions, join)
        one = bounded(one, settings.max_threads)
        if strategy == WHEN_IT_PAYS:
            one = replace(one, params=replace(one.params, fork="when-it-pays"))
        found.append(one)
    return found


def decode(engine: TorchEngine, requests: Sequence[Request], arrivals: Sequence[float]) -> LoadRun:
    """Decode requests that arrive at given times; the engine idles where none is there.

    Raises:
        RequestError: a request failed, or an answer did not fit.
    """
    run, began_s, started = LoadRun(), time.perf_counter(), dict[int, float]()
    waiting = sorted(zip(arrivals, range(len(requests)), strict=True))
    first_pass = engine.num_passes
    try:
        while waiting or engine.has_work:
            now = time.perf_counter() - began_s
            while waiting and waiting[0][0] <= now:
                arrival, index = waiting.pop(0)
                started[engine.submit(requests[index])] = arrival
            if not engine.has_work:
                time.sleep(max(0.0, waiting[0][0] - now))
                continue
            events = engine.step()
            free = engine.pool.num_free_pages / engine.pool.num_pages
            run.peak_cache = max(run.peak_cache, 1 - free)
            for number, event in events:
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Finished):
                    if event.answer.finish_reason != "stop":
                        raise RequestError("an answer needs positions beyond the model's context")
                    run.latency_s.append(time.perf_counter() - began_s - started[number])
                    run.num_tokens += event.answer.trace.num_content_tokens
    finally:
        for number in started:
            engine.cancel(number)
    run.wall_s = time.perf_counter() - began_s
    run.num_passes = engine.num_passes - first_pass
    return run
