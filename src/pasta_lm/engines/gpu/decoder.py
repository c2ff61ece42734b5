"""Run passes with paged attention: small ones in buckets of fixed shape, captured; large ones not.

A pass travels to the device as one array of whole numbers and one of settings, and comes back as
token ids. Owners and positions of all entries lie on the device beside the pool; those missing
there, because a run moved or another path computed them, are copied before a pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from pasta_lm.engines.gpu.attention import (
    Attend,
    LayerMemory,
    attend_gathered,
    attend_split,
    has_triton,
    place_entries,
)
from pasta_lm.engines.gpu.batch import (
    MAX_QUERIES,
    MAX_QUERIES_FLOAT32,
    MIN_OWNERS,
    MIN_PAGES,
    Bucket,
    PagedBatch,
    RequestRows,
    RequestSize,
    RowIndex,
    bucket_of,
)
from pasta_lm.engines.gpu.choices import NUM_LINES, MaskTable, choose_rows, settings_of
from pasta_lm.engines.local.attention import LayerCall
from pasta_lm.engines.local.batch import EntryTensors, RequestSlice
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.pool import Pool, Run
from pasta_lm.engines.local.runner import LogitsFunction
from pasta_lm.engines.local.sampling import Choice, TokenMasks
from pasta_lm.interpreter.placement import Entries

MAX_COPIED = 1024  # requests of which the device's knowledge is remembered
MAX_CAPTURED_ROWS = 64  # larger passes compute prompts, and run as they are
MAX_SHAPES = 128  # that are kept; the one that was not used for longest goes

logger = logging.getLogger(__name__)

# Legend: N rows of a bucket, W wanted rows, V vocabulary.


Function = Callable[[], tuple[Tensor, Tensor]]
"""Returns logits [W, V] and tokens [W], valid until it runs again, of tensors that stay."""


@dataclass(frozen=True, slots=True)
class _Replay:
    """A captured function."""

    graph: torch.cuda.CUDAGraph  # knows addresses only: the function holds the tensors there
    outputs: tuple[Tensor, Tensor]
    function: Function

    def __call__(self) -> tuple[Tensor, Tensor]:
        self.graph.replay()
        return self.outputs


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
                graph, outputs = self._captured(function)
            except RuntimeError as exc:  # an operation that waits for the device, such as item()
                logger.warning("passes run without CUDA graphs: %s", exc)
                self.failure = exc
        torch.cuda.current_stream().wait_stream(self._side)
        if self.failure is not None:
            return function
        return _Replay(graph, outputs, function)

    def _captured(self, function: Function) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]:
        # A capture that fails leaves allocator and generators broken, so it must not begin.
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode(before)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads of a server may reserve memory meanwhile.
        graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
        try:
            outputs = function()
        finally:
            graph.capture_end()
        return graph, outputs


def graphs_of(device: torch.device) -> Callable[[Function], Function] | None:
    """Return the capture of passes on a device; None: they run as they are."""
    return CudaGraphs() if device.type == "cuda" else None


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: kernels, streams and graphs are of the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class PassPart(NamedTuple):
    """The part of a pass that belongs to one request."""

    entries: Entries
    tensors: EntryTensors
    slice: RequestSlice


class Result(NamedTuple):
    """What a pass gives; valid until the next one."""

    logits_WV: Tensor  # float32, of the wanted rows
    tokens: list[int] | None  # of the wanted rows; None: the choices need more than a pass can hold


class PagedPass:
    """One pass, as the attention of the model's layers sees it."""

    def __init__(self, batch: PagedBatch, pool: Pool, entries: Tensor, attend: Attend) -> None:
        self._batch, self._pool, self._entries, self._attend = batch, pool, entries, attend

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        """Write the new keys and values into the pool, then attend over each request's pages."""
        keys, values = self._pool.keys[call.layer], self._pool.values[call.layer]
        memory = LayerMemory(keys, values, self._entries)
        return self._attend(call, q_HND, k_GND, v_GND, memory, self._batch)


@dataclass(slots=True)
class _Copied:
    """The entries of a run that the device knows."""

    run: Run
    first_page: int
    num_entries: int


@dataclass(frozen=True, slots=True)
class _Shape:
    """The memory of one bucket, and the function that runs it."""

    host: PagedBatch
    host_numbers: Tensor
    numbers: Tensor
    host_settings: Tensor
    settings: Tensor
    run: Function


class PagedDecoder:
    """Runs passes of a model over a pool: Triton and CUDA graphs on a GPU, plain torch elsewhere.

    ``logits`` is the model, ``masks`` the legal tokens, ``vocab_size`` the columns of the logits.
    """

    def __init__(
        self, logits: LogitsFunction, pool: Pool, masks: TokenMasks, *,
        vocab_size: int, num_query_heads: int,
    ) -> None:  # fmt: skip
        self._logits, self._pool = logits, pool
        self.device, dtype = pool.keys[0].device, pool.keys[0].dtype
        self._is_cuda = self.device.type == "cuda"
        self._group = max(num_query_heads // len(keys) for keys in pool.keys)
        self._max_queries = MAX_QUERIES_FLOAT32 if dtype == torch.float32 else MAX_QUERIES
        self._masks = MaskTable(masks, vocab_size, self.device)
        self._entries = torch.zeros(2, pool.num_slots, dtype=torch.int32, device=self.device)
        self._attend: Attend = attend_split if self._is_cuda else attend_gathered
        size = MAX_CAPTURED_ROWS, vocab_size
        self._out_WV = torch.empty(size, device=self.device)  # of all captured shapes
        self._tokens_W = torch.empty(MAX_CAPTURED_ROWS, dtype=torch.int64, device=self.device)
        with on_device(self.device):
            self._graphs = graphs_of(self.device)
        self._copied: dict[int, _Copied] = {}
        self._shapes: dict[tuple[Bucket, bool], _Shape] = {}
        self.num_shapes = 0  # that were made so far: an answer in which one was is not timed

    @property
    def buckets(self) -> list[Bucket]:
        return [bucket for bucket, _ in self._shapes]

    @property
    def capture(self) -> str:
        """Return whether passes are captured, and if not, why."""
        if self._graphs is None:
            return "not captured: no GPU"
        failure = getattr(self._graphs, "failure", None)
        return "captured" if failure is None else f"not captured: {failure}"

    def passes(self, bucket: Bucket) -> Function:
        """Return the function that runs the last pass of a bucket again, for timing."""
        return next(shape.run for key, shape in self._shapes.items() if key[0] == bucket)

    def run(
        self, parts: Sequence[PassPart], wanted: Sequence[int], choices: Sequence[Choice]
    ) -> Result:
        """Run one pass over its requests, none of which moves keys, in the order of their rows.

        ``wanted`` are the rows whose logits are wanted, ``choices`` how their tokens are chosen.
        """
        if len(self._copied) > MAX_COPIED:  # most of them have ended
            self._copied.clear()
        with on_device(self.device):
            requests = [self._rows(part) for part in parts]
            with torch.inference_mode():
                result = self._run(requests, wanted, choices)
        for part in parts:
            self._copied[id(part.entries)].num_entries = part.slice.num_entries
        return result

    def forget(self, entries: Entries) -> None:
        """Copy a request's entries anew before its next pass: another path has computed some."""
        self._copied.pop(id(entries), None)

    def prepare(self, num_rows: int, num_entries: int) -> None:
        """Capture the shapes of one request of up to so many rows and entries, greedy."""
        num_pages = self._pool.pages_for(num_entries)
        counts = {1 << power for power in range(num_rows.bit_length())} | {num_rows}
        row_counts = sorted(count for count in counts if count <= MAX_CAPTURED_ROWS)
        page_counts = {1, *(MIN_PAGES * 4**power + 1 for power in range(6)), num_pages}
        with torch.inference_mode(), on_device(self.device):
            for rows, pages in product(row_counts, page_counts):
                size = RequestSize(rows, min(pages, num_pages), MIN_OWNERS)
                for num_wanted in {1, rows}:
                    self._shape(self._bucket([size], num_wanted), draws=False)

    def try_out(self) -> None:
        """Run a row of padding: whatever cannot be compiled or launched here fails."""
        with torch.inference_mode(), on_device(self.device):
            self._shape(self._bucket([RequestSize(1, 1, 1)], 1), draws=False).run()

    def _bucket(self, sizes: Sequence[RequestSize], num_wanted: int) -> Bucket:
        return bucket_of(sizes, self._group, num_wanted, self._max_queries)

    def _run(
        self, requests: Sequence[RequestRows], wanted: Sequence[int], choices: Sequence[Choice]
    ) -> Result:
        draws = any(choice.params.temperature > 0 for choice in choices)
        bucket = self._bucket([request.size for request in requests], len(wanted))
        if max(bucket.num_rows, bucket.num_wanted) <= MAX_CAPTURED_ROWS:
            shape = self._shape(bucket, draws)
        else:
            num_rows = sum(len(request.fed) for request in requests)
            bucket = bucket._replace(num_rows=num_rows, num_wanted=len(wanted))
            shape = self._make(bucket, draws, is_kept=False)
        shape.host.fill(requests, wanted)
        is_chosen = settings_of(choices, self._masks, shape.host_settings)
        shape.numbers.copy_(shape.host_numbers, non_blocking=True)
        shape.settings.copy_(shape.host_settings, non_blocking=True)
        logits_WV, tokens_W = shape.run()
        tokens = tokens_W.tolist()[: len(wanted)]  # waits for the device
        is_chosen &= min(tokens, default=0) >= 0
        return Result(logits_WV[: len(wanted)], tokens if is_chosen else None)

    def _shape(self, bucket: Bucket, draws: bool) -> _Shape:
        shape = self._shapes.pop((bucket, draws), None)
        if shape is None:
            if len(self._shapes) == MAX_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            self.num_shapes += 1
            shape = self._make(bucket, draws)
        self._shapes[bucket, draws] = shape  # the last one used is the last
        return shape

    def _make(self, bucket: Bucket, draws: bool, *, is_kept: bool = True) -> _Shape:
        """Reserve the arrays of a bucket; if it is kept, capture a pass of padding alone."""
        num_numbers = PagedBatch.num_numbers(bucket)
        host_numbers = torch.empty(num_numbers, dtype=torch.int32, pin_memory=self._is_cuda)
        host = PagedBatch.of_numbers(bucket, self._pool.page_size, host_numbers)
        host.fill([])
        numbers = host_numbers.to(self.device, copy=True)
        batch = PagedBatch.of_numbers(bucket, self._pool.page_size, numbers)
        size = (NUM_LINES, bucket.num_wanted)
        host_settings = torch.zeros(size, dtype=torch.float64, pin_memory=self._is_cuda)
        settings = host_settings.to(self.device, copy=True)

        def forward() -> tuple[Tensor, Tensor]:
            place_entries(batch, self._entries)
            tokens, positions = batch.rows[: RowIndex.POSITION + 1].long()
            run = PagedPass(batch, self._pool, self._entries, self._attend)
            logits_WV = self._logits(tokens, positions, batch.wanted.long(), run).float()
            return logits_WV, choose_rows(logits_WV, settings, self._masks, draws=draws)

        def forward_into_place() -> tuple[Tensor, Tensor]:
            logits_WV, tokens_W = forward()
            span = slice(bucket.num_wanted)
            return self._out_WV[span].copy_(logits_WV), self._tokens_W[span].copy_(tokens_W)

        run = forward
        if is_kept and self._graphs is not None:
            run = self._graphs(forward_into_place)
        return _Shape(host, host_numbers, numbers, host_settings, settings, run)

    def _rows(self, part: PassPart) -> RequestRows:
        """Return the rows of a request; what the device lacks of its entries is copied."""
        first, stop, run = part.slice.first_slot, part.slice.num_entries, part.slice.run
        known = self._copied.get(id(part.entries))
        if known is None or known.run is not run or known.first_page != run.first_page:
            known = self._copied[id(part.entries)] = _Copied(run, run.first_page, 0)
        if known.num_entries < first:
            start = run.first_page * self._pool.page_size
            lines = part.tensors.owners_and_positions(known.num_entries, first)
            self._entries[:, start + known.num_entries : start + first] = lines
        pages = range(run.first_page, run.first_page + self._pool.pages_for(stop))
        fed = part.entries.items[first:stop]
        return RequestRows(fed, first, pages, part.entries.num_owners)


def paged_decoder(
    loaded: LoadedModel, pool: Pool, masks: TokenMasks, logits: LogitsFunction, wanted: bool | None
) -> PagedDecoder | None:
    """Return a decoder of a model; None if passes should run over views of the pool.

    ``wanted`` None stands for: on a GPU with Triton.
    """
    on_gpu = loaded.device.type == "cuda"
    if wanted is False or (wanted is None and not on_gpu) or (on_gpu and not has_triton()):
        return None
    sizes = {"vocab_size": loaded.vocab_size, "num_query_heads": loaded.num_query_heads}
    decoder = PagedDecoder(logits, pool, masks, **sizes)
    try:
        decoder.try_out()
    except torch.OutOfMemoryError:
        raise
    except Exception as exc:  # no C compiler, no Python.h, a GPU that lacks the dtype
        logger.warning("passes run without Triton, and slowly: %s: %s", type(exc).__name__, exc)
        return None
    return decoder
