"""Answer tasks in several processes, each with both models and one thread: no clock runs there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Literal

from pasta_lm.engines.request import SamplingParams
from pasta_lm.evaluate.answered import Answered
from pasta_lm.evaluate.answering import Progress, answer_all
from pasta_lm.tasks.task import Task

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta

Side = Literal["model", "baseline"]
"""Which of the two models answers."""

CHUNK = 50
"""Prompts that a process is handed at once."""

_loaded: dict[Side, Pasta] = {}


class Workers:
    """Processes that answer; company does not change tokens, so neither does the number of them."""

    def __init__(self, num: int, load: Callable[[], tuple[Pasta, Pasta]]) -> None:
        """Start no process yet.

        Args:
            num: How many processes.
            load: Returns the model and its baseline; called once in each process.
        """
        self._pool = ProcessPoolExecutor(
            num, mp_context=get_context("spawn"), initializer=_load, initargs=(load,)
        )

    def __enter__(self) -> Workers:
        """Return the workers themselves."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes; what is not begun is left out."""
        self._pool.shutdown(cancel_futures=True)

    def answer_all(
        self,
        side: Side,
        tasks: Sequence[Task],
        strategy: str,
        params: SamplingParams,
        progress: Progress,
    ) -> list[Answered]:
        """Do what ``answering.answer_all`` does, in turn for chunks of the tasks."""
        chunks = [tasks[first : first + CHUNK] for first in range(0, len(tasks), CHUNK)]
        asked = [self._pool.submit(_answer, side, some, strategy, params) for some in chunks]
        done: list[Answered] = []
        for one in asked:
            done += one.result()
            progress(strategy, len(done), len(tasks))
        return done


def _load(load: Callable[[], tuple[Pasta, Pasta]]) -> None:
    import torch

    torch.set_num_threads(1)
    _loaded["model"], _loaded["baseline"] = load()


def _answer(
    side: Side, tasks: Sequence[Task], strategy: str, params: SamplingParams
) -> list[Answered]:
    return answer_all(_loaded[side], tasks, strategy, params, lambda *_: None)
