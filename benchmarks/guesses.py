"""Measure which number of guessed tokens makes speculative decoding fastest.

    python benchmarks/guesses.py MODEL OUT.json [--draft DIR]

Development prompts, decoded alone and greedily, each by plain decoding and by every number of
guesses in turn (kind: generated). Figures are ratios of clocks of the same prompt, with 95 %
intervals. What they choose is ``NUM_GUESSES`` of prompt lookup and of the draft model.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch

from pasta_lab.tasks.registry import task_set, training_families
from pasta_lm.engines.local.drafting import DraftModel
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import load
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.machine import describe_machine
from pasta_lm.measure.intervals import as_dict, geometric_mean
from pasta_lm.strategies import sequential, speculation
from pasta_lm.strategies.model import Pasta

NUMBERS = (2, 4, 6, 8, 12)
PARAMS = SamplingParams(max_tokens=1024)


def requests_of(
    prompt: list[int], drafts: dict[int, DraftModel], numbers: list[int]
) -> dict[str, Request]:
    """Return, by name, each strategy whose tokens equal the sequential ones."""
    asked = {sequential.NAME: sequential.request(prompt, PARAMS)}
    for number in numbers:
        guess = speculation.PromptLookup(num_guesses=number)
        name = f"{speculation.LOOKUP} {number}"
        asked[name] = speculation.request(prompt, PARAMS, guess, speculation.LOOKUP)
        if number in drafts:
            name = f"{speculation.DRAFT} {number}"
            asked[name] = speculation.request(prompt, PARAMS, drafts[number], speculation.DRAFT)
    return asked


def answer(engine: TorchEngine, request: Request) -> Answer:
    """Decode one request alone."""
    return engine.generate([request])[0][0]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "model", help="model that knows the tasks, such as build/laptop/baseline/model"
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--draft", help="folder of the smaller model")
    parser.add_argument("--num-per-family", type=int, default=2, help="prompts")
    parser.add_argument("--numbers", default=",".join(map(str, NUMBERS)), help="comma-separated")
    args = parser.parse_args()
    torch.set_num_threads(1)
    numbers = [int(number) for number in args.numbers.split(",")]
    model = Pasta.from_pretrained(args.model)
    loaded = model.engine.loaded
    drafts = {}
    if args.draft is not None:
        draft = load(args.draft)
        drafts = {number: DraftModel(draft, loaded, num_guesses=number) for number in numbers}
    tasks = task_set("dev", args.num_per_family, families=training_families())
    ratios: dict[str, list[float]] = defaultdict(list)
    num_different = 0
    for index, task in enumerate([tasks[0], *tasks]):  # the first one twice: it warms up
        asked = requests_of(model.request(task.prompt).prompt, drafts, numbers)
        given = {name: answer(model.engine, request) for name, request in asked.items()}
        plain = given[sequential.NAME]
        num_different += sum(one.text != plain.text for one in given.values())
        for name, one in given.items():
            if index:
                ratios[name].append(plain.trace.wall_s / one.trace.wall_s)
    result = {
        "kind": "generated",
        "split": "dev",
        "num_prompts": len(tasks),
        "model": loaded.name,
        "draft": args.draft,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "num_different": num_different,
        "speed_over_sequential": {
            name: as_dict(geometric_mean(found))
            for name, found in ratios.items()
            if name != sequential.NAME
        },
        "machine": describe_machine(),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
