"""Put a stock server under load, with forks and without; measure what forks and syncs cost."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2 as httpx

from pasta_lm.engines.completions import CompletionsEngine
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.language.lexer import LexemeKind
from pasta_lm.remote.dialects import VLLM

COUNTERS = {  # of prompt tokens, by dialect: those that were cached, or those that were computed
    "vllm": "vllm:prefix_cache_hits_total",
    "llama.cpp": "llamacpp:prompt_tokens_total",
}
PROBES = (64, 320)  # prompt tokens


@dataclass
class Sent:
    """Counts what is sent to servers, in the place of a dialect's body."""

    body: Callable[..., dict[str, Any]]
    num_requests: int = 0
    num_tokens: int = 0

    def __call__(self, model: str, request: Any) -> dict[str, Any]:
        """Count a request and write its body."""
        self.num_requests += 1
        self.num_tokens += len(request.prompt)
        return self.body(model, request)


def under_load(
    engine: CompletionsEngine, requests: Sequence[Request], in_flight: int
) -> dict[str, Any]:
    """Decode requests, so many at once; return the figures of all together."""
    server = engine.servers[0]
    assert server.dialect is not None
    sent = Sent(server.dialect.body)
    own, server.dialect = server.dialect, replace(server.dialect, body=sent)
    engine.max_responses = in_flight
    before, began_s = _counter(server.url, own.name), time.perf_counter()
    try:
        answers = [answer for (answer,) in engine.generate(requests)]
    finally:
        server.dialect = own
    wall_s, counted = time.perf_counter() - began_s, _counter(server.url, own.name) - before
    cached = counted if own.name == VLLM else sent.num_tokens - counted
    traces = [answer.trace for answer in answers]
    gaps = [gap for answer in answers for gap in _fork_ms(answer, engine.loaded.vocabulary)]
    return {
        "responses": len(answers),
        "wall_s": round(wall_s, 3),
        "response_s": round(sum(trace.wall_s for trace in traces), 3),
        "tokens": sum(trace.num_tokens for trace in traces),
        "critical_path": sum(trace.critical_path for trace in traces),
        "threads": sum(len(trace.threads) for trace in traces),
        "syncs": sum(len(trace.syncs) for trace in traces),
        "recomputed": sum(trace.num_recomputed for trace in traces),
        "completions": sent.num_requests,
        "prompt_tokens": sent.num_tokens,
        "cached_tokens": round(cached),
        "fork_ms": round(statistics.median(gaps), 1) if gaps else None,
        "token_ms": round(statistics.median(_token_ms(answers)), 1),
        "plans": [plan(answer, engine.loaded.vocabulary) for answer in answers],
    }


def _counter(url: str, dialect: str) -> float:
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    name = COUNTERS[dialect]
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def _fork_ms(answer: Answer, vocabulary: Vocabulary) -> list[float]:
    """Return the time from each promise's end to the first token of its block."""
    tokens, found = answer.trace.tokens, []
    kinds = [vocabulary.id_to_lexeme(one.token or 0) for one in tokens]
    ends = [
        token.t_s
        for token, lexeme in zip(tokens, kinds, strict=True)
        if token.thread == 0 and lexeme and lexeme.kind is LexemeKind.PROMISE_CLOSE
    ]
    for thread, end_s in zip(answer.trace.threads[1:], ends, strict=False):
        chosen = [one.t_s for one in answer.trace.tokens_of(thread.id) if not one.is_forced]
        found += [1000 * (chosen[0] - end_s)] if chosen else []
    return found


def _token_ms(answers: Sequence[Answer]) -> list[float]:
    """Return the time between two tokens of main, forks and syncs included."""
    times = [[one.t_s for one in answer.trace.tokens_of(0)] for answer in answers]
    return [1000 * (b - a) for one in times for a, b in zip(one, one[1:], strict=False)] or [0.0]


def at_load(
    engine: CompletionsEngine,
    forking: Sequence[Request],
    plain: Sequence[Request],
    in_flight: int,
) -> dict[str, Any]:
    """Decode the prompts by both strategies; efficiency is time by token of the critical path."""
    sequential = under_load(engine, plain, in_flight)
    pasta = under_load(engine, forking, in_flight)
    theoretical = sequential["critical_path"] / pasta["critical_path"]
    realised = sequential["response_s"] / pasta["response_s"]
    found = {
        "in_flight": in_flight,
        "theoretical": round(theoretical, 3),
        "realised": round(realised, 3),
        "efficiency": round(realised / theoretical, 3),
        "load_average": os.getloadavg()[0],
        "sequential": sequential,
        "pasta": pasta,
    }
    return found


def brief(found: dict[str, Any]) -> str:
    """Return the figures of one load as a line."""
    pasta = {key: value for key, value in found["pasta"].items() if key != "plans"}
    return json.dumps({**found, "sequential": found["sequential"]["response_s"], "pasta": pasta})


def plan(answer: Answer, vocabulary: Vocabulary) -> list[Any]:
    """Return the structure of an answer in tokens: its prompt, and main's stretches with forks.

    A stretch is ``[tokens, [[tokens of main before the fork, tokens of the block], ...]]``.
    """
    sizes = [len(answer.trace.tokens_of(one.id)) for one in answer.trace.threads]
    stretches: list[Any] = []
    num_main, num_blocks, forks = 0, 0, list[list[int]]()
    for token in answer.trace.tokens_of(0):
        num_main += 1
        lexeme = vocabulary.id_to_lexeme(token.token or 0)
        kind = None if lexeme is None else lexeme.kind
        if kind is LexemeKind.PROMISE_CLOSE and num_blocks + 1 < len(sizes):
            num_blocks += 1
            forks.append([num_main, max(1, sizes[num_blocks] - 1)])  # <async> is forced
        if kind is LexemeKind.SYNC:
            stretches.append([num_main, forks])
            num_main, forks = 0, []
    stretches.append([num_main + 1, forks])
    return [answer.trace.num_prompt_tokens, stretches]


def prefill_token_ms(engine: CompletionsEngine) -> float:
    """Return what a token of a prompt costs: prompts of two lengths, one token decoded."""
    rng, words = random.Random(0), range(1000, 20000)
    times: dict[int, list[float]] = {size: [] for size in PROBES}
    for size in [*PROBES] * 3:
        prompt, params = rng.sample(words, size), SamplingParams(max_tokens=1)
        began_s = time.perf_counter()
        engine.generate([Request(prompt=prompt, params=params, forks=False)])
        times[size].append(time.perf_counter() - began_s)
    short, long = (min(times[size]) for size in PROBES)
    return round(1000 * (long - short) / (PROBES[1] - PROBES[0]), 4)
