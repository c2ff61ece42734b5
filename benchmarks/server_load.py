"""Put a stock server under load, with forks and without; measure what forks and syncs cost."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import httpx2 as httpx

from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.engines.servers import streamed_response
from pasta_lm.engines.servers.completions import CompletionsEngine
from pasta_lm.engines.servers.dialects import VLLM
from pasta_lm.language.lexer import LexemeKind
from pasta_lm.models.vocabulary import Vocabulary

COUNTERS = {  # of prompt tokens, by dialect: those that were cached, or those that were computed
    "vllm": "vllm:prefix_cache_hits_total",
    "llama.cpp": "llamacpp:prompt_tokens_total",
}
PROBES = (64, 320)  # prompt tokens
PROBED_STEPS, PROBED_TIMES = 20, 2
FEWEST = 4  # prompts of a turn


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


@dataclass(frozen=True)
class ProcessorClock:
    """The processor time of a server on this machine, in place of the module ``time``.

    It does not count what other processes take from the server, and not what happens here.
    """

    pids: Sequence[int]

    def perf_counter(self) -> float:
        """Return the seconds that the processes have computed; Linux's ids of their clocks."""
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in self.pids)


def measured_by(pids: Sequence[int]) -> AbstractContextManager[object]:
    """Let traces have a server's processor time; without processes the wall clock."""
    return patch.object(streamed_response, "time", ProcessorClock(pids)) if pids else nullcontext()


@dataclass(frozen=True)
class Run:
    """Some answers that were decoded at once."""

    answers: Sequence[Answer]
    wall_s: float
    busy_s: float  # the same by the clock of the traces
    num_requests: int  # completions
    num_prompt_tokens: int  # of all completions
    num_cached: float  # of these


def under_load(engine: CompletionsEngine, requests: Sequence[Request], in_flight: int) -> Run:
    """Decode requests, so many at once."""
    server = engine.servers[0]
    assert server.dialect is not None
    sent = Sent(server.dialect.body)
    own, server.dialect = server.dialect, replace(server.dialect, body=sent)
    engine.max_responses = in_flight
    before, began_s = _counter(server.url, own.name), time.perf_counter()
    busy_s = streamed_response.time.perf_counter()
    try:
        answers = [answer for (answer,) in engine.generate(requests)]
    finally:
        server.dialect = own
    wall_s = time.perf_counter() - began_s
    busy_s = streamed_response.time.perf_counter() - busy_s
    counted = _counter(server.url, own.name) - before
    cached = counted if own.name == VLLM else sent.num_tokens - counted
    return Run(answers, wall_s, busy_s, sent.num_requests, sent.num_tokens, cached)


def figures(runs: Sequence[Run], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the figures of runs together; plans stay apart, a list for each run."""
    answers = [answer for run in runs for answer in run.answers]
    traces = [answer.trace for answer in answers]
    return {
        "responses": len(answers),
        "wall_s": round(sum(run.wall_s for run in runs), 3),
        "busy_s": round(sum(run.busy_s for run in runs), 3),
        "response_s": round(sum(trace.wall_s for trace in traces), 3),
        "tokens": sum(trace.num_tokens for trace in traces),
        "critical_path": sum(trace.critical_path for trace in traces),
        "threads": sum(len(trace.threads) for trace in traces),
        "syncs": sum(len(trace.syncs) for trace in traces),
        "recomputed": sum(trace.num_recomputed for trace in traces),
        "completions": sum(run.num_requests for run in runs),
        "prompt_tokens": sum(run.num_prompt_tokens for run in runs),
        "cached_tokens": round(sum(run.num_cached for run in runs)),
        "fork_ms": _median([one for answer in answers for one in _fork_ms(answer, vocabulary)]),
        "sync_ms": _median([one for answer in answers for one in _sync_ms(answer)]),
        "token_ms": _median(_token_ms(answers)),
        "plans": [[plan(answer, vocabulary) for answer in run.answers] for run in runs],
    }


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 1) if values else None


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


def _sync_ms(answer: Answer) -> list[float]:
    """Return the time from what a sync waits for, or the sync itself, to main's next token."""
    trace, found = answer.trace, []
    main = trace.tokens_of(0)
    for sync in trace.syncs:
        place = next(at for at, one in enumerate(main) if one.position == sync.position)
        blocks = [trace.tokens_of(thread)[-1].t_s for thread in sync.joined]
        if place + 1 < len(main):
            ready_s = max([main[place].t_s, *blocks])
            found.append(1000 * (main[place + 1].t_s - ready_s))
    return found


def _token_ms(answers: Sequence[Answer]) -> list[float]:
    """Return the time between two tokens of main, forks and syncs included."""
    times = [[one.t_s for one in answer.trace.tokens_of(0)] for answer in answers]
    return [1000 * (b - a) for one in times for a, b in zip(one, one[1:], strict=False)]


def at_load(
    engine: CompletionsEngine,
    forking: Sequence[Request],
    plain: Sequence[Request],
    in_flight: int,
    budget_s: float,
) -> dict[str, Any]:
    """Decode the prompts by both strategies; efficiency is time by token of the critical path.

    Both take turns, so that whatever else runs on the machine slows both: as many prompts as are in
    flight by one strategy, the same by the other, until no prompt or no time is left. Times but for
    ``wall`` are those of the traces, see ``measured_by``.
    """
    size, ends_s = max(in_flight, FEWEST), time.perf_counter() + budget_s
    sides: dict[str, list[Run]] = {"sequential": [], "pasta": []}
    for start in range(0, len(plain) - size + 1, size):
        part = slice(start, start + size)
        both = [("sequential", plain[part]), ("pasta", forking[part])]
        for name, requests in both if start // size % 2 == 0 else reversed(both):
            sides[name].append(under_load(engine, requests, in_flight))
        if time.perf_counter() > ends_s:
            break
    vocabulary = engine.loaded.vocabulary
    sequential, pasta = (figures(runs, vocabulary) for runs in sides.values())
    theoretical = sequential["critical_path"] / pasta["critical_path"]
    realised = sequential["response_s"] / pasta["response_s"]
    return {
        "in_flight": in_flight,
        "theoretical": round(theoretical, 3),
        "realised": round(realised, 3),
        "efficiency": round(realised / theoretical, 3),
        "throughput": round(sequential["busy_s"] / pasta["busy_s"], 3),  # with forks over without
        "wall_throughput": round(sequential["wall_s"] / pasta["wall_s"], 3),
        "load_average": os.getloadavg()[0],
        "sequential": sequential,
        "pasta": pasta,
    }


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


# --- what a simulation needs


def costs_ms(engine: CompletionsEngine, rows: Sequence[int]) -> dict[str, Any]:
    """Return what a step costs by rows, a token of a prompt, and a request; no answer has forks."""
    steps = [(number, _step_ms(engine, number)) for number in rows]
    short, long = (_first_ms(engine, size) for size in PROBES)
    again = _first_ms(engine, PROBES[0] + 1, is_fresh=False)  # all but its last token is cached
    return {
        "steps": steps,
        "prefill_token": round((long - short) / (PROBES[1] - PROBES[0]), 4),
        "request": round(max(0.0, again - steps[0][1]), 2),
    }


def _step_ms(engine: CompletionsEngine, rows: int) -> float:
    """Return the time between two tokens while so many completions are decoded."""
    params = SamplingParams(max_tokens=PROBED_STEPS, ignore_eos=True)
    found = []
    for _ in range(PROBED_TIMES):
        requests = [Request(prompt=_words(32), params=params, forks=False) for _ in range(rows)]
        engine.max_responses = rows
        times = [one.t_s for (answer,) in engine.generate(requests) for one in answer.trace.tokens]
        # The second half: all prompts have been fed by then.
        late = sorted(times)[len(times) // 2 :]
        found.append(1000 * (late[-1] - late[0]) / (len(late) / rows))
    return round(min(found), 2)


def _first_ms(engine: CompletionsEngine, size: int, *, is_fresh: bool = True) -> float:
    """Return the time to the first token behind a prompt of random tokens."""
    times, prompt, params = [], _words(size), SamplingParams(max_tokens=1)
    for _ in range(1 + PROBED_TIMES):
        prompt = _words(size) if is_fresh else prompt
        ((answer,),) = engine.generate([Request(prompt=prompt, params=params, forks=False)])
        times.append(1000 * answer.trace.wall_s)
    return min(times[1:])


def _words(size: int) -> list[int]:
    return random.sample(range(1000, 20000), size)
