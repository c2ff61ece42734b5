"""Fork when it pays: how many threads of a response to feed in a pass, from what passes cost.

What a pass of T rows costs is measured once for each model and machine, and kept in a file. From
it, the promised lengths and the load follows whether blocks decoded side by side or one after the
other, in reading order, cost all responses less. Only the schedule differs, never a token.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from statistics import median

import torch

from pasta_lm.engines.cpu import library
from pasta_lm.engines.local.batch import Batch, EntryTensors, join_slices
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.pool import Pool, Run
from pasta_lm.engines.local.runner import Runner
from pasta_lm.interpreter.entries import Entries, Entry
from pasta_lm.interpreter.positions import Epoch
from pasta_lm.interpreter.visibility import Row
from pasta_lm.models.cache_folder import remembered

ROWS = (1, 2, 4, 8, 16, 32, 64)
NUM_CONTEXT = 64
NUM_ROUNDS = 3
CLEAR_GAIN = 0.97  # blocks wait only where that costs clearly less: the measurement has noise

COSTS_FILE = "step-costs.json"  # in the cache folder


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Milliseconds of a pass by its rows."""

    step_ms: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, step_ms: Sequence[tuple[int, float]]) -> StepCosts:
        """Return costs from measured ones: more rows never cost less."""
        ordered = sorted(step_ms)
        costs = accumulate((cost for _, cost in ordered), max)
        return cls(tuple(zip((rows for rows, _ in ordered), costs, strict=True)))

    def __call__(self, rows: float) -> float:
        """Return the milliseconds of a pass; between and beyond the measured rows on a line."""
        first = self.step_ms[0]
        if rows <= first[0] or len(self.step_ms) == 1:
            return first[1] if rows else 0.0
        pairs = list(pairwise(self.step_ms))
        (low, cost), (high, more) = next((p for p in pairs if rows <= p[1][0]), pairs[-1])
        return cost + (more - cost) * (rows - low) / (high - low)


def best_width(
    costs: StepCosts, lengths: Sequence[int], *, other_rows: int, num_responses: int
) -> int:
    """Return how many threads of a response to feed in a pass.

    With w of them it needs as many passes as the longest thread has tokens, or all threads
    together divided by w, and feeds all tokens in them, whatever w is. Each pass takes its own
    time, and from every other response what these rows add to the time of theirs.

    Args:
        costs: What passes cost.
        lengths: Tokens that each of its threads is going to decode, as promised.
        other_rows: Rows of the other responses.
        num_responses: The responses that decode, this one included.
    """

    def cost(width: int) -> float:
        num_passes = max(max(lengths), ceil(sum(lengths) / width))
        own = costs(other_rows + sum(lengths) / num_passes)
        return num_passes * (own + (num_responses - 1) * (own - costs(other_rows)))

    most = len(lengths)
    best = min(range(1, most + 1), key=cost, default=most)
    return best if most and cost(best) < CLEAR_GAIN * cost(most) else most


def step_costs(loaded: LoadedModel) -> StepCosts:
    """Return what passes of a model cost on this machine: measured at the first call, then read."""
    costs = remembered(COSTS_FILE, _key(loaded), lambda: _as_json(measure(loaded)))
    return StepCosts.of([(int(rows), cost) for rows, cost in costs.items()])


def _as_json(costs: StepCosts) -> dict[str, float]:
    return {str(rows): cost for rows, cost in costs.step_ms}


def _key(loaded: LoadedModel) -> str:
    device = loaded.device
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    size = sum(parameter.numel() for parameter in loaded.model.parameters())
    threads, cores = torch.get_num_threads(), os.cpu_count()
    versions = torch.__version__, library.version()
    facts = (loaded.name, size, loaded.dtype_name, device.type, chip, threads, cores, *versions)
    return " ".join(map(str, facts))


def measure(loaded: LoadedModel, rows: Sequence[int] = ROWS) -> StepCosts:
    """Time passes of some rows that share a context; rounds over all of them take turns."""
    pool = Pool(
        loaded.layer_shapes, NUM_CONTEXT + max(rows), dtype=loaded.dtype, device=loaded.device
    )
    runner = Runner(loaded.model, pool, loaded.fast_logits)
    run = pool.allocate(pool.num_slots)
    batches = {count: _batch(count, run, loaded.device) for count in rows}
    spent: dict[int, list[float]] = {count: [] for count in rows}
    for index in range(NUM_ROUNDS + 1):
        for count, batch in batches.items():
            began = time.perf_counter()
            runner.run(batch)[0, 0].item()  # waits for the device
            if index:  # the first round allocates and compiles
                spent[count].append(1000 * (time.perf_counter() - began))
    return StepCosts.of([(count, median(times)) for count, times in spent.items()])


def _batch(num_rows: int, run: Run, device: torch.device) -> Batch:
    """Return a pass that feeds one token of each thread behind a common prompt."""
    entries, epoch = Entries.of_prompt([0] * NUM_CONTEXT), Epoch()
    for _ in range(num_rows):
        row = Row.of_main(entries.new_owner())
        owner = max(row.cutoffs)
        entries.append(Entry(0, owner, NUM_CONTEXT, row, epoch))
    part = EntryTensors(entries, device).slice(0, NUM_CONTEXT, NUM_CONTEXT + num_rows, run)
    return join_slices([(entries, part)], range(num_rows), device)
