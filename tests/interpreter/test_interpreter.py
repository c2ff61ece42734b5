from __future__ import annotations

import pytest

from pasta_lm.interpreter.commands import ASYNC_OPEN, Begin, Command, End, Finish, Fork, Resume
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.positions import PositionStrategy, position_after_promise
from pasta_lm.interpreter.thread import ThreadState
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text
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
            thread.write(lexeme.text)
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
        assert interpreter.advance(thread, ASYNC_OPEN) == []
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
