"""One forward pass: its tokens, slots and visibility as data in, logits out.

Prefill, decode, forced tags, a part of a long prompt, ten samples of one prompt, recomputing a
preempted request: all the same case. Linear layers run once over the whole flattened list of
tokens; attention runs per request over its own run of the pool, so a prefix is read once however
many threads share it. Knows nothing of threads, text or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pasta_lm.engines.cpu.attention import CompiledAttention, Heads, Queries, fits
from pasta_lm.engines.passes import attention
from pasta_lm.engines.passes.attention import LayerCall, Pass, attend
from pasta_lm.engines.passes.pool import Pool, Run
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED

# Legend: N tokens of the pass, Q tokens of one request in it, K entries of that request,
# G key/value heads, H query heads, D head size, W rows whose logits are wanted, V vocabulary,
# C columns of queries, keys and values side by side.


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """The part of a pass that belongs to one request."""

    start: int  # the index of its first token in the pass; the others follow in order of slot
    first_slot: int
    num_entries: int  # the request's, those of this pass included
    run: Run

    @property
    def num_rows(self) -> int:
        return self.num_entries - self.first_slot

    @property
    def stop(self) -> int:
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True)
class RequestSlice(RequestSpan):
    """The same with what attention over a view of the pool needs."""

    visible_QK: Tensor | None  # bool [Q, K]; None: a single query that sees everything
    key_positions: Tensor  # int64 [K]
    largest_distance: int  # no query is farther from a key than this, in positions
    is_prompt: bool = False  # on a GPU, whose prompts need no mask: each token sees all before it


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass."""

    tokens: Tensor  # int64 [N]
    positions: Tensor  # int64 [N]
    wanted: Tensor  # int64 [W]: indices of the tokens whose logits are wanted
    slices: tuple[RequestSlice, ...]


class EntryTensors:
    """The owners and positions of a request's entries as tensors, while it keeps its keys."""

    def __init__(self, entries: Entries, device: torch.device) -> None:
        self.entries, self._device = entries, device
        self._lines = torch.empty(2, 64, dtype=torch.int64, device=device)
        self._num = 0
        self._table_key: tuple[int, ...] = ()
        self._table = torch.empty(0)
        self._has_all = False
        self.num_placed = 0  # entries beside the pool's keys
        self.first_page: int | None = None  # their page in the pool; None: there are none

    def owners_and_positions(self, first_slot: int, stop_slot: int) -> Tensor:
        """Return owner and position of entries [first_slot, stop_slot), int32 [2, K]."""
        self._extend(stop_slot)
        return self._lines[:, first_slot:stop_slot].int()

    def slice(self, span: RequestSpan) -> RequestSlice:
        """Return the part of a pass with its mask; its entries are placed already."""
        first_slot, stop_slot = span.first_slot, span.num_entries
        self._extend(stop_slot)
        fed = self.entries.items[first_slot:stop_slot]
        is_prompt = self._device.type != "cpu" and fed[-1].owner == PROMPT_OWNER
        return RequestSlice(
            span.start, first_slot, stop_slot, span.run,
            None if is_prompt else self._visible(first_slot, stop_slot),
            self._lines[1, :stop_slot],
            largest_distance=max(entry.position for entry in fed), is_prompt=is_prompt,
        )  # fmt: skip

    def truncate(self, num_entries: int) -> None:
        self._num, self.num_placed = min(self._num, num_entries), min(self.num_placed, num_entries)

    def _extend(self, stop: int) -> None:
        size = self._lines.shape[1]
        if stop > size:
            self._lines = F.pad(self._lines, (0, max(stop, 2 * size) - size))
        if stop > self._num:
            fresh = self.entries.items[self._num : stop]
            values = torch.tensor([(e.owner, e.position) for e in fresh], device=self._device)
            self._lines[:, self._num : stop] = values.T
            self._num = stop

    def _visible(self, first_slot: int, stop_slot: int) -> Tensor | None:
        rows = [entry.row for entry in self.entries.items[first_slot:stop_slot]]
        num_owners = self.entries.num_owners
        key = (num_owners, *map(id, rows))
        if key != self._table_key:
            self._table_key = key
            self._table = attention.cutoff_table(rows, num_owners, self._device)
            cutoffs = {rows[0].cutoff(owner) for owner in range(PROMPT_OWNER, num_owners)}
            self._has_all = len(rows) == 1 and cutoffs == {UNBOUNDED}
        if self._has_all:
            return None
        slots = torch.arange(first_slot, stop_slot, device=self._device)
        return attention.visible(slots, self._table, self._lines[0, :stop_slot])


def join_slices(
    entries: Sequence[tuple[Entries, RequestSlice]], wanted: Sequence[int], device: torch.device
) -> Batch:
    """Make one pass of the slices of several requests; ``wanted`` are the tokens with logits."""
    fed = [
        (entry.token, entry.position)
        for request, span in entries
        for entry in request.items[span.first_slot : span.num_entries]
    ]
    tokens, positions = torch.tensor(fed, dtype=torch.int64, device=device).T
    wanted_W = torch.tensor(wanted, dtype=torch.int64, device=device)
    return Batch(tokens, positions, wanted_W, tuple(span for _, span in entries))


LogitsFunction = Callable[[Tensor, Tensor, Tensor, Pass], Tensor]
"""From tokens [N], positions [N], wanted rows [W] and a pass to logits [W, V]."""


class KeyRecorder:
    """A pass that attends causally over its own tokens and keeps each layer's keys and values."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        self.keys[call.layer], self.values[call.layer] = k_GND, v_GND
        mask = q_HND.new_full((q_HND.shape[1], q_HND.shape[1]), -1e4).triu(1)
        return attend(call, q_HND, k_GND, v_GND, mask)


class CachedPass:
    """One pass against the pool: write the new keys and values, then attend per request."""

    def __init__(self, batch: Batch, pool: Pool) -> None:
        self._batch, self._pool = batch, pool
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}
        self._compiled: dict[int | None, CompiledAttention] = {}
        self.is_on_cpu = batch.tokens.device.type == "cpu"

    @cached_property
    def _slots_N(self) -> Tensor:
        starts = ((self._pool.start(span.run), span) for span in self._batch.slices)
        slots = [start + i for start, s in starts for i in range(s.first_slot, s.num_entries)]
        return torch.tensor(slots, dtype=torch.int64, device=self._batch.tokens.device)

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        if attention.is_plain(call) and fits(q_HND, k_GND, v_GND, self._pool.keys[call.layer]):
            out = self.attend_compiled(call, Heads.of(q_HND, k_GND, v_GND), None)
            return out.view(len(out), len(q_HND), -1).transpose(0, 1)
        self._pool.write(call.layer, self._slots_N, k_GND, v_GND)
        parts = enumerate(q_HND.split([span.num_rows for span in self._batch.slices], dim=1))
        outs = [self._attend_one(call, index, q_HQD) for index, q_HQD in parts]
        return torch.cat(outs, dim=1) if len(outs) > 1 else outs[0]

    def attend_compiled(
        self, call: LayerCall, heads: Heads, rotation: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Return the compiled form of ``attend``, [N, H * D]; it rotates by cos and sin, if any."""
        num_columns = heads.num_heads * heads.size
        out = torch.empty((len(self._batch.tokens), num_columns), dtype=heads.dtype)
        if rotation is not None:
            rotation = rotation[0].contiguous(), rotation[1].contiguous()
        if call.window not in self._compiled:
            requests = [
                Queries(
                    span.num_rows, span.first_slot, self._pool.start(span.run),
                    self._visible(span, call.window),
                )
                for span in self._batch.slices
            ]  # fmt: skip
            self._compiled[call.window] = CompiledAttention(requests)
        pool = self._pool.keys[call.layer], self._pool.values[call.layer]
        self._compiled[call.window](heads, rotation, pool, call.scaling, out)
        return out

    def _attend_one(self, call: LayerCall, index: int, q_HQD: Tensor) -> Tensor:
        span = self._batch.slices[index]
        keys, values = self._pool.view(call.layer, span.run, span.num_entries)
        is_near = call.window is None or span.largest_distance < call.window
        if span.is_prompt and attention.is_plain(call) and is_near:
            return attention.attend_causal(call, q_HQD, keys, values)
        if (index, call.window) not in self._masks:
            visible = self._visible(span, call.window)
            mask = None if visible is None else attention.additive(visible, q_HQD.dtype)
            self._masks[index, call.window] = mask
        return attend(call, q_HQD, keys, values, self._masks[index, call.window])

    def _visible(self, span: RequestSlice, window: int | None) -> Tensor | None:
        visible = span.visible_QK
        if span.is_prompt:
            visible = torch.ones(span.num_rows, span.num_entries, device=span.key_positions.device)
            visible = visible.bool().tril(span.first_slot)
        # Most passes reach less far back than the window, and need no mask for it.
        if window is not None and span.largest_distance >= window:
            positions_Q = self._batch.positions[span.start : span.stop]
            near = attention.in_window(positions_Q, span.key_positions, window)
            visible = near if visible is None else visible & near
        return visible


@torch.inference_mode()
def run_batch(logits: LogitsFunction, pool: Pool, batch: Batch) -> Tensor:
    """Run one forward pass against a pool; return the logits of wanted rows, float32 [W, V]."""
    return logits(batch.tokens, batch.positions, batch.wanted, CachedPass(batch, pool)).float()


def plain_logits(
    model: nn.Module, tokens_N: Tensor, positions_N: Tensor, wanted_W: Tensor, run: Pass
) -> Tensor:
    out = model(
        input_ids=tokens_N[None], position_ids=positions_N[None], use_cache=False,
        logits_to_keep=wanted_W, pasta_pass=run,
    )  # fmt: skip
    logits: Tensor = out.logits[0]
    return logits
