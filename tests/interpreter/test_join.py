"""Join ``recompute``: at every moment every thread is a plain causal sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.errors import UsageError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.models.encoded import EncodedDocument
from tests.fakes.word_decoder import WORDS, WordDecoder, ids_of
from tests.interpreter.test_properties import answers, bounds
from tests.plain_sequences import plain_sequences, seen_sequence

CONTINUE = PositionStrategy.CONTINUE


def decoded(
    main: str, blocks: list[str], bound: int | None = None, num_prompt: int = 3
) -> WordDecoder:
    limits = Limits(max_threads=bound)
    return WordDecoder(main, blocks, num_prompt, CONTINUE, limits, Join.RECOMPUTE).run()


@given(answers(), bounds, st.integers(1, 5))
def test_every_fed_token_sees_the_plain_sequence_of_the_written_form(
    answer: tuple[str, list[str]], bound: int | None, num_prompt: int
) -> None:
    run = decoded(*answer, bound, num_prompt)
    main, blocks = answer
    written = EncodedDocument(ids_of(main), tuple(map(ids_of, blocks)))
    expected = plain_sequences(WORDS, range(num_prompt), written)
    count: dict[int, int] = {}
    for fed in run.fed:
        index = count[fed.thread] = count.get(fed.thread, -1) + 1
        assert seen_sequence(run.entries, fed.placed.slot) == expected[fed.thread, index]


@given(answers(), bounds)
def test_a_join_feeds_no_token_more_than_twice_and_takes_no_further_pass(
    answer: tuple[str, list[str]], bound: int | None
) -> None:
    run, limits = decoded(*answer, bound), Limits(max_threads=bound)
    shared = WordDecoder(*answer, strategy=CONTINUE, limits=limits).run()
    found, expected = run.response.trace, shared.response.trace
    assert len(run.entries) == len(shared.entries) + found.num_recomputed
    assert found.num_recomputed <= len(shared.entries) - run.num_prompt
    assert (found.critical_path, found.forward_passes) == (
        expected.critical_path,
        expected.forward_passes,
    )
    assert run.interpreter.document() == shared.interpreter.document()


@pytest.mark.parametrize(
    ("main", "blocks", "fed_again"),
    [
        ("A <p t >1 | C", ["a b"], ""),  # the first block ends a plain sequence
        ("A <p t >1 B | C", ["a b"], "B"),
        ("A <p t >1 B <p u >1 | C", ["a b", "c"], "B <p u >1 <async> c </async>"),
        ("<p t >1 | B <p u >1 D | E", ["a", "b"], "D"),  # what the first sync read stays
        ("<p t >1 B | C", [""], "B"),
        ("A <p t >1 B", ["a"], ""),  # no sync
        ("A | B", [], ""),
    ],
)
def test_only_what_stands_behind_the_first_block_is_fed_again(
    main: str, blocks: list[str], fed_again: str
) -> None:
    run = decoded(main, blocks)
    placed = {fed.placed.slot for fed in run.fed}
    again = [slot for slot in range(run.num_prompt, len(run.entries)) if slot not in placed]
    assert tuple(run.entries[slot].token for slot in again) == ids_of(fed_again)
    assert run.response.trace.num_recomputed == len(again)


@pytest.mark.parametrize("strategy", [s for s in PositionStrategy if s is not CONTINUE])
def test_a_join_that_leaves_no_gaps_is_refused_with_positions_that_do(
    strategy: PositionStrategy,
) -> None:
    with pytest.raises(UsageError, match=f"'{strategy.value}' does"):
        WordDecoder("A", strategy=strategy, join=Join.RECOMPUTE)
