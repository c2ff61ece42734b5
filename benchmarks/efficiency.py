"""Measure realised / theoretical speedup and sequential speed on replayed answers.

    python benchmarks/efficiency.py SHAPE.json ANSWERS.jsonl[.gz] OUT.json [--dtype bfloat16] ...

Every answer is decoded sequentially and then in parallel in one engine (random weights, forced
text); every tenth is also decoded by ``transformers.generate`` with the same weights, in the same
run. Answers come in a seeded random order, so a run that is cut by ``--minutes`` is a fair sample.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import replace as changed
from pathlib import Path
from statistics import median

import torch
from transformers import PreTrainedModel

from pasta_lm.engines.local.loading import DTYPES, LoadedModel
from pasta_lm.engines.local.random_model import random_model, read_architecture, train_tokenizer
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.machine import describe_machine
from pasta_lm.models.annotated import Record, read_annotated
from pasta_lm.strategies.replay import Pair, ReplayReport, replay


def stratified(answers: list[Record], number: int, seed: int) -> list[Record]:
    """Return answers spread evenly over the order of their numbers of blocks, shuffled."""
    rng = random.Random(seed)
    ordered = sorted(answers, key=lambda a: (len(a.document.blocks), rng.random()))
    chosen = [ordered[i * len(ordered) // number] for i in range(number)]
    rng.shuffle(chosen)
    return chosen


def generate_s(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> float:
    """Return seconds that ``transformers.generate`` takes for this many greedy tokens."""
    ids = torch.tensor([prompt])
    began = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids, max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
    return time.perf_counter() - began


class Benchmark:
    """One shape and dtype over some answers; saves as it goes."""

    def __init__(self, loaded: LoadedModel, answers: list[Record], out: Path) -> None:
        """Keep a second copy of the model, with transformers' own attention."""
        import copy

        self._loaded, self._answers, self._out = loaded, answers, out
        self._theirs = copy.deepcopy(loaded.model)
        self._theirs.set_attn_implementation("sdpa")
        self._pairs: list[Pair] = []
        self._skipped: list[tuple[str, str]] = []
        self._ratios: list[float] = []
        self._theirs_tokens_per_s: list[float] = []

    def run(self, minutes: float, chunk: int = 5) -> None:
        """Decode answers until they or the minutes are used up."""
        deadline = time.monotonic() + 60 * minutes
        report = None
        for start in range(0, len(self._answers), chunk):
            if time.monotonic() > deadline:
                break
            part = self._answers[start : start + chunk]
            report = replay(part, self._loaded, positions=PositionStrategy.PREDICT)
            self._pairs += report.pairs
            self._skipped += report.skipped
            if report.pairs:
                self._compare(report.pairs[0], part)
            self._save(report)

    def _compare(self, pair: Pair, part: list[Record]) -> None:
        answer = next(a for a in part if a.id == pair.id)
        vocabulary = self._loaded.vocabulary
        prompt = vocabulary.encode_prompt(answer.prompt) or vocabulary.encode_text("\n")
        num_tokens = pair.sequential.critical_path + 1
        theirs = generate_s(self._theirs, prompt, num_tokens)
        self._ratios.append(theirs / pair.wall_s[0])
        self._theirs_tokens_per_s.append(num_tokens / theirs)

    def _save(self, report: ReplayReport) -> None:
        report = changed(report, pairs=self._pairs, skipped=self._skipped)
        result = {
            **report.to_dict(),
            "num_answers_asked": len(self._answers),
            "against_transformers_generate": {
                "num_answers": len(self._ratios),
                "sequential_speed_ratio_median": median(self._ratios) if self._ratios else None,
                "their_tokens_per_s_median": median(self._theirs_tokens_per_s or [0.0]),
            },
            "machine": describe_machine(),
        }
        self._out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES))
    parser.add_argument("--number", type=int, help="stratified by blocks; default: all")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    answers = read_annotated(args.answers).records
    tokenizer = train_tokenizer(answer.document.plain_text for answer in answers)
    chosen = stratified(answers, args.number or len(answers), args.seed)
    loaded = random_model(
        read_architecture(args.shape), tokenizer, name=args.shape.stem,
        dtype=DTYPES[args.dtype], device=args.device,
    )  # fmt: skip
    Benchmark(loaded, chosen, args.out).run(args.minutes)


if __name__ == "__main__":
    main()
