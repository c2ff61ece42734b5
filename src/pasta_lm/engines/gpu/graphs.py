"""Run a function of fixed shape again and again: a plain call on a CPU, a CUDA graph on a GPU.

The function takes no arguments: it reads tensors that stay where they are, and what it returns is
valid until it runs again. A graph launches all its kernels at once, so that the host's time for a
pass no longer depends on the number of its operations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

NUM_WARMUPS = 2  # runs before a capture: kernels are compiled, libraries take their workspace


class Outputs(NamedTuple):
    """What a pass gives."""

    logits_NV: Tensor  # float32
    tokens_N: Tensor  # int64


Function = Callable[[], Outputs]


class Capturer(Protocol):
    """Makes something to run of a function."""

    def __call__(self, function: Function) -> Function:
        """Return a function that gives the same outputs from the same tensors."""


def plain_call(function: Function) -> Function:
    """Return the function itself: no capture."""
    return function


class CudaGraphs:
    """Captures functions as CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self.failure: Exception | None = None
        """The last reason why a function runs uncaptured."""

    def __call__(self, function: Function) -> Function:
        """Return the replay of a captured function; the function itself if it cannot be captured.

        The function runs a few times, so its tensors must describe a pass without effects.
        """
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARMUPS):
                function()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._memory):
                outputs = function()
        except RuntimeError as exc:  # an operation that waits for the device, such as item()
            logger.warning("passes run without CUDA graphs: %s", exc)
            self.failure = exc
            self._memory = torch.cuda.graph_pool_handle()  # the old one belongs to half a graph
            torch.cuda.synchronize()
            return function

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay
