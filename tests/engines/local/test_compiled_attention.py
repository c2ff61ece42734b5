"""Compiled attention is that of the definition, for any queries, and writes keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from pasta_lm.engines.capture.patterns import sign_sin, split_heads
from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.attention import CompiledAttention, Heads, Queries, fits
from pasta_lm.engines.passes.attention import LayerCall, additive, attend
from tests.architectures import loaded

pytestmark = pytest.mark.skipif(library.functions() is None, reason="no C compiler")
DTYPES = [torch.float32, torch.bfloat16]
CALL = LayerCall(layer=0, scaling=None, window=None, softcap=None, sinks_H=None)
FIRST = 16  # slot of the pool at which the request begins
NUM_SLOTS = 600

# Legend: N tokens of the pass, Q those of the request, K its entries, G key/value heads, H query
# heads, D head size, S slots of the pool.


class Drawn:
    """Random keys and values in a pool, and new queries, keys and values."""

    def __init__(
        self, num_queries: int, num_entries: int, heads: Sequence[int], dtype: torch.dtype
    ) -> None:
        self.generator = torch.Generator().manual_seed(num_entries)
        num_heads, groups, size = heads
        self.num_before, self.num_entries = num_entries - num_queries, num_entries
        self.pool = [self.random(1, groups, NUM_SLOTS, size).to(dtype) for _ in range(2)]
        self.q, self.k, self.v = (
            self.random(each, num_queries, size).to(dtype) for each in (num_heads, groups, groups)
        )
        visible = torch.rand(num_queries, num_entries, generator=self.generator) < 0.4
        new = torch.arange(num_queries)
        visible[new, self.num_before + new] = True
        self.visible_QK = visible

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def expected(self, visible_QK: Tensor) -> Tensor:
        """The definition in float64, [H, Q, D]."""
        entries = []
        for memory, new in zip(self.pool, (self.k, self.v), strict=True):
            before = memory[0, :, FIRST : FIRST + self.num_before]
            entries.append(torch.cat((before, new), dim=1).double())
        return attend(CALL, self.q.double(), *entries, additive(visible_QK, torch.float64))

    def found(self, visible_QK: Tensor | None, *, first_row: int = 0) -> Tensor:
        """What the compiled function writes, [H, Q, D]; its rows begin at ``first_row``."""
        new = (self.q, self.k, self.v)
        tensors = [torch.nn.functional.pad(x, (0, 0, first_row, 0), value=7.0) for x in new]
        num_heads, num_queries, size = self.q.shape
        out = torch.empty(first_row + num_queries, num_heads * size, dtype=self.q.dtype)
        queries = Queries(num_queries, self.num_before, FIRST, visible_QK)
        run = CompiledAttention([queries], first_row)
        run(Heads.of(*tensors), None, tuple(memory[0] for memory in self.pool), None, out)
        return out[first_row:].view(num_queries, num_heads, size).transpose(0, 1)


SHAPES = [(9, 3, 64), (14, 2, 64), (4, 4, 32), (8, 1, 128), (1, 1, 96)]


@pytest.mark.parametrize(
    ("num_queries", "num_entries"), [(1, 1), (1, 40), (5, 77), (16, 500), (70, 90)]
)
@pytest.mark.parametrize("heads", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_query_attends_over_what_it_sees(
    dtype: torch.dtype, heads: Sequence[int], num_queries: int, num_entries: int
) -> None:
    drawn = Drawn(num_queries, num_entries, heads, dtype)
    expected = drawn.expected(drawn.visible_QK)
    found = drawn.found(drawn.visible_QK, first_row=2)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_mask_a_query_sees_all_entries_up_to_its_own(dtype: torch.dtype) -> None:
    drawn = Drawn(3, 50, (9, 3, 64), dtype)
    causal = torch.ones(3, 50).tril(diagonal=47).bool()
    expected = drawn.expected(causal)
    assert torch.equal(drawn.found(None), drawn.found(causal))
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(drawn.found(None).double(), expected, atol=tolerance, rtol=tolerance)


def test_new_keys_and_values_are_written_and_nothing_else() -> None:
    drawn = Drawn(4, 30, (9, 3, 64), torch.float32)
    before = [memory.clone() for memory in drawn.pool]
    drawn.found(drawn.visible_QK)
    for memory, old, new in zip(drawn.pool, before, (drawn.k, drawn.v), strict=True):
        first = FIRST + drawn.num_before
        assert torch.equal(memory[0, :, first : first + 4], new)
        memory[0, :, first : first + 4] = old[0, :, first : first + 4]
        assert torch.equal(memory, old)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_has_the_same_bits_alone_and_among_others(dtype: torch.dtype) -> None:
    drawn = Drawn(6, 90, (9, 3, 64), dtype)
    together = drawn.found(drawn.visible_QK)
    for query in range(6):
        alone = Drawn(6, 90, (9, 3, 64), dtype)
        alone.pool, alone.num_before = drawn.pool, drawn.num_before + query
        alone.q, alone.k, alone.v = (
            each[:, query : query + 1].contiguous() for each in (drawn.q, drawn.k, drawn.v)
        )
        found = alone.found(drawn.visible_QK[query : query + 1])
        assert torch.equal(found[:, 0], together[:, query])


def test_tensors_that_the_function_would_misread_are_left_to_torch() -> None:
    x, wide = torch.zeros(2, 3, 32), torch.zeros(2, 3, 64)
    assert fits(x, x, x, x)
    for other in (x.double(), x.bfloat16(), wide, wide[..., ::2]):
        assert not any(fits(*(x,) * n, other, *(x,) * (3 - n)) for n in range(4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_is_that_of_the_traced_pass(dtype: torch.dtype) -> None:
    num_tokens, (num_heads, groups, size) = 3, (9, 3, 64)
    generator = torch.Generator().manual_seed(1)
    joined = torch.randn(1, num_tokens, (num_heads + 2 * groups) * size, generator=generator)
    joined = joined.to(dtype)
    angles = torch.randn(1, 1, num_tokens, size, generator=generator)
    rotation = angles.cos().to(dtype), sign_sin(angles.sin().to(dtype))
    shape = (0, num_heads * size, (num_heads + groups) * size, num_heads, groups, size)
    pools = [torch.zeros(groups, 32, size, dtype=dtype) for _ in range(4)]
    run = CompiledAttention([Queries(num_tokens, 0, 0, None)])
    outs = [torch.empty(num_tokens, num_heads * size, dtype=dtype) for _ in range(2)]
    q, k, v = split_heads(joined, rotation, *shape)
    run(Heads.of(q, k, v), None, tuple(pools[:2]), None, outs[0])
    heads = Heads.joined(joined[0], *shape)
    run(heads, rotation, tuple(pools[2:]), None, outs[1])
    assert torch.equal(pools[1], pools[3])
    tolerance = 1e-6 if dtype == torch.float32 else 2**-7  # an ulp where torch fuses, or does not
    torch.testing.assert_close(pools[0], pools[2], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(outs[0], outs[1], atol=4 * tolerance, rtol=4 * tolerance)


@pytest.mark.parametrize(("name", "is_joined"), [("wide_llama", True), ("llama", False)])
def test_attention_of_a_llama_reads_what_one_product_computes(name: str, is_joined: bool) -> None:
    captured = loaded(name).fast_logits
    assert captured is not None
    shapes = [node.args[3:] for node in captured.graph.graph.nodes if "joined" in node.name]
    assert (len(shapes) == 3) == is_joined, "a head of 16 is no multiple of 32"


@pytest.mark.parametrize("dtype", DTYPES)
def test_requests_of_one_pass_have_the_bits_that_each_has_alone(dtype: torch.dtype) -> None:
    drawn = [Drawn(queries, entries, (9, 3, 64), dtype) for queries, entries in ((3, 40), (1, 70))]
    origins, num_slots, size = (0, 48), 128, 64
    pool = [torch.zeros(3, num_slots, size, dtype=dtype) for _ in range(2)]
    for one, origin in zip(drawn, origins, strict=True):
        for memory, own in zip(pool, one.pool, strict=True):
            span = slice(FIRST, FIRST + one.num_before)
            memory[:, origin : origin + one.num_before] = own[0, :, span]
    requests = [
        Queries(one.q.shape[1], one.num_before, origin, one.visible_QK)
        for one, origin in zip(drawn, origins, strict=True)
    ]
    tensors = [
        torch.cat(parts, dim=1) for parts in zip(*((o.q, o.k, o.v) for o in drawn), strict=True)
    ]
    out = torch.empty(4, 9 * size, dtype=dtype)
    CompiledAttention(requests)(Heads.of(*tensors), None, tuple(pool), None, out)
    alone = torch.cat([one.found(one.visible_QK) for one in drawn], dim=1)
    assert torch.equal(out.view(4, 9, size).transpose(0, 1), alone)
