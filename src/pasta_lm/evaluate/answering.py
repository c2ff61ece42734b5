"""Let a model answer tasks: many at once for grades, one at a time for clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.evaluate.answered import Answered, graded
from pasta_lm.language.document import Document
from pasta_lm.strategies import apar, pasta, sequential
from pasta_lm.strategies.replay import bounded
from pasta_lm.tasks.annotators import always_fork, gold, random_fork
from pasta_lm.tasks.task import Task

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta

Progress = Callable[[str, int, int], None]
"""Told what is being decoded, how many prompts are done, and of how many."""

PERFECT = "perfect forks"
"""The name of the true structure, decoded with forced tokens."""

ALWAYS, RANDOM = "always fork", "random fork"
"""The same answers with every unit a block, and with as many as the model forks, by chance."""

BOUNDS = (PERFECT, ALWAYS, RANDOM)

MASKED = {name: f"{name}, mask off" for name in (pasta.NAME, apar.NAME)}
"""Strategies in which a mask keeps a model from wrong tags, and the names under which records keep
what it does without."""

UNMASKED = MASKED[pasta.NAME]


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


@dataclass(frozen=True, slots=True)
class Bounds:
    """Reference answers with structures that no model chose, replayed beside the strategies.

    Attributes:
        model: Whose engine decodes them.
        others: Whether always forking and forking by chance are replayed too.
        fork_rate: The chance of a unit where forks fall by chance; None: they are left out.
    """

    model: Pasta
    others: bool = False
    fork_rate: float | None = None

    def documents(self, task: Task) -> dict[str, Document]:
        """Return each bound's name and its structure of a task's answer."""
        found = {PERFECT: gold(task)}
        if self.others:
            found[ALWAYS] = always_fork(task)
        if self.others and self.fork_rate is not None:
            found[RANDOM] = random_fork(task, self.fork_rate)
        return found


def fork_rate(tasks: Sequence[Task], answers: Sequence[Answered]) -> float | None:
    """Return the share of units that answers fork, in order of the tasks; None of no units."""
    num_units = sum(len(task.units) for task in tasks)
    num_forked = sum(len(answer.structure.forked) for answer in answers)
    return num_forked / num_units if num_units else None


def answer_timed(
    models: Sequence[tuple[str, Pasta]],
    bounds: Bounds | None,
    tasks: Sequence[Task],
    params: SamplingParams,
    progress: Progress,
) -> dict[str, list[Answered]]:
    """Answer tasks one at a time, each by all strategies in turn, so that clocks can be compared.

    Args:
        models: Strategies, each with the model that answers by it.
        bounds: What is replayed beside them; None: nothing.
        tasks: What is asked.
        params: How tokens are chosen, and the limits.
        progress: Told after each task.
    """
    done: defaultdict[str, list[Answered]] = defaultdict(list)
    for index, task in enumerate([*tasks[:1], *tasks]):  # the first one twice: it warms up
        for name, model in models:
            request = model.request(task.prompt, params, strategy=name)
            done[name].append(_timed(model, task, request, name))
        if bounds is not None:
            for name, document in bounds.documents(task).items():
                request = _given_request(bounds.model, task, document)
                done[name].append(_timed(bounds.model, task, request, name))
        progress("clocks", index, len(tasks))
    return {name: answers[1:] for name, answers in done.items()}


def _timed(model: Pasta, task: Task, request: Request, name: str) -> Answered:
    (answer,) = model.engine.generate([request])[0]
    return graded(task, answer, name, is_timed=True)


def _given_request(model: Pasta, task: Task, document: Document) -> Request:
    """Return the request that decodes the reference with a given structure."""
    loaded = model.engine.loaded
    document = document.with_lengths(loaded.vocabulary.count_tokens)
    prompt = model.request(task.prompt, strategy=sequential.NAME).prompt
    request = pasta.replay(prompt, document, loaded.vocabulary, SamplingParams(), loaded.positions)
    return bounded(request, None)


def unmasked(params: SamplingParams) -> SamplingParams:
    """Return the same settings with every token allowed, tags where the grammar has none too."""
    return replace(params, mask=False)
