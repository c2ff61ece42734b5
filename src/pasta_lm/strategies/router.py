"""Tell from a prompt alone whether its answer should begin with a skeleton: the router of SoT.

Logistic regression over the words of a prompt and their neighbours, learned from prompts of which
an annotator says whether their points can be written at once. The paper finetunes a language model
of 120 million parameters for this; a model that was taught skeletons routes by itself.

Source: Ning et al. 2024, "Skeleton-of-Thought", arXiv 2307.15337, section 4 (SoT-R).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp
from pathlib import Path
from random import Random

from pasta_lm.errors import InputError, ModelError

FILE_NAME = "router.json"
VERSION = 1
LEAST_PROMPTS = 5
"""What fewer prompts have says nothing about others."""
NUM_EPOCHS = 10
RATE = 0.1
"""Of the first epoch's steps; they shrink as 1 / epoch."""
_KEYS = {"version", "bias", "weights"}
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class LearnedRouter:
    """Weighs the words of a prompt.

    Attributes:
        bias: Log odds of a prompt without words.
        weights: What each word, or pair of neighbours, adds to them.
    """

    bias: float
    weights: Mapping[str, float]

    def __call__(self, prompt: str) -> bool:
        """Tell whether its answer should begin with a skeleton."""
        return self.log_odds(prompt) > 0

    def log_odds(self, prompt: str) -> float:
        """Return the logarithm of the odds that it should."""
        return self.bias + sum(self.weights.get(one, 0.0) for one in features(prompt))


def features(prompt: str) -> set[str]:
    """Return the words of a prompt, and each two that stand together."""
    words = [word.lower() for word in _WORD.findall(prompt)]
    return {*words, *(f"{one} {other}" for one, other in pairwise(words))}


def learn(rows: Iterable[tuple[str, bool]], *, num_epochs: int = NUM_EPOCHS) -> LearnedRouter:
    """Learn from prompts and whether their answers should begin with a skeleton.

    Gradient descent, a prompt at a time, on the logistic loss; the same rows give the same router.
    Both kinds weigh the same, however many there are: an annotator that errs calls few answers
    free, because one wrong sync is enough, and its errors must not set the threshold.

    Args:
        rows: Prompts, each with what is right for it.
        num_epochs: How often each is seen.

    Raises:
        InputError: all of them should, or none: there is nothing to tell apart.
    """
    read = [(features(prompt), should) for prompt, should in rows]
    num_should = sum(should for _, should in read)
    if num_should in (0, len(read)):
        raise InputError(
            f"{len(read)} prompts, and a skeleton for {'all' if num_should else 'none'} of them: "
            "a router learns nothing from that",
            hint="take more prompts, and an annotator that tells them apart: sot_gold or sot_noisy",
        )
    counts = Counter(one for found, _ in read for one in found)
    known = [
        ([one for one in sorted(found) if counts[one] >= LEAST_PROMPTS], should)
        for found, should in read
    ]
    weights = dict.fromkeys(sorted(one for one in counts if counts[one] >= LEAST_PROMPTS), 0.0)
    weight = {True: len(read) / 2 / num_should, False: len(read) / 2 / (len(read) - num_should)}
    bias, random = 0.0, Random(0)
    for epoch in range(num_epochs):
        random.shuffle(known)
        for found, should in known:
            log_odds = bias + sum(weights[one] for one in found)
            step = RATE / (1 + epoch) * weight[should] * (should - _probability(log_odds))
            bias += step
            for one in found:
                weights[one] += step
    return LearnedRouter(bias, weights)


def _probability(log_odds: float) -> float:
    return 1 / (1 + exp(-max(-30.0, min(30.0, log_odds))))


def write_router(router: LearnedRouter, folder: Path) -> Path:
    """Write a router beside the model that it is for, and return the file.

    Raises:
        InputError: it cannot be written.
    """
    weights = {one: round(weight, 4) for one, weight in router.weights.items()}
    found = {"version": VERSION, "bias": round(router.bias, 4), "weights": weights}
    file = folder / FILE_NAME
    try:
        file.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as exc:
        raise InputError(f"{file} cannot be written: {exc}") from exc
    return file


def read_router(folder: Path) -> LearnedRouter | None:
    """Read the router of a model folder; None where there is none.

    Raises:
        ModelError: the file is no router of this version.
    """
    file = folder / FILE_NAME
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found.keys() != _KEYS or found["version"] != VERSION:
            raise ValueError(f"its keys or its version are not those of version {VERSION}")
        weights = {str(one): float(weight) for one, weight in found["weights"].items()}
        return LearnedRouter(float(found["bias"]), weights)
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        hint = f"learn it again: pasta train router {folder}"
        raise ModelError(f"{file} is no router: {exc}", hint=hint) from exc
