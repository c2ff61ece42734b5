"""Let a model answer tasks: many at once for grades, one at a time for clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.evaluate.answered import Answered, graded
from pasta_lm.strategies import pasta
from pasta_lm.strategies.replay import bounded
from pasta_lm.tasks.annotators import gold
from pasta_lm.tasks.task import Task

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta

Progress = Callable[[str, int, int], None]
"""Told what is being decoded, how many prompts are done, and of how many."""

PERFECT = "perfect forks"
"""The name of the true structure, decoded with forced tokens."""

UNMASKED = f"{pasta.NAME}, mask off"
"""The name under which records keep what the model does without the mask."""


def answer_all(
    model: Pasta,
    tasks: Sequence[Task],
    strategy: str,
    params: SamplingParams,
    progress: Progress,
    *,
    batch_size: int = 250,
) -> list[Answered]:
    """Answer tasks, many at once: company does not change tokens.

    Args:
        model: Who answers.
        tasks: What is asked.
        strategy: How.
        params: How tokens are chosen, and the limits.
        progress: Told after each batch.
        batch_size: Prompts that are handed to the engine together.
    """
    done: list[Answered] = []
    for first in range(0, len(tasks), batch_size):
        some = tasks[first : first + batch_size]
        requests = [model.request(task.prompt, params, strategy=strategy) for task in some]
        answers = [samples[0] for samples in model.engine.generate(requests)]
        done += [graded(t, a, strategy) for t, a in zip(some, answers, strict=True)]
        progress(strategy, len(done), len(tasks))
    return done


def answer_timed(
    models: Sequence[tuple[str, Pasta]],
    perfect: Pasta | None,
    tasks: Sequence[Task],
    params: SamplingParams,
    progress: Progress,
) -> dict[str, list[Answered]]:
    """Answer tasks one at a time, each by all strategies in turn, so that clocks can be compared.

    Args:
        models: Strategies, each with the model that answers by it.
        perfect: Whose engine replays the true structure; None: nobody's.
        tasks: What is asked.
        params: How tokens are chosen, and the limits.
        progress: Told after each task.
    """
    done: dict[str, list[Answered]] = {name: [] for name, _ in models}
    if perfect is not None:
        done[PERFECT] = []
    for index, task in enumerate([*tasks[:1], *tasks]):  # the first one twice: it warms up
        for name, model in models:
            request = model.request(task.prompt, params, strategy=name)
            done[name].append(_timed(model, task, request, name))
        if perfect is not None:
            done[PERFECT].append(_timed(perfect, task, _true_request(perfect, task), PERFECT))
        progress("clocks", index, len(tasks))
    return {name: answers[1:] for name, answers in done.items()}


def _timed(model: Pasta, task: Task, request: Request, name: str) -> Answered:
    (answer,) = model.engine.generate([request])[0]
    return graded(task, answer, name, is_timed=True)


def _true_request(model: Pasta, task: Task) -> Request:
    """Return the request that decodes the reference with its true structure."""
    loaded = model.engine.loaded
    document = gold(task).with_lengths(loaded.vocabulary.count_tokens)
    prompt = model.request(task.prompt).prompt
    request = pasta.replay(prompt, document, loaded.vocabulary, SamplingParams(), loaded.positions)
    return bounded(request, None)


def unmasked(params: SamplingParams) -> SamplingParams:
    """Return the same settings with every token allowed, tags where the grammar has none too."""
    return replace(params, mask=False)
