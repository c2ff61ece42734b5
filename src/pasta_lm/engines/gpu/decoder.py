"""Run passes with paged attention: small ones in buckets of fixed shape, captured; large ones not.

A pass travels to the device as one array of whole numbers and one of settings, and comes back as
token ids. Owners and positions of all entries lie on the device beside the pool; those missing
there, because a run moved or another path computed them, are copied before a pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
from pasta_lm.engines.local.runner import LogitsFunction, plain_logits
from pasta_lm.engines.local.sampling import Choice, TokenMasks
from pasta_lm.interpreter.placement import Entries

MAX_COPIED = 1024  # requests of which the device's knowledge is remembered
NUM_WARMUPS = 2  # runs before a capture: kernels are compiled, libraries take their workspace
MAX_BUCKET_ROWS = 256  # larger passes compute prompts: they run as they are, uncaptured

logger = logging.getLogger(__name__)

# Legend: N rows of a bucket, W wanted rows, V vocabulary.


Function = Callable[[], tuple[Tensor, Tensor]]
"""Returns logits [N, V] and tokens [N], valid until it runs again, of tensors that stay."""


class CudaGraphs:
    """Captures functions as CUDA graphs that share one pool of memory.

    A graph launches all its kernels at once, so that the host's time for a pass no longer depends
    on the number of its operations.
    """

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self.failure: Exception | None = None  # the last reason why a function runs uncaptured

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

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return outputs

        return replay


class PassPart(NamedTuple):
    """The part of a pass that belongs to one request."""

    entries: Entries
    tensors: EntryTensors
    slice: RequestSlice


class Result(NamedTuple):
    """What a pass gives; valid until the next one."""

    logits_NV: Tensor  # float32
    rows: Sequence[int] | None  # those that are wanted; None: all
    tokens: list[int] | None  # of the wanted rows; None: the choices need more than a pass can hold

    @property
    def logits_WV(self) -> Tensor:
        """Return the logits of the wanted rows."""
        return self.logits_NV if self.rows is None else self.logits_NV[list(self.rows)]


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
        self.device = pool.keys[0].device
        self._is_cuda = self.device.type == "cuda"
        self._group = max(num_query_heads // len(keys) for keys in pool.keys)
        self._masks = MaskTable(masks, vocab_size, self.device)
        self._entries = torch.zeros(2, pool.num_slots, dtype=torch.int32, device=self.device)
        self._attend: Attend = attend_split if self._is_cuda else attend_gathered
        self._graphs = CudaGraphs() if self._is_cuda else None
        self._copied: dict[int, _Copied] = {}
        self._shapes: dict[tuple[Bucket, bool], _Shape] = {}

    @property
    def buckets(self) -> list[Bucket]:
        """Return the buckets that have been used so far."""
        return [bucket for bucket, _ in self._shapes]

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
        requests = [self._rows(part) for part in parts]
        num_rows = sum(len(request.fed) for request in requests)
        with torch.inference_mode():
            if num_rows > MAX_BUCKET_ROWS:
                result = Result(self._run_large(requests, num_rows, wanted), None, None)
            else:
                result = self._run_small(requests, wanted, choices)
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
        with torch.inference_mode():
            for rows in counts:
                for pages in {1, *(MIN_PAGES * 4**power + 1 for power in range(6)), num_pages}:
                    size = RequestSize(rows, min(pages, num_pages), MIN_OWNERS)
                    self._shape(bucket_of([size], self._group), draws=False)

    def _run_small(
        self, requests: Sequence[RequestRows], wanted: Sequence[int], choices: Sequence[Choice]
    ) -> Result:
        draws = any(choice.params.temperature > 0 for choice in choices)
        shape = self._shape(bucket_of([request.size for request in requests], self._group), draws)
        shape.host.fill(requests)
        is_chosen = settings_of(choices, wanted, self._masks, shape.host_settings)
        shape.numbers.copy_(shape.host_numbers, non_blocking=True)
        shape.settings.copy_(shape.host_settings, non_blocking=True)
        logits_NV, tokens_N = shape.run()
        ids = tokens_N.tolist()  # waits for the device
        chosen = [ids[row] for row in wanted] if is_chosen else None
        return Result(logits_NV, wanted, chosen)

    def _run_large(
        self, requests: Sequence[RequestRows], num_rows: int, wanted: Sequence[int]
    ) -> Tensor:
        sizes = [request.size for request in requests]
        bucket = bucket_of(sizes, self._group)._replace(num_rows=num_rows)
        batch = PagedBatch.of(requests, bucket, self._pool.page_size).to(self.device)
        return self._forward(batch, torch.tensor(list(wanted), device=self.device))

    def _forward(self, batch: PagedBatch, wanted_W: Tensor) -> Tensor:
        place_entries(batch, self._entries)
        tokens, positions = batch.rows[: RowIndex.POSITION + 1].long()
        run = PagedPass(batch, self._pool, self._entries, self._attend)
        return self._logits(tokens, positions, wanted_W, run).float()

    def _shape(self, bucket: Bucket, draws: bool) -> _Shape:
        if (bucket, draws) not in self._shapes:
            self._shapes[bucket, draws] = self._make(bucket, draws)
        return self._shapes[bucket, draws]

    def _make(self, bucket: Bucket, draws: bool) -> _Shape:
        """Reserve the arrays of a bucket, and capture a pass of padding alone."""
        num_numbers = PagedBatch.num_numbers(bucket)
        host_numbers = torch.empty(num_numbers, dtype=torch.int32, pin_memory=self._is_cuda)
        host = PagedBatch.of_numbers(bucket, self._pool.page_size, host_numbers)
        host.fill([])
        numbers = host_numbers.to(self.device, copy=True)
        batch = PagedBatch.of_numbers(bucket, self._pool.page_size, numbers)
        size = (NUM_LINES, bucket.num_rows)
        host_settings = torch.zeros(size, dtype=torch.float64, pin_memory=self._is_cuda)
        settings = host_settings.to(self.device, copy=True)
        all_rows = torch.arange(bucket.num_rows, device=self.device)

        def forward() -> tuple[Tensor, Tensor]:
            logits_NV = self._forward(batch, all_rows)
            table_MV = self._masks.table_MV
            return logits_NV, choose_rows(logits_NV, settings, table_MV, draws=draws)

        run = forward if self._graphs is None else self._graphs(forward)
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
    loaded: LoadedModel,
    pool: Pool,
    masks: TokenMasks,
    fast_logits: LogitsFunction | None,
    wanted: bool | None,
) -> PagedDecoder | None:
    """Return a decoder of a model; None if passes should run over views of the pool.

    ``wanted`` None stands for: on a GPU with Triton.
    """
    on_gpu = loaded.device.type == "cuda"
    if wanted is False or (wanted is None and not on_gpu) or (on_gpu and not has_triton()):
        return None
    logits = fast_logits or partial(plain_logits, loaded.model)
    num_heads = loaded.model.config.get_text_config().num_attention_heads
    return PagedDecoder(
        logits, pool, masks, vocab_size=loaded.vocab_size, num_query_heads=num_heads
    )
