"""Print how far decoded logits are from one masked forward pass, per architecture and strategy.

    PYTHONPATH=. python lab/benchmarks/exactness.py [--programs 5] [--device cuda]

Random programs on the tiny random models of the tests, float32; the same check that the tests make,
with the figures kept.
"""

from __future__ import annotations

import argparse
import random

import torch

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter import PositionStrategy
from tests.architectures import ARCHITECTURES, loaded
from tests.fakes.recording_engine import Recording
from tests.programs import random_program


def worst(name: str, strategy: PositionStrategy, num_programs: int, device: str) -> float:
    """Return the largest difference over several programs."""
    model = loaded(name, device)
    rng = random.Random(f"{name} {strategy}")
    differences = []
    for _ in range(num_programs):
        program = random_program(rng, model.vocabulary)
        params = SamplingParams(max_tokens=program.answer.num_tokens + 1)
        request = Request(
            prompt=program.prompt, forced=program.answer, positions=strategy, params=params
        )
        ((seen,),) = Recording(model).run([request])
        differences.append(seen.worst_difference(model))
    return max(differences)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    print("| architecture | " + " | ".join(f"`{s}`" for s in PositionStrategy) + " |")
    print("|---" * (1 + len(PositionStrategy)) + "|")
    for name in ARCHITECTURES:
        found = [worst(name, s, args.programs, args.device) for s in PositionStrategy]
        print(f"| {name} | " + " | ".join(f"{value:.1e}" for value in found) + " |", flush=True)


if __name__ == "__main__":
    main()
