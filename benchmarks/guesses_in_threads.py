"""Measure speculation and PASTA together: each alone, both, and neither, on the same prompts.

    python benchmarks/guesses_in_threads.py OUT.json [--model builtin] [--prompts FILE] [--limit N]

Greedy answers of one model, alone, one thread of the processor (kind: generated). Seconds are those
of the processor that the process was given, so that other work on the machine counts less. PASTA's
answer is the same with and without guesses, and so is the sequential one; that is checked.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from pasta_lm.engines.request import Answer, SamplingParams
from pasta_lm.machine import describe_machine
from pasta_lm.measure.intervals import as_dict, geometric_mean
from pasta_lm.strategies import pasta, sequential, speculation
from pasta_lm.strategies.model import BUILTIN, Pasta

PROMPTS = (
    "Describe spring, summer, autumn and winter.",
    "Three ways to sleep better",
    "Name four fruits and say for each fruit what colour the fruit has.",
    "Compare cats, dogs and birds as pets: food, noise and space.",
)
PAIRS = (
    (sequential.NAME, speculation.LOOKUP),
    (pasta.NAME, speculation.PASTA_LOOKUP),
)


def decode(model: Pasta, prompt: str, strategy: str, max_tokens: int) -> tuple[Answer, float]:
    """Return an answer and the processor's seconds for it."""
    began = time.process_time()
    answer = model.generate(prompt, SamplingParams(max_tokens=max_tokens), strategy=strategy)
    return answer, time.process_time() - began


def read_prompts(file: Path) -> list[str]:
    """Return the prompts of a file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines] if file.suffix == ".jsonl" else lines


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default=BUILTIN)
    parser.add_argument(
        "--prompts", type=Path, help="a prompt a line; .jsonl: a JSON string a line"
    )
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=160)
    args = parser.parse_args()
    torch.set_num_threads(1)
    prompts = list(PROMPTS) if args.prompts is None else read_prompts(args.prompts)
    model = Pasta.from_pretrained(args.model)
    names = [name for pair in PAIRS for name in pair]
    for name in names:  # first passes allocate and compile
        decode(model, prompts[0], name, 8)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    passes: dict[str, list[int]] = {name: [] for name in names}
    num_different = 0
    for prompt in prompts[: args.limit]:
        found = {name: decode(model, prompt, name, args.max_tokens) for name in names}
        for name, (answer, spent) in found.items():
            seconds[name].append(spent)
            passes[name].append(answer.trace.forward_passes)
        for plain, guessed in PAIRS:
            num_different += found[plain][0].program != found[guessed][0].program

    def over(base: str, name: str) -> dict[str, float]:
        pairs = zip(seconds[base], seconds[name], strict=True)
        return as_dict(geometric_mean([a / b for a, b in pairs]))

    both = speculation.PASTA_LOOKUP
    result = {
        "kind": "generated",
        "model": args.model,
        "dtype": str(model.engine.loaded.dtype).removeprefix("torch."),
        "prompts": prompts[: args.limit],
        "max_tokens": args.max_tokens,
        "num_different": num_different,
        "processor_s": seconds,
        "forward_passes": passes,
        "speed_over_sequential": {n: over(sequential.NAME, n) for n in names[1:]},
        "both_over_pasta": over(pasta.NAME, both),
        "both_over_speculation": over(speculation.LOOKUP, both),
        "machine": describe_machine(),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
