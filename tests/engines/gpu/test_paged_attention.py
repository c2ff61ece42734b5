"""Paged attention gives what the rule of visibility says, in torch and in Triton.

Without a GPU the kernels run in Triton's interpreter; on a GPU they
run compiled.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pasta_lm.engines.gpu.attention import LayerMemory, attend_gathered, attend_split, place_entries
from pasta_lm.engines.gpu.batch import PagedBatch, RequestRows, bucket_of
from pasta_lm.engines.passes.attention import LayerCall
from pasta_lm.interpreter.placement import Entry
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED, Row
from tests.triton_kernels import DEVICE, needs_kernels

pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
PAGE, NUM_PAGES = 4, 40
Attend = Callable[..., Tensor]

attends = pytest.mark.parametrize(
    "attend",
    [attend_gathered, pytest.param(attend_split, marks=needs_kernels)],
    ids=["torch", "triton"],
)


class Drawn:
    """Requests with random entries, rows and pages; the last entries of each are fed."""

    def __init__(self, rng: random.Random, num_requests: int, max_fed: int) -> None:
        pages = rng.sample(range(NUM_PAGES), NUM_PAGES)  # of no order
        self.entries: list[list[Entry]] = []
        self.rows: list[RequestRows] = []
        for _ in range(num_requests):
            num_fed = rng.randint(1, max_fed)
            entries = random_entries(rng, num_fed + rng.randint(0, 20))
            taken = [pages.pop() for _ in range(-(-len(entries) // PAGE))]
            first = len(entries) - num_fed
            self.entries.append(entries)
            self.rows.append(RequestRows(entries[first:], first, taken, 5))

    def place(self, request: int, slot: int) -> int:
        return self.rows[request].pages[slot // PAGE] * PAGE + slot % PAGE


def random_entries(rng: random.Random, count: int) -> list[Entry]:
    found = []
    for slot in range(count):
        owner = rng.randrange(5) if slot else PROMPT_OWNER
        cutoffs = {o: rng.choice([0, rng.randint(0, count), UNBOUNDED]) for o in range(5)}
        cutoffs[owner] = UNBOUNDED  # every token sees itself
        found.append(Entry(slot, owner, rng.randint(0, 30), Row(cutoffs)))
    return found


def expected_row(
    call: LayerCall, drawn: Drawn, request: int, slot: int, q_HD: Tensor, memory: LayerMemory
) -> Tensor:
    """Return the attention of one entry by the definition, float64 [H, V]."""
    entries = drawn.entries[request]
    query = entries[slot]
    seen = [
        s
        for s, key in enumerate(entries)
        if query.row.sees(query_slot=slot, entry_slot=s, entry_owner=key.owner)
        and (call.window is None or query.position - key.position < call.window)
    ]
    places = [drawn.place(request, s) for s in seen]
    keys, values = memory.keys_GSD[:, places].double(), memory.values_GSV[:, places].double()
    group = len(q_HD) // len(keys)
    lines = []
    for head, q_D in enumerate(q_HD.double()):
        scale = call.scaling if call.scaling is not None else 1 / math.sqrt(len(q_D))
        scores = keys[head // group] @ q_D * scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        if call.sinks_H is not None:
            scores = torch.cat((scores, call.sinks_H[head : head + 1].double()))
        weights = scores.softmax(0)[: len(places)]
        lines.append(weights @ values[head // group])
    return torch.stack(lines)


def check(
    attend: Attend, drawn: Drawn, call: LayerCall, heads: tuple[int, int], sizes: tuple[int, int],
    dtype: torch.dtype = torch.float32, tolerance: float = 2e-5,
) -> None:  # fmt: skip
    num_heads, num_key_heads = heads
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    bucket = bucket_of([one.size for one in drawn.rows], num_heads // num_key_heads)
    batch = PagedBatch.of(drawn.rows, bucket, PAGE).to(DEVICE)
    memory = LayerMemory(
        normal(num_key_heads, NUM_PAGES * PAGE, sizes[0]),
        normal(num_key_heads, NUM_PAGES * PAGE, sizes[1]),
        # As a request that has ended left them: more owners than these have.
        torch.full((2, NUM_PAGES * PAGE), 99, dtype=torch.int32, device=DEVICE),
        batch,
    )
    for request, entries in enumerate(drawn.entries):
        for slot, entry in enumerate(entries[: drawn.rows[request].first_slot]):
            place = drawn.place(request, slot)
            memory.entries[:, place] = torch.tensor([entry.owner, entry.position])
    q = normal(bucket.num_rows, num_heads, sizes[0]).transpose(0, 1)
    k = normal(bucket.num_rows, num_key_heads, sizes[0]).transpose(0, 1)
    v = normal(bucket.num_rows, num_key_heads, sizes[1]).transpose(0, 1)
    before = memory.keys_GSD.clone()
    place_entries(batch, memory.entries)
    found = attend(call, q, k, v, memory)
    row, touched = 0, set()
    for request, one in enumerate(drawn.rows):
        for slot in range(one.first_slot, one.first_slot + len(one.fed)):
            touched.add(drawn.place(request, slot))
            assert torch.equal(memory.keys_GSD[:, drawn.place(request, slot)], k[:, row])
            expected = expected_row(call, drawn, request, slot, q[:, row], memory)
            difference = (found[:, row].double() - expected).abs().max()
            assert difference <= tolerance
            row += 1
    assert not found[:, row:].any(), "padding attends to something"
    others = [place for place in range(NUM_PAGES * PAGE) if place not in touched]
    assert torch.equal(before[:, others], memory.keys_GSD[:, others]), "padding was written"


@attends
@given(
    seed=st.integers(0, 10**6),
    num_requests=st.integers(1, 3),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1), (4, 1)]),
    sizes=st.sampled_from([(8, 8), (16, 16), (20, 12)]),
    window=st.sampled_from([None, 6]),
    softcap=st.sampled_from([None, 3.0]),
    has_sinks=st.booleans(),
    scaling=st.sampled_from([None, 0.4]),
)
@settings(max_examples=8, phases=[Phase.explicit, Phase.generate])  # the interpreter is slow
def test_every_row_attends_to_what_it_may_see(
    attend: Attend, seed: int, num_requests: int, heads: tuple[int, int], sizes: tuple[int, int],
    window: int | None, softcap: float | None, has_sinks: bool, scaling: float | None,
) -> None:  # fmt: skip
    sinks = torch.randn(heads[0], generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    call = LayerCall(0, scaling, window, softcap, sinks if has_sinks else None)
    check(attend, Drawn(random.Random(seed), num_requests, 5), call, heads, sizes)


PLAIN = LayerCall(0, None, None, None, None)


@needs_kernels
@pytest.mark.parametrize("num_splits", [1, 2, 8, 16])
def test_the_number_of_parts_changes_nothing(num_splits: int) -> None:
    def attend(*args: object) -> Tensor:
        return attend_split(*args, splits=num_splits)  # type: ignore[arg-type]

    for seed in range(3):
        check(attend, Drawn(random.Random(seed), 2, 3), PLAIN, (4, 2), (16, 16))


@attends
def test_many_rows_of_one_request_are_several_blocks(attend: Attend) -> None:
    drawn = Drawn(random.Random(5), 2, 40)
    assert max(len(one.fed) for one in drawn.rows) > 16
    check(attend, drawn, PLAIN, (8, 2), (16, 16))


@attends
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_halves_are_as_exact_as_they_can_be(
    attend: Attend, dtype: torch.dtype, tolerance: float
) -> None:
    if attend is attend_split and dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("the interpreter multiplies the bits of bfloat16")
    for seed in range(2):
        drawn = Drawn(random.Random(seed), 2, 4)
        check(attend, drawn, PLAIN, (4, 2), (16, 16), dtype, tolerance)
