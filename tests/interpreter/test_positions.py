from __future__ import annotations

import pytest

from pasta_lm.interpreter import PositionStrategy
from pasta_lm.interpreter.positions import (
    Epoch,
    key_position,
    position_after_promise,
    position_of_sync,
)
from tests.fakes.word_decoder import WordDecoder
from tests.visibility import position_seen

PREDICT, CONTINUE, ORACLE, ROTATE = PositionStrategy


@pytest.mark.parametrize(
    ("strategy", "next_main"),
    [(PREDICT, 7 + 30 + 1), (CONTINUE, 7 + 1), (ORACLE, 7 + 12 + 1), (ROTATE, 7 + 30 + 1)],
)
def test_main_goes_on_behind_the_gap_that_its_promise_left(
    strategy: PositionStrategy, next_main: int
) -> None:
    assert position_after_promise(strategy, 7, 3, block_length=12) == next_main


@pytest.mark.parametrize(
    ("strategy", "sync"), [(PREDICT, 40), (CONTINUE, 54), (ORACLE, 40), (ROTATE, 54)]
)
def test_a_sync_stands_where_its_strategy_says(strategy: PositionStrategy, sync: int) -> None:
    assert position_of_sync(strategy, 40, [0, 1, 53, 7]) == sync


def test_oracle_without_a_length_says_where_it_may_be_used() -> None:
    with pytest.raises(ValueError, match="replay and training only"):
        position_after_promise(ORACLE, 7, 3)


def test_a_key_stands_where_its_sync_moved_it_and_else_where_it_was_fed() -> None:
    epoch = Epoch(1, {4: 11})
    assert key_position(4, 99, epoch) == 11
    assert key_position(5, 99, epoch) == 99
    assert key_position(4, 99, Epoch()) == 99


ANSWER = "A <p t >2 B <p u >1 C | D <p v >1 | E"
BLOCKS = ["a b c", "", "d"]


@pytest.mark.parametrize(
    ("strategy", "main"),
    [
        #           A <p t >2   B  <p   u  >1   C   |   D  <p   v  >1   |   E
        (PREDICT, [3, 4, 5, 6, 27, 28, 29, 30, 41, 42, 43, 44, 45, 46, 57, 58]),
        # The first block ends at 11, behind main; the third at 19, ahead of it.
        (CONTINUE, [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 21, 22]),
        (ORACLE, [3, 4, 5, 6, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 27, 28]),
        # Prompt 3, main 9, blocks 5 and 2: the sync is the 20th token, and so on.
        (ROTATE, [3, 4, 5, 6, 27, 28, 29, 30, 41, 19, 20, 21, 22, 23, 27, 28]),
    ],
)
def test_positions_of_main(strategy: PositionStrategy, main: list[int]) -> None:
    answer = WordDecoder(ANSWER, BLOCKS, num_prompt=3, strategy=strategy).run()
    assert [fed.placed.position for fed in answer.fed if fed.thread == 0] == main


def test_a_query_sees_keys_where_they_stood_in_its_own_epoch() -> None:
    answer = WordDecoder("<p t >1 B | C", ["a b"], num_prompt=1, strategy=ROTATE).run()
    slot = {fed.word: fed.placed.slot for fed in answer.fed}
    entries = answer.entries
    assert position_seen(entries, slot["B"], slot["B"]) == 14
    assert position_seen(entries, slot["C"], slot["B"]) == 8
    assert position_seen(entries, slot["C"], slot["a"]) == entries[slot["a"]].position == 5
