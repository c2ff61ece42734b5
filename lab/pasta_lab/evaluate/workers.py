"""Processes that decode what is not timed, each with all models and one CPU thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context

from pasta_lm.engines.request import SamplingParams
from pasta_lm.measure.answering import Answerer, Decoded, Models, Prompt, System, decode_prompts
from pasta_lm.strategies.model import Pasta

BATCH_SIZE = 50
"""Prompts that a process gets together."""

_models: dict[str, Pasta] = {}


@dataclass(frozen=True, kw_only=True)
class PooledAnswerer(Answerer):
    """An answerer whose untimed prompts are decoded by several processes."""

    workers: Executor | None = None
    """Processes with the same models; None: this one decodes."""

    def batches(
        self, system: System, prompts: Sequence[Prompt]
    ) -> Iterator[tuple[Sequence[Prompt], Sequence[Decoded]]]:
        """Yield batches of prompts with their answers."""
        if self.workers is None:
            yield from super().batches(system, prompts)
            return
        size = min(self.batch_size, BATCH_SIZE)
        batches = [prompts[first : first + size] for first in range(0, len(prompts), size)]
        settings = repeat(system), batches, repeat(self.params), repeat(self.positions)
        yield from zip(batches, self.workers.map(_decode_in_process, *settings), strict=True)


@contextmanager
def worker_pool(num: int, load: Callable[[], Models]) -> Iterator[Executor]:
    """Provide processes that decode.

    Args:
        num: How many processes.
        load: Returns the models; called once in each process.
    """
    pool = ProcessPoolExecutor(
        num, mp_context=get_context("spawn"), initializer=_load, initargs=(load,)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _load(load: Callable[[], Models]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it once, when it is imported with the models
    _models.update(load())


def _decode_in_process(
    system: System, prompts: Sequence[Prompt], params: SamplingParams, positions: str | None
) -> list[Decoded]:
    return decode_prompts(_models[system.model], system, prompts, params, positions)
