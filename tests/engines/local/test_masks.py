from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.engines.local.attention import additive, cutoff_table, in_window, visible
from pasta_lm.engines.local.batch import EntryTensors
from pasta_lm.engines.local.pool import Run
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.visibility import UNBOUNDED, Row
from tests.fakes.word_decoder import WordDecoder
from tests.visibility import is_visible

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
        part = tensors.slice(0, first, stop, Run(0, 1))
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
