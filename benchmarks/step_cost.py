"""Measure what a step of T threads costs, and what a fork, a sync and a fed token cost beside it.

    python benchmarks/step_cost.py SHAPE.json OUT.json [--dtype bfloat16]

Random weights, forced text (kind: replayed). c(T) is the median time of a pass in which T threads
of one response feed one token each, over a prompt of 100 tokens. Bookkeeping is measured without
a model: the interpreter, the placer and the recorder alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import DTYPES
from pasta_lm.engines.local.random_model import random_model, read_architecture, train_tokenizer
from pasta_lm.engines.local.timing import num_entries, step_s
from pasta_lm.interpreter import Entries, Interpreter, Limits, Placer, PositionStrategy
from pasta_lm.interpreter.interpreter import Resume
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.machine import describe_machine

PROMPT = list(range(5, 105))
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def bookkeeping_us(num_rounds: int = 300) -> dict[str, float]:
    """Return microseconds for a fed token, a fork and a sync in the interpreter and placer."""
    spent = {"fed_token": 0.0, "fork": 0.0, "sync": 0.0}
    for _ in range(num_rounds):
        entries = Entries.of_prompt(PROMPT)
        machine = Interpreter(Limits(), entries.new_owner)
        placer = Placer(entries, PositionStrategy.PREDICT, machine.main)
        spent["fed_token"] += _timed(_token, machine, placer)
        spent["fork"] += _timed(_fork, machine, placer)
        spent["sync"] += _timed(_sync, machine, placer)
    return {name: 1e6 * total / num_rounds for name, total in spent.items()}


def _timed(
    action: Callable[[Interpreter, Placer], None], machine: Interpreter, placer: Placer
) -> float:
    began = time.perf_counter()
    action(machine, placer)
    return time.perf_counter() - began


def _token(machine: Interpreter, placer: Placer) -> None:
    machine.advance(machine.main, Lexeme(LexemeKind.TEXT, "word"))
    placer.feed(machine.main, 7)


def _fork(machine: Interpreter, placer: Placer) -> None:
    """Decode a promise of one topic token, then place its end and the new thread's first token."""
    main = machine.main
    for lexeme in (
        Lexeme(LexemeKind.PROMISE_OPEN),
        Lexeme(LexemeKind.TEXT, "topic"),
        Lexeme(LexemeKind.PROMISE_CLOSE, units=2),
    ):
        machine.advance(main, lexeme)
    placer.feed(main, 7, promised=main.children[-1])
    placer.feed(main.children[-1], 8)


def _sync(machine: Interpreter, placer: Placer) -> None:
    main, child = machine.main, machine.main.children[-1]
    machine.advance(main, Lexeme(LexemeKind.SYNC))
    commands = machine.advance(child, Lexeme(LexemeKind.ASYNC_CLOSE))
    placer.feed(child, 9)
    resume = next(command for command in commands if isinstance(command, Resume))
    placer.feed_sync(main, 10, resume.joined)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--widths", default=",".join(map(str, WIDTHS)), help="values of T, comma-separated"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(["a few words are enough to make a tokenizer of bytes"])
    loaded = random_model(
        read_architecture(args.shape), tokenizer, name=args.shape.stem,
        dtype=DTYPES[args.dtype], device=args.device,
    )  # fmt: skip
    widths = [int(width) for width in args.widths.split(",")]
    engine = TorchEngine(loaded, pool_tokens=num_entries(max(widths), len(PROMPT)))
    step_s(engine, 2, len(PROMPT))  # the first passes allocate
    rounds = [
        {width: step_s(engine, width, len(PROMPT)) for width in widths} for _ in range(args.rounds)
    ]
    curve = {width: 1e3 * median(one[width] for one in rounds) for width in widths}
    result = {
        "kind": "replayed",
        "weights": "random-weights",
        "model": loaded.name,
        "dtype": args.dtype,
        "device": args.device,
        "step_ms": curve,
        "relative_to_one": {width: ms / curve[1] for width, ms in curve.items()},
        "bookkeeping_us": bookkeeping_us(),
        "machine": describe_machine(),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
