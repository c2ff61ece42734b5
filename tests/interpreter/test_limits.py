from __future__ import annotations

import pytest

from pasta_lm.engines.request import ThreadStarted
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.commands import Legal
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.language.lexer import LexemeKind
from tests.fakes.word_decoder import CLOSED, WordDecoder, lexeme_of

TEXT, OPENING, CLOSING = LexemeKind.TEXT, LexemeKind.PROMISE_OPEN, LexemeKind.PROMISE_CLOSE
END, SYNC = LexemeKind.ASYNC_CLOSE, LexemeKind.SYNC


def begun(words: str, **limits: int | None) -> tuple[Interpreter, Thread]:
    """Return an interpreter whose main has decoded some words."""
    interpreter = Interpreter(Limits(**limits))  # type: ignore[arg-type]
    for word in words.split():
        interpreter.advance(interpreter.main, lexeme_of(word))
    return interpreter, interpreter.main


def kinds(legal: Legal) -> set[LexemeKind]:
    return set(legal.kinds)


@pytest.mark.parametrize(
    ("words", "expected", "end_of_text"),
    [
        ("A", {TEXT, OPENING}, True),  # nothing is unjoined: no sync
        ("<p", {TEXT}, False),  # no closing piece before a character
        ("<p t", {TEXT, CLOSING}, False),
        ("<p t >1", {TEXT, OPENING, SYNC}, True),
        ("<p t >1 |", set(), False),  # it waits and decodes nothing
    ],
)
def test_what_main_may_decode_next(
    words: str, expected: set[LexemeKind], end_of_text: bool
) -> None:
    interpreter, main = begun(words)
    if main.state is ThreadState.WAITING:
        assert main not in list(interpreter.runnable())
        return
    legal = interpreter.legal(main)
    assert (kinds(legal), legal.end_of_text) == (expected, end_of_text)


def test_what_a_block_may_decode_next() -> None:
    interpreter, _ = begun("<p t >1")
    block = interpreter.threads[1]
    first = interpreter.legal(block)
    assert (kinds(first), first.end_of_text) == ({TEXT}, False), "a block has a token"
    interpreter.advance(block, lexeme_of("a"))
    assert kinds(interpreter.legal(block)) == {TEXT, END}


def test_a_topic_ends_at_its_last_token() -> None:
    interpreter, main = begun("<p t", max_topic_tokens=3)
    interpreter.advance(main, lexeme_of("u"))
    assert kinds(interpreter.legal(main)) == {TEXT, CLOSING}
    interpreter.advance(main, lexeme_of("v"))
    assert kinds(interpreter.legal(main)) == {CLOSING}


def test_the_last_token_of_a_topic_of_spaces_must_be_more_than_space() -> None:
    interpreter, main = begun("<p", max_topic_tokens=3)
    space = lexeme_of("A")
    space = type(space)(TEXT, "  ")
    for needs_text in (False, False, True):
        legal = interpreter.legal(main)
        assert (kinds(legal), legal.needs_text) == ({TEXT}, needs_text)
        interpreter.advance(main, space)


def test_at_the_limit_of_blocks_no_promise_may_begin() -> None:
    interpreter, main = begun("<p t >1", max_blocks=2)
    assert OPENING in interpreter.legal(main).kinds
    for word in ["<p", "u", ">1"]:
        interpreter.advance(main, lexeme_of(word))
    assert OPENING not in interpreter.legal(main).kinds
    assert OPENING not in begun("A", max_blocks=0)[0].legal(begun("A", max_blocks=0)[1]).kinds


def test_a_promise_beyond_the_limit_of_blocks_is_never_dropped() -> None:
    answer = WordDecoder("<p t >1 <p u >1", ["a", "b"], limits=Limits(max_blocks=1)).run()
    assert [thread.num_tokens for thread in answer.interpreter.threads[1:]] == [3, 3]


def test_no_promise_begins_whose_end_could_pass_the_last_position() -> None:
    interpreter, main = begun("A", max_position=100)
    main.position = 100 - 11 - 12 - 3
    assert OPENING in interpreter.legal(main).kinds
    main.position += 1
    assert OPENING not in interpreter.legal(main).kinds


@pytest.mark.parametrize(("position", "units"), [(20, 7), (29, 7), (30, 6), (88, 1), (89, 1)])
def test_a_promise_keeps_main_below_the_last_position(position: int, units: int) -> None:
    interpreter, main = begun("<p t", max_position=100)
    main.position = position
    assert interpreter.legal(main).units == units


def test_a_promise_that_has_no_room_is_illegal() -> None:
    interpreter, main = begun("<p t", max_position=100)
    main.position = 90
    assert interpreter.advance(main, lexeme_of(">1")) == []
    assert (interpreter.num_illegal, len(interpreter.threads)) == (1, 1)


def test_max_tokens_cuts_in_favour_of_what_is_read_first() -> None:
    #  <p t >1 and <async> are four tokens; two passes later 1 has two, main has one
    answer = WordDecoder("<p t >1 X Y Z", ["a b c d"], limits=Limits(max_tokens=7)).run()
    assert answer.interpreter.document().plain_text == "abX"
    assert [thread.num_tokens for thread in answer.interpreter.threads] == [4, 3]
    reasons = [str(thread.finish_reason) for thread in answer.interpreter.threads]
    assert reasons == ["length", "length"]


def test_what_ends_with_its_last_token_was_not_cut() -> None:
    whole = WordDecoder("A <p t >1", ["a"]).run().interpreter
    exact = WordDecoder("A <p t >1", ["a"], limits=Limits(max_tokens=whole.num_tokens)).run()
    assert exact.interpreter.finish_reason == whole.finish_reason == "stop"


def test_deferred_blocks_start_only_while_there_is_room_for_them() -> None:
    limits = Limits(max_threads=1, max_tokens=4)
    answer = WordDecoder("<p t >1", ["a"], limits=limits).run()
    assert answer.interpreter.num_tokens == 4, "the fourth is <async>"
    assert answer.interpreter.finish_reason == "length"


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_beyond_max_threads_a_block_is_deferred_and_its_tokens_are_the_same(bound: int) -> None:
    given = ("A <p t >1 <p u >1 <p v >1 B | C", ["a b c d e f g h i", "d e f g h", "e f"])
    free, bounded = (WordDecoder(*given, limits=Limits(max_threads=n)) for n in (None, bound))
    free.run()
    while not bounded.interpreter.is_finished:
        assert sum(1 for _ in bounded.interpreter.runnable()) <= bound
        bounded.step()
    assert bounded.num_passes > free.num_passes
    assert bounded.interpreter.document() == free.interpreter.document()
    assert bounded.places() == free.places()


def test_deferred_blocks_start_in_the_order_of_their_promises() -> None:
    limits = Limits(max_threads=1)
    answer = WordDecoder("<p t >1 <p u >1 <p v >1 |", ["a", "b", "c"], limits=limits).run()
    begun = [event.thread for event in answer.response.events if isinstance(event, ThreadStarted)]
    assert begun == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("block", "words", "reason"),
    [
        ("a b c d e", "ab", "length"),  # <async> a b </async>
        ("a b c", "ab", "length"),
        ("a b", "ab", "length"),  # its own </async> is the one that the limit forces
        ("a", "a", "stop"),
        ("", "", "stop"),
    ],
)
def test_a_block_at_its_limit_is_closed(block: str, words: str, reason: str) -> None:
    limits = Limits(max_tokens_per_thread=4)
    answer = WordDecoder("<p t >1 | X", [block], limits=limits).run()
    _, thread = answer.interpreter.threads
    (block,) = answer.interpreter.document().blocks
    assert block.plain_text == words
    assert thread.num_tokens <= 4
    assert (str(thread.finish_reason), answer.interpreter.finish_reason) == (reason, "stop")
    assert CLOSED in [fed.word for fed in answer.fed]


def test_a_block_ends_so_that_a_sync_can_stand_behind_it() -> None:
    limits = Limits(max_position=20)
    answer = WordDecoder("<p t >1 | X", ["a " * 30], 3, PositionStrategy.CONTINUE, limits).run()
    positions = {fed.word: fed.placed.position for fed in answer.fed}
    assert (positions[CLOSED], positions["|"]) == (19, 20)
    assert answer.interpreter.finish_reason == "length"


def test_main_ends_at_the_last_position() -> None:
    answer = WordDecoder("A B C D E F", num_prompt=3, limits=Limits(max_position=5)).run()
    assert [fed.placed.position for fed in answer.fed] == [3, 4, 5]
    assert answer.interpreter.document().plain_text == "ABCD", "D was decoded and is never fed"
    assert answer.interpreter.finish_reason == "length"


@pytest.mark.parametrize("last_word", [">1", "|", "<p", CLOSED])
def test_a_tag_beyond_the_last_position_has_no_effect(last_word: str) -> None:
    answer = WordDecoder(f"<p t {last_word}", ["a"], 3, limits=Limits(max_position=4)).run()
    assert len(answer.interpreter.threads) == 1
    assert answer.interpreter.finish_reason == "length"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_threads", 0),
        ("max_topic_tokens", 0),
        ("max_blocks", -1),
        ("max_depth", -1),
        ("max_tokens_per_thread", 2),
    ],
)
def test_a_bound_that_no_response_could_satisfy_is_refused(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}, but must be at least"):
        Limits(**{name: value})
