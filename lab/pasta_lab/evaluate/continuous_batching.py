"""transformers' continuous batching as a peer under load: the same prompts, as many new tokens.

It decodes its own greedy tokens sequentially and never stops early, so that it has the work of a
sequential answer. Its scheduler runs in a thread of its own.
"""

from __future__ import annotations

import copy
import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pasta_lm.errors import PastaError

NAME = "continuous-batching"
PAGE_SIZE = 256  # entries of a page of its cache
MAX_BATCH_TOKENS = 512  # tokens of a pass, prompts included
_PATIENCE_S = 1.0  # between two looks whether its thread still runs

Job = tuple[Sequence[int], int]
"""Token ids of a prompt, and how many tokens to decode."""


class ContinuousBatching:
    """A running scheduler, as ``opened`` returns it."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def decode(self, jobs: Sequence[Job], arrivals: Sequence[float]) -> list[float]:
        """Decode jobs that arrive at given seconds; return their latencies in seconds.

        Raises:
            PastaError: a job failed, or the scheduler stopped.
        """
        began_s, started, latencies = time.perf_counter(), dict[str, float](), list[float]()
        waiting = sorted(zip(arrivals, range(len(jobs)), strict=True))
        while len(latencies) < len(jobs):
            now = time.perf_counter() - began_s
            while waiting and waiting[0][0] <= now:
                arrival, index = waiting.pop(0)
                prompt, num_tokens = jobs[index]
                started[self._add(list(prompt), num_tokens)] = arrival
            found = self._result(waiting[0][0] - now if waiting else _PATIENCE_S)
            if found is not None:
                latencies.append(time.perf_counter() - began_s - started[found.request_id])
        return latencies

    def _add(self, prompt: list[int], num_tokens: int) -> str:
        name = self._manager.add_request(prompt, max_new_tokens=num_tokens, eos_token_id=-1)
        if name is None:
            raise PastaError("continuous batching of transformers takes no more requests")
        return str(name)

    def _result(self, timeout: float) -> Any:
        """Return what finished, or None after some seconds."""
        try:
            found = self._manager.get_result(timeout=max(1e-3, min(timeout, _PATIENCE_S)))
        except queue.Empty:
            found = None
        if found is not None and found.error:
            raise PastaError(f"continuous batching of transformers failed: {found.error}")
        if found is None and not self._manager.is_running():
            raise PastaError("continuous batching of transformers stopped")
        return found


@contextmanager
def opened(model: Any, pool_tokens: int) -> Iterator[ContinuousBatching]:
    """Start a scheduler with a copy of a model; it ends with the block.

    Args:
        model: As transformers loaded it, before the engine lays out its weights anew.
        pool_tokens: Entries of its cache.

    Raises:
        ImportError: this version of transformers has none.
        ValueError, RuntimeError: it does not take this model.
    """
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model = copy.deepcopy(model)
    model.set_attn_implementation("sdpa")
    settings = ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        num_blocks=-(-pool_tokens // PAGE_SIZE),
        max_batch_tokens=MAX_BATCH_TOKENS,
        allow_block_sharing=False,
    )
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1)
    with model.continuous_batching_context_manager(
        generation_config=greedy, continuous_batching_config=settings
    ) as manager:
        yield ContinuousBatching(manager)
