"""The router of Skeleton-of-Thought: it decides from a prompt whether to decode a skeleton.

It is a logistic regression over the words and the pairs of neighbouring words of a prompt, trained
in ``train/router.py``. The paper finetunes a language model of 120 million parameters for this.

Source: Ning et al. 2024, "Skeleton-of-Thought", arXiv 2307.15337, section 4 (SoT-R).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pasta_lm.errors import InputError, ModelError, cause

FILE_NAME = "router.json"
VERSION = 1
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class LearnedRouter:
    """Log-linear weights of the words of a prompt."""

    bias: float  # the log odds of a prompt without known words
    weights: Mapping[str, float]  # what each word or pair of neighbours adds to the log odds

    def __call__(self, prompt: str) -> bool:
        """Return whether the answer should begin with a skeleton."""
        return self.log_odds(prompt) > 0  # a probability above one half

    def log_odds(self, prompt: str) -> float:
        """Return the logarithm of the odds that the answer should begin with a skeleton."""
        return self.bias + sum(self.weights.get(one, 0.0) for one in features(prompt))


def features(prompt: str) -> set[str]:
    """Return the words of a prompt and each pair of neighbouring words, in lower case."""
    # A set: the weights were trained on whether a word occurs, not on how often.
    words = [word.lower() for word in _WORD.findall(prompt)]
    return {*words, *(f"{one} {other}" for one, other in pairwise(words))}


def write_router(router: LearnedRouter, folder: Path) -> Path:
    """Write a router into the folder of its model, and return the file.

    Raises:
        InputError: it cannot be written.
    """
    # Sorted and rounded, so that the files of two trainings can be compared line by line.
    weights = {one: round(weight, 4) for one, weight in sorted(router.weights.items())}
    found = {"version": VERSION, "bias": round(router.bias, 4), "weights": weights}
    file = folder / FILE_NAME
    try:
        file.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as exc:
        raise InputError(f"{file} cannot be written: {cause(exc)}") from exc
    return file


def read_router(folder: Path) -> LearnedRouter | None:
    """Read the router of a model folder; None if there is none.

    Raises:
        ModelError: the file is not a router of this version.
    """
    file = folder / FILE_NAME
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found.keys() != {"version", "bias", "weights"} or found["version"] != VERSION:
            raise ValueError(f"its keys or its version are not those of version {VERSION}")
        weights = {str(one): float(weight) for one, weight in found["weights"].items()}
        return LearnedRouter(float(found["bias"]), weights)
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        hint = f"train it again: pasta train router {folder}"
        raise ModelError(f"{file} is no router: {exc}", hint=hint) from exc
