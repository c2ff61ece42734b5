"""Train the router of Skeleton-of-Thought on tasks whose dependency structure is known.

A prompt's label says whether all points of its answer can be written at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from pasta_lab.tasks import mixture
from pasta_lab.tasks.baselines import SOT_ANNOTATORS
from pasta_lm.errors import InputError
from pasta_lm.strategies.router import LearnedRouter, features, write_router

MIN_PROMPTS = 5
"""Words of fewer prompts get no weight."""
NUM_DEV = 500
SEED = 3
"""Not that of any recipe: the prompts differ from those that models are trained on first."""


class TrainedRouter(NamedTuple):
    """A router on disk, and its figures on development prompts."""

    file: Path
    agreement: float
    """Share of prompts on which the router and the true structure agree."""
    routed: float
    """Share of prompts to which it gives a skeleton."""


def train_router(folder: Path, annotator: str, num_tasks: int) -> TrainedRouter:
    """Train a router by one of ``SOT_ANNOTATORS``, and write it into its model's folder.

    Raises:
        InputError: the annotator labels all prompts alike, or the folder cannot be written to.
    """
    router = fit(_rows("train", annotator, num_tasks))
    seen = [(router(prompt), label) for prompt, label in _rows("dev", "sot_gold", NUM_DEV)]
    file = write_router(router, folder)
    agreement = sum(given == label for given, label in seen) / len(seen)
    return TrainedRouter(file, agreement, sum(given for given, _ in seen) / len(seen))


def fit(rows: Iterable[tuple[str, bool]]) -> LearnedRouter:
    """Fit a logistic regression; the same rows give the same router.

    Both classes have the same total weight: an annotator that errs finds few answers independent,
    because one wrong sync is enough, and its errors must not set the threshold.

    A row is a prompt with its label: whether its answer should begin with a skeleton.

    Raises:
        InputError: all labels are the same, or no word occurs in ``MIN_PROMPTS`` prompts.
    """
    labelled = list(rows)
    labels = [label for _, label in labelled]
    if len({*labels}) < 2:
        raise InputError(
            f"{len(labels)} prompts, and a skeleton for {'all' if any(labels) else 'none'} of "
            "them: a router learns nothing from that",
            hint="take more prompts, and an annotator that tells them apart: sot_gold or sot_noisy",
        )
    vectorizer = CountVectorizer(analyzer=features, binary=True, min_df=MIN_PROMPTS)
    try:
        counts = vectorizer.fit_transform([prompt for prompt, _ in labelled])
    except ValueError as exc:
        raise InputError(
            f"no word occurs in {MIN_PROMPTS} of {len(labels)} prompts: a router learns nothing "
            "from that",
            hint="take more prompts",
        ) from exc
    model = LogisticRegression(class_weight="balanced", max_iter=1000).fit(counts, labels)
    names = (str(name) for name in vectorizer.get_feature_names_out())
    weights = dict(zip(names, map(float, model.coef_[0]), strict=True))
    return LearnedRouter(float(model.intercept_[0]), weights)


def _rows(split: str, annotator: str, num_tasks: int) -> Iterator[tuple[str, bool]]:
    for task in islice(mixture(split, SEED), num_tasks):
        yield task.prompt, len(SOT_ANNOTATORS[annotator](task, 0).blocks) > 1
