r"""Sample a round of stage two on a stock server and on the local engine; compare them.

    PYTHONPATH=. python benchmarks/served_rollouts.py MODEL --engine URL --out OUT.json \
        --processes PID[,PID] [--prompts 16] [--samples 4] [--max-tokens 256]

MODEL as for ``stock_servers.py``. A server draws other tokens from a seed than the local engine, so
distributions are compared: each token against the model's own probabilities, and what a round
learns from (lengths, forks, best and worst score) by permutation within prompts. Both sides take
turns with 32 responses in flight, so that whatever else runs slows both.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.server_load import ProcessorClock
from benchmarks.stock_servers import Engine, instructions
from benchmarks.token_agreement import Choice, Threads, choices
from pasta_lm.engines.record import AnswerRecord
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.learn.data.preferences import ScoreConfig, select_pairs
from pasta_lm.learn.data.rollouts import Rollout, Sampling
from pasta_lm.learn.judge.judge import Comparison, Verdict
from pasta_lm.machine import describe_machine
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.strategies import sequential
from pasta_lm.strategies.model import Pasta

IN_FLIGHT = 32
FEWEST_TAGS = 1e-3
"""Contexts in which tags and ends together are less likely are those of plain text."""
SHUFFLES = 10_000
SPEED = ScoreConfig(quality_weight=0.0)
"""The score is the theoretical speedup: a judge would say the same of both sides' answers."""

Samples = Mapping[str, Sequence[Answer]]
"""By prompt."""
Clock = Callable[[], float]


class NoJudge:
    """Calls every comparison a tie."""

    def compare(self, comparisons: Sequence[Comparison]) -> Sequence[Verdict | None]:
        """Return the ties."""
        return [Verdict("tie", 1.0) for _ in comparisons]


@dataclass(frozen=True)
class Side:
    """What one engine sampled."""

    samples: Samples
    wall_s: float
    busy_s: float  # processor time of what computes the tokens: this process, or the server

    @property
    def answers(self) -> list[Answer]:
        """Return all of them."""
        return [answer for answers in self.samples.values() for answer in answers]

    def figures(self) -> dict[str, Any]:
        """Return counts and the pace."""
        traces = [answer.trace for answer in self.answers]
        num_tokens = sum(trace.num_tokens for trace in traces)
        return {
            "answers": len(traces),
            "tokens": num_tokens,
            "wall_s": round(self.wall_s, 2),
            "busy_s": round(self.busy_s, 2),
            "tokens_per_s": round(num_tokens / self.wall_s, 1),
            "tokens_per_busy_s": round(num_tokens / self.busy_s, 1),
            "threads": sum(len(trace.threads) for trace in traces),
            "ended": sum(answer.finish_reason == "stop" for answer in self.answers),
        }


def take_turns(
    engines: Mapping[str, tuple[Engine, Clock]], requests: Mapping[str, Request], at_once: int
) -> dict[str, Side]:
    """Let engines, each with the clock of what computes, sample the same prompts in turn."""
    names = list(requests)
    samples: dict[str, dict[str, Sequence[Answer]]] = {engine: {} for engine in engines}
    walls, busy = dict.fromkeys(engines, 0.0), dict.fromkeys(engines, 0.0)
    for turn, start in enumerate(range(0, len(names), at_once)):
        some = names[start : start + at_once]
        for name, (engine, clock) in list(engines.items())[:: 1 if turn % 2 == 0 else -1]:
            began_s, busy_s = time.perf_counter(), clock()
            answers = engine.generate([requests[one] for one in some])
            walls[name] += time.perf_counter() - began_s
            busy[name] += clock() - busy_s
            samples[name] |= dict(zip(some, answers, strict=True))
            print(f"{name}: {len(samples[name])} of {len(names)} prompts", flush=True)
    return {name: Side(samples[name], walls[name], busy[name]) for name in engines}


# --- tokens against the model's probabilities


@dataclass
class Surprise:
    """Sums over tokens: of -log p less its expectation, and of its variance."""

    excess: float = 0.0
    variance: float = 0.0
    num_tokens: int = 0

    @property
    def z(self) -> float:
        """Return the excess in standard deviations: if all were drawn from p, of order 1."""
        return self.excess / math.sqrt(self.variance)

    def add(self, logits: torch.Tensor, token: int) -> None:
        """Count a token that was drawn where a model has these logits."""
        log_probs = logits.double().log_softmax(-1)
        probs = log_probs.exp()
        mean = -(probs * log_probs).sum()
        self.excess += float(-log_probs[token] - mean)
        self.variance += float((probs * (log_probs + mean) ** 2).sum())
        self.num_tokens += 1


def runs_of(found: Mapping[tuple[int, int], Choice]) -> list[list[Choice]]:
    """Return choices of a thread that stand behind each other, which one pass can check."""
    runs: list[list[Choice]] = []
    run_of: dict[tuple[int, int], list[Choice]] = {}
    for (thread, index), choice in found.items():
        before = found.get((thread, index - 1))
        if before is None or choice.context != (*before.context, before.token):
            runs.append([])
            run_of[thread, index] = runs[-1]
        else:  # main goes on behind a block, so this is not always the last run
            run_of[thread, index] = run_of[thread, index - 1]
        run_of[thread, index].append(choice)
    return runs


def surprise(
    side: Side,
    requests: Mapping[str, Request],
    vocabulary: Vocabulary,
    model: Any,
    special: Sequence[int],
) -> Surprise:
    """Compare the plain text that a side sampled with the probabilities of a plain pass."""
    found = Surprise()
    for name, answers in side.samples.items():
        for answer in answers:
            every = choices(vocabulary, requests[name].prompt, threads_of(answer))
            for run in runs_of(every):
                ids = torch.tensor([[*run[-1].context]])
                with torch.inference_mode():
                    logits = model(ids).logits[0, -len(run) :]
                tags = logits.softmax(-1)[:, list(special)].sum(-1)
                for row, choice, mass in zip(logits, run, tags.tolist(), strict=True):
                    if mass < FEWEST_TAGS and choice.token not in special:
                        found.add(row, choice.token)
    return found


def threads_of(answer: Answer) -> Threads:
    """Return the ids that each thread decoded."""
    trace = answer.trace
    return [[token.token or 0 for token in trace.tokens_of(one.id)] for one in trace.threads]


# --- what a round learns from

Reduce = Callable[[Sequence[float]], float]
STATISTICS: dict[str, tuple[Callable[[Answer], float], Reduce]] = {
    "tokens": (lambda one: one.trace.num_tokens, fmean),
    "blocks": (lambda one: len(one.trace.threads) - 1, fmean),
    "parallelism": (lambda one: one.trace.parallelism, fmean),
    "ended": (lambda one: one.finish_reason == "stop", fmean),
    "shortest_path": (lambda one: one.trace.critical_path, min),
    "longest_path": (lambda one: one.trace.critical_path, max),
}
"""A number of each answer, and what becomes of those of one prompt; the shortest and the longest
path are those of the best and the worst score."""


def permuted(
    ours: Samples, theirs: Samples, number: Callable[[Answer], float], reduce: Reduce
) -> dict[str, float]:
    """Return the means over prompts, and how often chance alone separates them as far."""
    rng = random.Random(0)
    pairs = [([*map(number, ours[name])], [*map(number, theirs[name])]) for name in ours]

    def difference(sides: Sequence[tuple[list[float], list[float]]]) -> float:
        return fmean(reduce(one) - reduce(other) for one, other in sides)

    found, num_as_far = difference(pairs), 0
    for _ in range(SHUFFLES):
        mixed = []
        for one, other in pairs:
            both = rng.sample([*one, *other], len(one) + len(other))
            mixed.append((both[: len(one)], both[len(one) :]))
        num_as_far += abs(difference(mixed)) >= abs(found) - 1e-12
    local, server = (round(fmean(reduce(pair[side]) for pair in pairs), 3) for side in (0, 1))
    p_value = round((num_as_far + 1) / (SHUFFLES + 1), 4)
    return {"local": local, "server": server, "p": p_value}


def pairs_from(
    side: Side, prompts: Mapping[str, str], baseline: Mapping[str, Answer]
) -> dict[str, float]:
    """Return the figures of the pairs that a round would make of a side's samples."""
    rollouts = [
        Rollout(
            name,
            prompts[name],
            AnswerRecord.of(baseline[name]),
            tuple(AnswerRecord.of(answer) for answer in answers),
        )
        for name, answers in side.samples.items()
    ]
    figures = select_pairs(rollouts, {}, NoJudge(), SPEED).figures()
    return {key: round(value, 3) for key, value in figures.items()}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--processes", required=True, help="those of the server, by a comma")
    parser.add_argument("--server", default="unknown", help="the server's version, for the record")
    args = parser.parse_args()
    torch.set_num_threads(1)
    prompts = instructions(args.prompts)
    sampling = Sampling(
        model=args.model, baseline=args.model, samples=args.samples, max_tokens=args.max_tokens
    )
    remote = Pasta.from_servers(args.engine, args.model)
    remote.engine.max_responses = IN_FLIGHT  # type: ignore[union-attr]
    local = Pasta.from_pretrained(args.model, dtype="float32", pool_tokens=40_960)
    requests = {
        name: local.request(prompt, sampling.params(name), strategy=sampling.strategy)
        for name, prompt in prompts.items()
    }
    server_clock = ProcessorClock([int(one) for one in args.processes.split(",")])
    engines = {
        "local": (local.engine, time.process_time),
        "server": (remote.engine, server_clock.perf_counter),
    }
    sides = take_turns(engines, requests, IN_FLIGHT // args.samples)
    greedy = SamplingParams(max_tokens=args.max_tokens)
    plain = local.engine.generate(
        [local.request(one, greedy, strategy=sequential.NAME) for one in prompts.values()]
    )
    baseline = {name: answer for name, (answer,) in zip(prompts, plain, strict=True)}
    loaded = remote.engine.loaded
    special = sorted({*loaded.vocabulary.piece_ids.values(), *loaded.eos_ids})
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    figures = {name: side.figures() for name, side in sides.items()}
    ratios = {
        key: round(figures["server"][key] / figures["local"][key], 3)
        for key in ("tokens_per_s", "tokens_per_busy_s")
    }
    found: dict[str, Any] = {
        "kind": "generated",
        "server": args.server,
        "model": loaded.name,
        "max_tokens": args.max_tokens,
        "in_flight": IN_FLIGHT,
        "machine": describe_machine(),
        "load_average": os.getloadavg()[0],
        "server_over_local": ratios,
    }
    for name, side in sides.items():
        drawn = surprise(side, requests, loaded.vocabulary, model, special)
        found[name] = {
            **figures[name],
            "checked_tokens": drawn.num_tokens,
            "excess_nats": round(drawn.excess / drawn.num_tokens, 5),
            "z": round(drawn.z, 2),
            "pairs": pairs_from(side, prompts, baseline),
        }
    found["statistics"] = {
        name: permuted(sides["local"].samples, sides["server"].samples, *how)
        for name, how in STATISTICS.items()
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
