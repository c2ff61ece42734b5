from __future__ import annotations

import pytest

from pasta_lm.interpreter.positions import PositionStrategy, position_after_promise
from tests.fakes.word_decoder import WordDecoder

PREDICT, CONTINUE, ORACLE = PositionStrategy


def test_oracle_without_a_length_says_where_it_may_be_used() -> None:
    with pytest.raises(ValueError, match="replay and training only"):
        position_after_promise(ORACLE, 7, 3)


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
    ],
)
def test_positions_of_main(strategy: PositionStrategy, main: list[int]) -> None:
    answer = WordDecoder(ANSWER, BLOCKS, num_prompt=3, strategy=strategy).run()
    assert [fed.placed.position for fed in answer.fed if fed.thread == 0] == main
