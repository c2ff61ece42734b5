"""Decode with paged attention: passes in buckets of fixed shape, captured on a GPU.

Prompts and requests of many rows run over views of the pool. A pass travels to the device as one
array of whole numbers and one of settings, and comes back as token ids. Owners and positions of all
entries lie on the device beside the pool; those missing there, because a run moved or a pass over
views computed them, are copied before a pass.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor

from pasta_lm.engines.devices import on_device, warn_once
from pasta_lm.engines.gpu.attention import (
    Attend,
    PagedPass,
    attend_gathered,
    attend_split,
    fault_of,
    place_entries,
)
from pasta_lm.engines.gpu.batch import (
    MAX_QUERIES,
    MIN_OWNERS,
    MIN_PAGES,
    NUM_LINES,
    POSITION,
    Bucket,
    MaskTable,
    PagedBatch,
    RequestRows,
    RequestSize,
    bucket_of,
    choose_rows,
    settings_of,
)
from pasta_lm.engines.passes.pool import Pool
from pasta_lm.engines.passes.runner import EntryTensors, LogitsFunction, RequestSpan
from pasta_lm.engines.passes.sampling import Choice, TokenMasks

MAX_ROWS = 256  # rows of a pass
MAX_REQUEST_ROWS = 64  # beyond it fused attention over a view reads keys less often
MAX_CHOSEN_ROWS = 64  # that a captured choice takes: a draw's numbers are three times its logits
MAX_SHAPES = 64  # that are kept; the one that was not used for longest goes

Function = Callable[[], Tensor]
"""Returns logits [W, V] or tokens [W], valid until it runs again, of tensors that stay."""

logger = logging.getLogger(__name__)

# Legend: N rows of a bucket, W wanted rows, V vocabulary.


@dataclass(frozen=True, slots=True)
class _Replay:
    """A captured function."""

    graph: torch.cuda.CUDAGraph  # knows addresses only: the function holds the tensors there
    output: Tensor
    function: Function

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.output


class CudaGraphs:
    """Captures functions as CUDA graphs that share one pool of memory and one stream.

    A graph launches all its kernels at once, so that the host's time for a pass no longer depends
    on the number of its operations. After one failure nothing is captured: it is the model's.
    """

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()  # each other one would take a workspace of cuBLAS
        self.failure: Exception | None = None  # the reason why functions run uncaptured

    def __call__(self, function: Function) -> Function:
        """Return the replay of a captured function; the function itself if it cannot be captured.

        The function runs a few times, so its tensors must describe a pass without effects.
        """
        if self.failure is not None:
            return function
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            function()  # kernels are compiled, libraries take their workspace
            try:
                graph, output = self._captured(function)
            except torch.OutOfMemoryError:
                graph = None  # a smaller shape may fit
                torch.cuda.empty_cache()
            except RuntimeError as exc:  # an operation that waits for the device, such as item()
                logger.warning("passes run without CUDA graphs: %s", exc)
                self.failure = exc
        torch.cuda.current_stream().wait_stream(self._side)
        if self.failure is not None or graph is None:
            return function
        return _Replay(graph, output, function)

    def _captured(self, function: Function) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # A capture that fails leaves allocator and generators broken, so it must not begin.
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is called a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode(before)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # in a capture torch cannot give memory back
        graph = torch.cuda.CUDAGraph()
        # Other threads of a server may reserve memory meanwhile.
        graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
        try:
            output = function()
        finally:
            graph.capture_end()
        return graph, output


def graphs_of(device: torch.device) -> Callable[[Function], Function] | None:
    """Return the capture of passes on a device; None: they run as they are."""
    return CudaGraphs() if device.type == "cuda" else None


Result: TypeAlias = tuple[Tensor, list[int] | None]
"""Logits of the wanted rows, valid until the next pass; tokens; None: a pass cannot hold these."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """The memory of one bucket, or of the choices of so many rows, and the function of it."""

    host: Tensor
    there: Tensor
    run: Function
    batch: PagedBatch | None = None  # the arrays of a bucket in the memory of the host

    def send(self) -> None:
        self.there.copy_(self.host, non_blocking=True)


class PagedDecoder:
    """Runs passes of a model over a pool: Triton and CUDA graphs on a GPU, plain torch elsewhere.

    ``logits`` is the model, ``masks`` the legal tokens.
    """

    def __init__(
        self, logits: LogitsFunction, pool: Pool, masks: TokenMasks, num_query_heads: int
    ) -> None:
        self._logits, self._pool = logits, pool
        self.device = pool.keys[0].device
        self._is_cuda = self.device.type == "cuda"
        self._group = max(num_query_heads // len(keys) for keys in pool.keys)
        self._masks = MaskTable(masks, self.device)
        self._entries = torch.zeros(2, pool.num_slots, dtype=torch.int32, device=self.device)
        self._attend: Attend = attend_split if self._is_cuda else attend_gathered
        self._out_WV = torch.empty(MAX_ROWS, masks.vocab_size, device=self.device)  # all shapes'
        self._tokens_W = torch.empty(MAX_ROWS, dtype=torch.int64, device=self.device)
        with on_device(self.device):
            self._graphs = graphs_of(self.device)
        self.shapes: dict[Bucket, _Shape] = {}  # the one that was not used for longest first
        self._choices: dict[tuple[int, bool], _Shape] = {}  # by rows, and whether some are drawn
        self.num_shapes = 0  # that were made so far: an answer in which one was is not timed

    @property
    def capture(self) -> str:
        """Return whether passes are captured, and if not, why."""
        if self._graphs is None:
            return "not captured: no GPU"
        failure = getattr(self._graphs, "failure", None)
        return "captured" if failure is None else f"not captured: {failure}"

    @property
    def functions(self) -> list[Function]:
        return [shape.run for shape in (*self.shapes.values(), *self._choices.values())]

    def takes(self, num_rows: Sequence[int]) -> bool:
        return max(num_rows, default=MAX_ROWS) <= MAX_REQUEST_ROWS and sum(num_rows) <= MAX_ROWS

    def run(
        self, parts: Sequence[tuple[EntryTensors, RequestSpan]], wanted: Sequence[int],
        choices: Sequence[Choice],
    ) -> Result:  # fmt: skip
        """Run one pass over its requests, none of which moves keys, in the order of their rows.

        ``wanted`` are the rows whose logits are wanted, ``choices`` how their tokens are chosen.
        """
        with on_device(self.device):
            result = self._run([self._rows(*part) for part in parts], wanted, choices)
        for tensors, span in parts:
            tensors.num_placed = span.num_entries
        return result

    def prepare(self, num_rows: int, num_entries: int, draws: bool | None = False) -> None:
        """Capture the shapes of one request of up to so many rows and entries.

        ``draws``: choices have a temperature; None: they are none that a graph can hold.
        """
        last = self._pool.pages_for(num_entries)
        rows = {1 << power for power in range(num_rows.bit_length())} | {num_rows}
        pages = {1, *(MIN_PAGES * 4**power + 1 for power in range(6)), last}
        sizes = [RequestSize(n, min(num, last), MIN_OWNERS) for n, num in product(rows, pages)]
        with torch.inference_mode(), on_device(self.device):
            for size, wants_all in product(sizes, (False, True)):
                num_wanted = size.num_rows if wants_all else 1
                self._shape(bucket := bucket_of([size], self._group, num_wanted))
                if draws is not None:
                    self._choice(bucket.num_wanted, draws)

    def close(self) -> None:
        """Forget all graphs, whose memory and functions hold the pool."""
        self.shapes.clear()
        self._choices.clear()

    def try_out(self) -> None:
        """Run a row of padding: whatever cannot be compiled or launched here fails."""
        with torch.inference_mode(), on_device(self.device):
            self._shape(bucket_of([RequestSize(1, 1, 1)], self._group)).run()

    @torch.inference_mode()
    def _run(
        self, requests: Sequence[RequestRows], wanted: Sequence[int], choices: Sequence[Choice]
    ) -> Result:
        sizes = [request.size for request in requests]
        shape = self._shape(bucket := bucket_of(sizes, self._group, len(wanted)))
        assert shape.batch is not None
        shape.batch.fill(requests, wanted)
        shape.send()
        logits_WV = shape.run()[: len(wanted)]
        if (settings := settings_of(choices, self._masks)) is None:
            return logits_WV, None
        draws = any(choice.params.temperature > 0 for choice in choices)
        choice = self._choice(bucket.num_wanted, draws)
        choice.host.zero_()
        if settings:
            choice.host.numpy().T[: len(settings)] = settings  # as a tensor: twice the time
        choice.send()
        tokens = choice.run()[: len(wanted)].tolist()  # waits for the device
        return logits_WV, tokens if min(tokens, default=0) >= 0 else None

    def _shape(self, bucket: Bucket) -> _Shape:
        if (shape := self.shapes.pop(bucket, None)) is None:
            if len(self.shapes) == MAX_SHAPES:
                del self.shapes[next(iter(self.shapes))]
            self.num_shapes += 1
            shape = self._make(bucket)
        self.shapes[bucket] = shape
        return shape

    def _make(self, bucket: Bucket) -> _Shape:
        """Reserve the arrays of a bucket, and capture a pass of padding alone."""
        size = PagedBatch.num_numbers(bucket)
        host = torch.empty(size, dtype=torch.int32, pin_memory=self._is_cuda)
        on_host = PagedBatch.of_numbers(bucket, self._pool.page_size, host)
        on_host.fill([])
        there = host.to(self.device, copy=True)
        batch = PagedBatch.of_numbers(bucket, self._pool.page_size, there)
        out_WV = self._out_WV[: bucket.num_wanted]

        def forward() -> Tensor:
            place_entries(batch, self._entries)
            tokens, positions = batch.rows[: POSITION + 1].long()
            run = PagedPass(batch, self._pool, self._entries, self._attend)
            return out_WV.copy_(self._logits(tokens, positions, batch.wanted.long(), run))

        return _Shape(host, there, self._captured(forward), on_host)

    def _choice(self, num_wanted: int, draws: bool) -> _Shape:
        """Return the memory of the choices of so many rows; ``draws``: some have a temperature."""
        if (shape := self._choices.get((num_wanted, draws))) is not None:
            return shape
        host = torch.zeros(NUM_LINES, num_wanted, dtype=torch.float64, pin_memory=self._is_cuda)
        there = host.to(self.device, copy=True)
        logits_WV, tokens_W = self._out_WV[:num_wanted], self._tokens_W[:num_wanted]

        def choose() -> Tensor:
            for start in range(0, num_wanted, MAX_CHOSEN_ROWS):
                span = slice(start, start + MAX_CHOSEN_ROWS)
                settings = there[:, span]
                tokens_W[span] = choose_rows(logits_WV[span], settings, self._masks, draws=draws)
            return tokens_W

        run = self._captured(choose) if num_wanted <= MAX_CHOSEN_ROWS else choose
        self.num_shapes += 1
        return self._choices.setdefault((num_wanted, draws), _Shape(host, there, run))

    def _captured(self, function: Function) -> Function:
        return function if self._graphs is None else self._graphs(function)

    def _rows(self, tensors: EntryTensors, span: RequestSpan) -> RequestRows:
        """Return the rows of a request; what the device lacks of its entries is copied."""
        first, stop, run = span.first_slot, span.num_entries, span.run
        if tensors.first_page != run.first_page:  # the run was moved
            tensors.first_page, tensors.num_placed = run.first_page, 0
        if (num_placed := tensors.num_placed) < first:
            start = self._pool.start(run)
            lines = tensors.owners_and_positions(num_placed, first)
            self._entries[:, start + num_placed : start + first] = lines
        pages = range(run.first_page, run.first_page + self._pool.pages_for(stop))
        fed = tensors.entries.items[first:stop]
        return RequestRows(fed, first, pages, tensors.entries.num_owners)


def paged_decoder(
    logits: LogitsFunction, pool: Pool, masks: TokenMasks, num_query_heads: int
) -> PagedDecoder | None:
    """Return a decoder of a model; None if its passes must run over views of the pool."""
    device = pool.keys[0].device
    if max(num_query_heads // len(keys) for keys in pool.keys) > MAX_QUERIES:
        return None
    if device.type == "cuda" and (fault := fault_of(device)):
        warn_once(f"passes run without Triton, and more slowly: {fault}")
        return None
    decoder = PagedDecoder(logits, pool, masks, num_query_heads)
    try:
        decoder.try_out()
    except torch.OutOfMemoryError:
        raise
    except Exception as exc:  # no C compiler, no Python.h, a GPU that lacks the dtype
        logger.warning("passes run without Triton, and slowly: %s: %s", type(exc).__name__, exc)
        return None
    return decoder
