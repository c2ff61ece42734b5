"""Random answers through interpreter and placement, without a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.visibility import Row
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from tests.fakes.word_decoder import CLOSED, OPEN, WordDecoder, lexeme_of
from tests.reference import critical_path, is_visible, reference

words = st.lists(st.sampled_from("abcdef"), max_size=8).map(" ".join)
promises = st.builds("<p {} >{}".format, st.sampled_from("tuv"), st.integers(1, 4))
parts = st.one_of(words, promises, st.just("|"))


@st.composite
def answers(draw: st.DrawFn, max_parts: int = 8) -> tuple[str, list[str]]:
    main = " ".join(draw(st.lists(parts, max_size=max_parts)))
    num_blocks = main.count("<p")
    return main, draw(st.lists(words, min_size=num_blocks, max_size=num_blocks))


positions = st.sampled_from(PositionStrategy)
bounds = st.none() | st.integers(1, 4)


def document_of(main: str, blocks: list[str]) -> Document:
    items: list[Item] = []
    inside = iter(blocks)
    topic = ""
    for word in main.split():
        lexeme = lexeme_of(word)
        if lexeme.units is not None:
            text = next(inside).replace(" ", "")
            items.append(Block(topic, lexeme.units, (Text(text),)))
        elif word == "|":
            items.append(Sync())
        elif word in "tuv":
            topic = word
        elif word != "<p":
            items.append(Text(word))
    return Document(tuple(items))


@given(answers(), positions, bounds, st.integers(1, 5))
def test_every_token_stands_and_sees_as_the_written_form_says(
    answer: tuple[str, list[str]], strategy: PositionStrategy, bound: int | None, num_prompt: int
) -> None:
    run = WordDecoder(*answer, num_prompt, strategy, Limits(max_threads=bound)).run()
    expected = reference(run.shape, strategy)
    found = run.places()
    assert found == {name: expected[name] for name in found}


@given(answers(), positions)
def test_the_critical_path_is_the_number_of_passes(
    answer: tuple[str, list[str]], strategy: PositionStrategy
) -> None:
    run = WordDecoder(*answer, strategy=strategy).run()
    assert run.num_passes == run.response.trace.critical_path == critical_path(run.shape)


@given(answers(), bounds)
def test_deferral_changes_the_number_of_passes_and_no_depth(
    answer: tuple[str, list[str]], bound: int | None
) -> None:
    free = WordDecoder(*answer).run()
    bounded = WordDecoder(*answer, limits=Limits(max_threads=bound))
    while not bounded.interpreter.is_finished:
        assert bound is None or sum(1 for _ in bounded.interpreter.runnable()) <= bound
        bounded.step()
    assert bounded.num_passes >= free.num_passes
    depths = [
        {(f.thread, f.placed.position): f.placed.depth for f in r.fed} for r in (free, bounded)
    ]
    for name in depths[0].keys() & depths[1].keys():
        assert depths[0][name] == depths[1][name]


@given(answers(), positions, bounds)
def test_every_token_is_fed_once_and_in_order(
    answer: tuple[str, list[str]], strategy: PositionStrategy, bound: int | None
) -> None:
    main, blocks = answer
    run = WordDecoder(main, blocks, 2, strategy, Limits(max_threads=bound)).run()
    lanes: dict[int, list[str]] = {thread.id: [] for thread in run.interpreter.threads}
    for fed in run.fed:
        lanes[fed.thread].append(fed.word)
    assert lanes.pop(0) == main.split()
    for number, lane in lanes.items():
        whole = [OPEN, *blocks[number - 1].split(), CLOSED]
        assert lane in (whole, whole[:-1])  # a last </async> is decoded and never fed
    steps = [(fed.step, fed.thread) for fed in run.fed]
    assert len(steps) == len(set(steps)), "a thread feeds one token a pass"


@given(answers(), bounds)
def test_the_document_is_what_was_decoded(answer: tuple[str, list[str]], bound: int | None) -> None:
    main, blocks = answer
    run = WordDecoder(main, blocks, limits=Limits(max_threads=bound)).run()
    assert run.interpreter.document() == document_of(main, blocks)
    assert run.interpreter.finish_reason is FinishReason.STOP
    assert run.interpreter.num_illegal == 0
    num_decoded = len(main.split()) + sum(len(block.split()) + 2 for block in blocks)
    assert run.interpreter.num_tokens == num_decoded


@given(answers(), bounds, st.integers(1, 40))
def test_a_response_never_has_more_tokens_than_it_may_have(
    answer: tuple[str, list[str]], bound: int | None, room: int
) -> None:
    limits = Limits(max_threads=bound, max_tokens=room)
    run = WordDecoder(*answer, limits=limits).run()
    whole = WordDecoder(*answer, limits=Limits(max_threads=bound)).run()
    num_tokens = run.interpreter.num_tokens
    assert num_tokens <= room
    assert len(run.fed) <= num_tokens
    was_cut = run.interpreter.finish_reason is FinishReason.LENGTH
    assert num_tokens == (room if was_cut else whole.interpreter.num_tokens)
    assert was_cut or run.fed == whole.fed


@given(answers(), positions, st.integers(8, 60))
def test_nothing_is_fed_beyond_the_last_position(
    answer: tuple[str, list[str]], strategy: PositionStrategy, last: int
) -> None:
    limits = Limits(max_position=last)
    run = WordDecoder(*answer, num_prompt=3, strategy=strategy, limits=limits).run()
    assert max((fed.placed.position for fed in run.fed), default=0) <= last


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
