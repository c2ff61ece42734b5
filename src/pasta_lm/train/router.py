"""Learn the router of SoT from tasks: can all points of an answer be written at once?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pasta_lm.strategies.router import learn, write_router
from pasta_lm.tasks import mixture
from pasta_lm.tasks.rivals import SOT_ANNOTATORS

NUM_DEV = 500
SEED = 3
"""Not that of any recipe: other prompts than those that models learn from first."""


class Learned(NamedTuple):
    """A router on disk, and how it does on prompts that it has not seen."""

    file: Path
    agreement: float
    """Share of dev prompts on which it and the true structure agree."""
    routed: float
    """Share of dev prompts to which it gives a skeleton."""


def train_router(folder: Path, annotator: str, num_tasks: int) -> Learned:
    """Learn a router and write it into a model folder.

    Args:
        folder: Of the model that it is for.
        annotator: One of ``SOT_ANNOTATORS``.
        num_tasks: Training prompts to learn from.

    Raises:
        InputError: the annotator does not tell prompts apart, or the folder cannot be written to.
    """
    router = learn(_rows("train", annotator, num_tasks))
    seen = [(router(prompt), should) for prompt, should in _rows("dev", "sot_gold", NUM_DEV)]
    file = write_router(router, folder)
    agreement = sum(given == should for given, should in seen) / len(seen)
    return Learned(file, agreement, sum(given for given, _ in seen) / len(seen))


def _rows(split: str, annotator: str, num_tasks: int) -> Iterator[tuple[str, bool]]:
    for task in islice(mixture(split, SEED), num_tasks):
        yield task.prompt, len(SOT_ANNOTATORS[annotator](task, 0).blocks) > 1
