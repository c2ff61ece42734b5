from __future__ import annotations

import pytest

from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED, Row
from tests.fakes.word_decoder import WordDecoder
from tests.visibility import is_visible


def drawn(entries: Entries) -> list[str]:
    """Draw who sees whom: one line a query, one column a key, both in order of slot."""
    slots = range(len(entries))
    return ["".join(".x"[is_visible(entries, query, key)] for key in slots) for query in slots]


def test_main_sees_the_promise_but_not_the_block_until_the_sync() -> None:
    #                                                              slots: prompt 0, main A 1, ...
    answer = WordDecoder("A <p t >1 B | C", ["a"], num_prompt=1).run()
    assert [f"{fed.thread}:{fed.word}" for fed in answer.fed] == [
        *["0:A", "0:<p", "0:t", "0:>1", "1:<async>", "0:B", "1:a", "1:</async>", "0:|", "0:C"]
    ]
    assert drawn(answer.entries) == [
        # p A < t > [ B a ] | C
        "x..........",  # the prompt
        "xx.........",  # A
        "xxx........",  # <p
        "xxxx.......",  # t
        "xxxxx......",  # >1
        "xxxxxx.....",  # <async> sees main up to its promise
        "xxxxx.x....",  # B does not see <async>
        "xxxxxx.x...",  # a does not see B
        "xxxxxx.xx..",  # </async> does not either
        "xxxxxxxxxx.",  # the sync sees all
        "xxxxxxxxxxx",  # and so does what follows
    ]


def test_samples_of_one_prompt_share_it_and_nothing_else() -> None:
    rows = Row.of_main(1), Row.of_main(2)
    for own, other, row in ((1, 2, rows[0]), (2, 1, rows[1])):
        assert row.sees(query_slot=9, entry_slot=0, entry_owner=PROMPT_OWNER)
        assert row.sees(query_slot=9, entry_slot=9, entry_owner=own)
        assert not row.sees(query_slot=9, entry_slot=8, entry_owner=other)


@pytest.mark.parametrize(
    ("query", "entry", "owner", "is_seen"),
    [
        (7, 7, 2, True),  # itself
        (7, 8, 2, False),  # later than itself
        (7, 4, 1, True),  # below its parent's cutoff
        (7, 5, 1, False),  # at its parent's cutoff
        (7, 0, 0, True),  # the prompt
        (7, 3, 9, False),  # an owner that its row does not name
    ],
)
def test_a_query_sees_what_is_not_later_and_below_the_cutoff(
    query: int, entry: int, owner: int, is_seen: bool
) -> None:
    row = Row.of_main(1).fork(parent=1, child=2, promise_end_slot=4)
    assert row.sees(query_slot=query, entry_slot=entry, entry_owner=owner) == is_seen


def test_a_fork_copies_the_row_and_a_sync_raises_only_what_it_joins() -> None:
    main = Row.of_main(1)
    assert main.fork(parent=1, child=2, promise_end_slot=6).cutoffs == {
        PROMPT_OWNER: UNBOUNDED,
        1: 7,
        2: UNBOUNDED,
    }
    joined = main.sync([2, 3])
    assert joined.cutoffs == {**main.cutoffs, 2: UNBOUNDED, 3: UNBOUNDED}
    assert main.cutoff(2) == 0, "rows are values: the old one is what it was"


def test_a_block_inside_a_block_sees_its_ancestors_up_to_their_promises() -> None:
    limits = Limits(max_depth=2)
    blocks = ["a <p u >1 b", "x y"]
    answer = WordDecoder("A <p t >1 B | C", blocks, num_prompt=1, limits=limits).run()
    words = ["p", *(fed.word for fed in answer.fed)]
    entries = answer.entries

    def seen_by(word: str) -> str:
        query = words.index(word)
        return " ".join(w for key, w in enumerate(words) if is_visible(entries, query, key))

    assert seen_by("y") == "p A <p t >1 <async> a <p u >1 <async> x y"
    assert seen_by("b") == "p A <p t >1 <async> a <p u >1 b"
    assert sorted(seen_by("C").split()) == sorted(words), "a sync joins the blocks inside blocks"
