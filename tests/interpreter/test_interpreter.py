from __future__ import annotations

import pytest

from pasta_lm.engines.request import ThreadStarted
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.interpreter import (
    Begin,
    Command,
    End,
    Finish,
    Fork,
    Interpreter,
    Legal,
    Resume,
)
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.parser import Form
from tests.fakes.word_decoder import CLOSED, WordDecoder, lexeme_of


def spelled(commands: list[Command]) -> str:
    """Write commands so that a table of them can be read."""
    parts = []
    for command in commands:
        match command:
            case Fork(child):
                assert child.parent is not None
                parts.append(f"fork {child.id} of {child.parent.id}")
            case Begin(thread):
                parts.append(f"begin {thread.id}")
            case Resume(thread, joined):
                parts.append(f"resume {thread.id} with {[t.id for t in joined]}")
            case End(thread, reason):
                parts.append(f"end {thread.id} {reason}")
            case Finish(reason):
                parts.append(f"finish {reason}")
    return ", ".join(parts)


def decode(interpreter: Interpreter, script: str) -> list[str]:
    """Let threads decode: ``0:A 1:b 0:. 1:!`` is A in main, b in 1, an end-of-text, a stop in 1."""
    answers = []
    for step in script.split():
        number, _, word = step.partition(":")
        thread = interpreter.threads[int(number)]
        if word == ".":
            answers.append(spelled(interpreter.end_of_text(thread)))
            continue
        if word == "!":
            answers.append(spelled(interpreter.stop(thread)))
            continue
        lexeme = lexeme_of(word)
        if not thread.in_topic:
            thread.content.append(lexeme.text)
        answers.append(spelled(interpreter.advance(thread, lexeme)))
        if thread.state is ThreadState.WAITING:
            answers[-1] = ", ".join([f"wait {thread.id}", *filter(None, [answers[-1]])])
    return answers


PROMISE = "0:<p 0:t 0:>1"
FORKED = ["", "", "fork 1 of 0, begin 1"]
JOINED = ["resume 0 with [1]"]


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("0:A 0:B", ["", ""]),
        ("0:.", ["end 0 stop, finish stop"]),
        (PROMISE, FORKED),
        (f"{PROMISE} 1:a 1:{CLOSED} 0:.", [*FORKED, "", "end 1 stop", "end 0 stop, finish stop"]),
        # main ends first: the answer ends with its last block
        (f"{PROMISE} 0:. 1:{CLOSED}", [*FORKED, "end 0 stop", "end 1 stop, finish stop"]),
        # a sync is held while a block decodes, and fed with the last </async>
        (f"{PROMISE} 0:| 1:{CLOSED}", [*FORKED, "wait 0", "end 1 stop, resume 0 with [1]"]),
        # ... or at once when all have ended
        (f"{PROMISE} 1:{CLOSED} 0:|", [*FORKED, "end 1 stop", *JOINED]),
        # a sync joins what is unjoined, nothing twice
        ("0:| 0:|", ["resume 0 with []", "resume 0 with []"]),
        (f"{PROMISE} 1:. 0:| 0:|", [*FORKED, "end 1 stop", *JOINED, "resume 0 with []"]),
        # a remote engine's end-of-text closes the block that it is in
        (f"{PROMISE} 1:a 1:.", [*FORKED, "", "end 1 stop"]),
    ],
)  # fmt: skip
def test_what_a_thread_decodes_gives_commands(script: str, commands: list[str]) -> None:
    assert decode(Interpreter(Limits()), script) == commands


def test_a_sync_waits_for_the_inner_block_also_when_the_outer_one_has_ended() -> None:
    interpreter = Interpreter(Limits(max_depth=2))
    decode(interpreter, f"0:<p 0:t 0:>1 1:<p 1:u 1:>1 1:{CLOSED}")
    assert decode(interpreter, "0:|") == ["wait 0"]
    assert decode(interpreter, f"2:{CLOSED}") == ["end 2 stop, resume 0 with [1, 2]"]


@pytest.mark.parametrize(
    ("script", "num_illegal", "num_blocks"),
    [
        (f"0:{CLOSED}", 1, 0),  # main is no block
        (f"{PROMISE} 1:| 1:a", 1, 1),  # a sync belongs to main
        (f"{PROMISE} 1:<p 1:u 1:>1", 2, 1),  # no promise inside a block: opening and closing
        ("0:>1", 1, 0),  # nothing is open
        ("0:<p 0:<p 0:t 0:>1", 1, 1),  # a topic is open
        ("0:<p 0:| 0:t 0:>1", 1, 1),
        ("0:<p 0:>1", 1, 0),  # a topic has a character
        ("0:<p 0:>1 0:t 0:>1", 1, 1),
    ],
)
def test_an_illegal_tag_has_no_effect_and_is_counted(
    script: str, num_illegal: int, num_blocks: int
) -> None:
    interpreter = Interpreter(Limits())
    decode(interpreter, script)
    assert interpreter.num_illegal == num_illegal
    assert len(interpreter.threads) == 1 + num_blocks


def test_an_async_open_that_a_model_emits_is_illegal_everywhere() -> None:
    interpreter = Interpreter(Limits())
    decode(interpreter, PROMISE)
    for thread in interpreter.threads:
        assert interpreter.advance(thread, Lexeme(LexemeKind.ASYNC_OPEN)) == []
    assert interpreter.num_illegal == 2


def test_the_document_is_the_answer_as_far_as_it_was_decoded() -> None:
    interpreter = Interpreter(Limits())
    decode(interpreter, "0:A 0:<p 0:t 0:>2 0:B 1:x 1:y")
    assert interpreter.document() == parse('A<promise topic="t" tokens="2"/><async>xy</async>B')
    decode(interpreter, f"1:{CLOSED} 0:| 0:<p 0:un")
    assert interpreter.document() == Document(
        (Text("A"), Block("t", 2, (Text("xy"),)), Text("B"), Sync())
    ), "a topic that was never closed is no promise"


def test_an_abort_ends_everything_once() -> None:
    interpreter = Interpreter(Limits(max_threads=2))
    decode(interpreter, f"{PROMISE} 0:<p 0:u 0:>1")
    assert spelled(interpreter.abort()) == "end 0 abort, end 1 abort, end 2 abort, finish abort"
    assert interpreter.abort() == []
    assert interpreter.finish_reason is FinishReason.ABORT


# Main is "A [1] B [2] C"; the stop that is earliest in reading order cuts.
TWO = "0:A 0:<p 0:t 0:>1 1:x 0:B 0:<p 0:u 0:>1 2:y 0:C"


@pytest.mark.parametrize(
    ("script", "commands", "text"),
    [
        # a stop in main lets all its blocks finish
        (f"0:! 1:x 1:{CLOSED} 2:{CLOSED}",
         ["end 0 stop", "", "end 1 stop", "end 2 stop, finish stop"], "AxxByC"),
        # one in a block aborts what stands later, and earlier blocks finish
        ("1:!", ["end 0 abort, end 2 abort, end 1 stop, finish stop"], "Ax"),
        (f"2:! 1:z 1:{CLOSED}",
         ["end 0 abort, end 2 stop", "", "end 1 stop, finish stop"], "AxzBy"),
        # of two the earlier wins; one behind the cut changes nothing
        ("2:! 1:!", ["end 0 abort, end 2 stop", "end 1 stop, finish stop"], "Ax"),
        (f"0:! 2:{CLOSED} 1:! 2:!",
         ["end 0 stop", "end 2 stop", "end 1 stop, finish stop", ""], "Ax"),
        # a main that waits is ended
        (f"0:| 2:{CLOSED} 1:!",
         ["wait 0", "end 2 stop", "end 0 abort, end 1 stop, finish stop"], "Ax"),
    ],
)  # fmt: skip
def test_a_stop_cuts_the_answer_in_reading_order(
    script: str, commands: list[str], text: str
) -> None:
    interpreter = Interpreter(Limits())
    decode(interpreter, TWO)
    assert decode(interpreter, script) == commands
    assert interpreter.document().plain_text == text


PREDICT, CONTINUE, ORACLE = PositionStrategy


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


TEXT, OPENING, CLOSING = LexemeKind.TEXT, LexemeKind.PROMISE_OPEN, LexemeKind.PROMISE_CLOSE
END, SYNC = LexemeKind.ASYNC_CLOSE, LexemeKind.SYNC


def begun(words: str, form: Form = Form.MAIN, **limits: int | None) -> tuple[Interpreter, Thread]:
    """Return an interpreter whose main has decoded some words; their text is held back."""
    interpreter = Interpreter(Limits(**limits), form=form)  # type: ignore[arg-type]
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
        ("<p t >1 <p u >1", {TEXT, SYNC}, True),  # it has all the blocks that it may have
        ("<p t u", {TEXT, CLOSING}, False),
        ("<p t u v", {CLOSING}, False),  # the topic has all the tokens that it may have
        ("<p t >1 |", set(), False),  # it waits and decodes nothing
    ],
)
def test_what_main_may_decode_next(
    words: str, expected: set[LexemeKind], end_of_text: bool
) -> None:
    interpreter, main = begun(words, max_blocks=2, max_topic_tokens=3)
    if main.state is ThreadState.WAITING:
        assert main not in list(interpreter.runnable())
        return
    legal = interpreter.legal(main)
    assert (kinds(legal), legal.end_of_text) == (expected, end_of_text)


@pytest.mark.parametrize(("words", "may_fork"), [("A", True), ("A <p", False), ("<p B", True)])
def test_no_fork_of_apar_follows_another(words: str, may_fork: bool) -> None:
    interpreter, main = begun(words, Form.FORKED)
    assert (OPENING in interpreter.legal(main).kinds) is may_fork


def test_what_a_block_may_decode_next() -> None:
    interpreter, _ = begun("<p t >1")
    block = interpreter.threads[1]
    first = interpreter.legal(block)
    assert (kinds(first), first.end_of_text) == ({TEXT}, False), "a block has a token"
    interpreter.advance(block, lexeme_of("a"))
    assert kinds(interpreter.legal(block)) == {TEXT, END}


def test_the_last_token_of_a_topic_of_spaces_must_be_more_than_space() -> None:
    interpreter, main = begun("<p", max_topic_tokens=3)
    space = lexeme_of("A")
    space = type(space)(TEXT, "  ")
    for needs_text in (False, False, True):
        legal = interpreter.legal(main)
        assert (kinds(legal), legal.needs_text) == ({TEXT}, needs_text)
        interpreter.advance(main, space)


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
    [("max_tokens", 0), ("max_threads", 0), ("max_topic_tokens", 0), ("max_blocks", -1)]
    + [("max_depth", -1), ("max_tokens_per_thread", 2)],
)
def test_a_bound_that_no_response_could_satisfy_is_refused(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}, but must be at least"):
        Limits(**{name: value})
