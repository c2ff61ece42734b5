"""Tell from a prompt alone whether its answer should begin with a skeleton: the router of SoT.

Naive Bayes over the words of a prompt and their neighbours, learned from prompts of which an
annotator says whether their points can be written at once. The paper finetunes a language model of
120 million parameters for this; on prompts as regular as those of our tasks counting is enough.

Source: Ning et al. 2024, "Skeleton-of-Thought", arXiv 2307.15337, section 4 (SoT-R).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log
from pathlib import Path

from pasta_lm.errors import InputError, ModelError

FILE_NAME = "router.json"
VERSION = 1
LEAST_PROMPTS = 3
"""What fewer prompts have says nothing about others."""
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


def learn(rows: Iterable[tuple[str, bool]]) -> LearnedRouter:
    """Learn from prompts and whether their answers should begin with a skeleton.

    Raises:
        InputError: all of them should, or none: there is nothing to tell apart.
    """
    num_prompts: Counter[bool] = Counter()
    having: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for prompt, should in rows:
        num_prompts[should] += 1
        having[should].update(features(prompt))
    if min(num_prompts[True], num_prompts[False]) == 0:
        raise InputError(
            f"{num_prompts.total()} prompts, and a skeleton for "
            f"{'all' if num_prompts[True] else 'none'} of them: a router learns nothing from that",
            hint="take an annotator that tells prompts apart, such as sot_gold or sot_noisy",
        )
    weights = {
        one: log((having[True][one] + 1) / (num_prompts[True] + 2))
        - log((having[False][one] + 1) / (num_prompts[False] + 2))
        for one in sorted(having[True] | having[False])
        if having[True][one] + having[False][one] >= LEAST_PROMPTS
    }
    return LearnedRouter(log(num_prompts[True] / num_prompts[False]), weights)


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
