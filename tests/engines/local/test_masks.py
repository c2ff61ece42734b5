from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.engines.passes.attention import (
    LayerCall,
    additive,
    attend,
    attend_causal,
    cutoff_table,
    in_window,
    visible,
)
from pasta_lm.engines.passes.pool import LayerShape, Pool, Run
from pasta_lm.engines.passes.runner import CachedPass, EntryTensors, RequestSpan, join_slices
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.visibility import UNBOUNDED, Row
from tests.fakes.word_decoder import WordDecoder
from tests.reference import is_visible

CPU = torch.device("cpu")
NUM_OWNERS = 5


def tensor(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def drawn(mask: torch.Tensor) -> list[str]:
    return ["".join(".x"[seen] for seen in row) for row in mask.tolist()]


cutoffs = st.one_of(st.integers(0, 12), st.just(UNBOUNDED))
rows = st.dictionaries(st.integers(0, NUM_OWNERS - 1), cutoffs).map(Row)


@given(st.lists(st.tuples(rows, st.integers(0, 11)), min_size=1, max_size=6), st.data())
def test_the_table_over_tensors_says_what_the_rule_says(
    queries: list[tuple[Row, int]], data: st.DataObject
) -> None:
    owner = st.integers(0, NUM_OWNERS - 1)
    owners = data.draw(st.lists(owner, min_size=12, max_size=12))
    table = cutoff_table([row for row, _ in queries], NUM_OWNERS, CPU)
    found = visible(tensor([slot for _, slot in queries]), table, tensor(owners))
    assert found.tolist() == [
        [row.sees(query_slot=slot, entry_slot=k, entry_owner=o) for k, o in enumerate(owners)]
        for row, slot in queries
    ]


def test_a_window_is_by_position_and_reaches_forward() -> None:
    near = in_window(tensor([10, 20]), tensor([2, 3, 10, 18, 40]), 8)
    assert drawn(near) == [".xxxx", "...xx"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_hidden_gets_no_weight_and_no_nan(dtype: torch.dtype) -> None:
    mask = additive(torch.tensor([[True, False], [False, False]]), dtype)
    assert mask.dtype == dtype
    assert torch.isfinite(mask).all()
    weights = torch.softmax(torch.tensor([[-50.0, 50.0], [1.0, 1.0]], dtype=dtype) + mask, -1)
    assert weights.tolist() == [[1.0, 0.0], [0.5, 0.5]]


ANSWERS = [
    ("A <p t >1 B <p u >2 C | D <p v >1 E", ["a b c", "d", "e f"]),
    ("<p t >1 <p u >1 | |", ["", "a b c d e f g h"]),
    ("A B C", []),
]


def passes_of(run: WordDecoder) -> list[tuple[int, int]]:
    """Return the slots of each pass, the prefill first."""
    stops = [run.num_prompt]
    for step in range(1, run.num_passes + 1):
        stops.append(stops[-1] + sum(fed.step == step for fed in run.fed))
    return list(zip([0, *stops], stops, strict=False))


@pytest.mark.parametrize("strategy", PositionStrategy)
@pytest.mark.parametrize("answer", ANSWERS)
def test_every_pass_sees_the_rows_and_the_positions_of_its_queries(
    answer: tuple[str, list[str]], strategy: PositionStrategy
) -> None:
    run = WordDecoder(*answer, strategy=strategy).run()
    entries, tensors = run.entries, EntryTensors(run.entries, CPU)
    for first, stop in passes_of(run):
        part = tensors.slice(RequestSpan(0, first, stop, Run(0, 1)))
        queries = range(first, stop)
        seen = part.visible_QK
        if seen is None:
            seen = torch.ones(stop - first, stop, dtype=torch.bool)
        assert seen.tolist() == [[is_visible(entries, q, k) for k in range(stop)] for q in queries]
        positions = [entry.position for entry in entries.items[:stop]]
        assert part.key_positions.tolist() == positions
        for query in queries:
            seen_at = [positions[k] for k in range(stop) if is_visible(entries, query, k)]
            assert part.largest_distance >= positions[query] - min(seen_at)


PLAIN = LayerCall(0, None, None, None, None)


@pytest.mark.parametrize("num_keys", [9, 30])
def test_the_last_tokens_of_a_prompt_attend_as_with_a_mask(num_keys: int) -> None:
    q, k, v = (torch.randn(heads, num, 8) for heads, num in ((4, 9), (2, num_keys), (2, num_keys)))
    mask = additive(torch.ones(9, num_keys).bool().tril(num_keys - 9), torch.float32)
    k_4, v_4 = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    expected = attend(PLAIN, q, k, v, mask)
    torch.testing.assert_close(attend_causal(PLAIN, q, k_4, v_4), expected)


@pytest.mark.parametrize("window", [None, 64, 900])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_a_gpus_prompts_store_no_scores_of_all_their_tokens(
    window: int | None, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, largest = list[tuple[bool, bool]](), list[int]()
    fused, softmax = torch.nn.functional.scaled_dot_product_attention, torch.softmax

    def attention(*args: object, enable_gqa: bool = False, **kwargs: object) -> torch.Tensor:
        calls.append((len(args) > 3 and isinstance(args[3], torch.Tensor), enable_gqa))
        return fused(*args, enable_gqa=enable_gqa, **kwargs)  # type: ignore[arg-type]

    def weights(scores: torch.Tensor, dim: int, **kwargs: None) -> torch.Tensor:
        if scores.dim() == 3:  # ours: fused attention has a batch
            largest.append(scores.shape[1])
        return softmax(scores, dim, **kwargs)

    noted = SimpleNamespace(scaled_dot_product_attention=attention)
    monkeypatch.setattr("pasta_lm.engines.passes.attention.F", noted)
    monkeypatch.setattr(torch, "softmax", weights)
    place, entries = torch.device("meta"), Entries.of_prompt([1] * 600)
    pool = Pool([LayerShape(2, 8, 8)], 640, dtype=torch.float32, device=place)
    tensors, run = EntryTensors(entries, place), pool.allocate(600)
    for first, stop in ((0, 300), (300, 600)):
        part = tensors.slice(RequestSpan(0, first, stop, run))
        batch = join_slices([(entries, part)], [], place)
        q, k, v = (torch.empty(heads, 300, 8, device=place) for heads in (8, 2, 2))
        call = LayerCall(0, None, window, softcap, None)
        out = CachedPass(batch, pool).attend(call, q, k, v)
        assert out.shape == (8, 300, 8)
    assert not any(has_mask and is_grouped for has_mask, is_grouped in calls)
    assert max(largest, default=0) <= 256
    if window != 64 and softcap is None:
        assert calls[0] == (False, False), "a whole prompt needs no mask"
