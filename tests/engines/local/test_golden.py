"""The worked example of the language's rules, to the letter.

A prompt of three tokens. The answer: A, a promise of one unit with the block ``a b c``, B, a
promise of one unit with the block ``d``, a sync, C, end. Eleven passes after the prefill.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import (
    Finished,
    Request,
    StreamEvent,
    Synced,
    TextDelta,
    ThreadEnded,
    ThreadStarted,
)
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Trace
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, PROMISE_OPEN, SYNC, closing_piece
from pasta_lm.models.encoded import EncodedDocument
from tests.architectures import loaded
from tests.decoding import decode_document
from tests.fakes.recording_engine import Recorded, Recording
from tests.programs import words_of
from tests.visibility import position_seen

PREDICT, ROTATE = PositionStrategy.PREDICT, PositionStrategy.ROTATE
both = pytest.mark.parametrize("positions", [PREDICT, ROTATE])

MODEL = loaded("llama")
VOCABULARY = MODEL.vocabulary
TAGS = {"open": PROMISE_OPEN, "close": closing_piece(1)} | {
    tag: tag for tag in (ASYNC_OPEN, ASYNC_CLOSE, SYNC)
}
IDS = {name: VOCABULARY.piece_id(piece) for name, piece in TAGS.items()}
IDS |= dict(zip("tABCabcd", words_of(VOCABULARY).topic, strict=False))
NAMES = {token: name for name, token in IDS.items()}


class Row(NamedTuple):
    """One fed token, as the table of the example has it."""

    step: int
    thread: int
    token: str
    slot: int
    position: int
    moved: int
    """Where it stands after the sync under 'rotate'."""
    depth: int


TABLE = [
    Row(1, 0, "A", 3, 3, 3, 1),
    Row(2, 0, "open", 4, 4, 4, 2),
    Row(3, 0, "t", 5, 5, 5, 3),
    Row(4, 0, "close", 6, 6, 6, 4),
    Row(4, 1, "<async>", 7, 7, 7, 4),
    Row(5, 0, "B", 8, 17, 12, 5),
    Row(5, 1, "a", 9, 8, 8, 5),
    Row(6, 0, "open", 10, 18, 13, 6),
    Row(6, 1, "b", 11, 9, 9, 6),
    Row(7, 0, "t", 12, 19, 14, 7),
    Row(7, 1, "c", 13, 10, 10, 7),
    Row(8, 0, "close", 14, 20, 15, 8),
    Row(8, 1, "</async>", 15, 11, 11, 8),
    Row(8, 2, "<async>", 16, 21, 16, 8),
    Row(9, 2, "d", 17, 22, 17, 9),
    Row(10, 2, "</async>", 18, 23, 18, 10),
    Row(10, 0, "<sync/>", 19, 31, 19, 10),
    Row(11, 0, "C", 20, 32, 20, 11),
]


def request(positions: PositionStrategy) -> Request:
    main = ["A", "open", "t", "close", "B", "open", "t", "close", "<sync/>", "C"]
    blocks = (("a", "b", "c"), ("d",))
    ids = [tuple(IDS[word] for word in words) for words in (main, *blocks)]
    prompt = tuple(words_of(VOCABULARY).text[-3:])
    return Request(
        prompt=prompt, forced=EncodedDocument(ids[0], tuple(ids[1:])), positions=positions
    )


@cache
def seen(positions: PositionStrategy) -> Recorded:
    ((found,),) = Recording(MODEL).run([request(positions)])
    return found


def trace(positions: PositionStrategy) -> Trace:
    answer = seen(positions).answer
    assert answer is not None
    return answer.trace


@both
def test_every_token_has_its_pass_slot_position_and_depth(positions: PositionStrategy) -> None:
    found = [
        (t.fed_step, t.thread, NAMES[t.token or 0], t.slot, t.position, t.depth)
        for t in sorted(trace(positions).tokens, key=lambda t: t.slot or 0)
    ]
    after = {"<sync/>", "C"} if positions is ROTATE else set()
    positions_of = [row.moved if row.token in after else row.position for row in TABLE]
    expected = [
        (row.step - 1, row.thread, row.token, row.slot, position, row.depth)
        for row, position in zip(TABLE, positions_of, strict=True)
    ]
    assert found == expected, "steps count from 0, passes of the table from 1"


def test_after_the_sync_rotate_sees_every_token_at_its_place_in_reading_order() -> None:
    entries = seen(ROTATE).entries
    assert [position_seen(entries, 20, slot) for slot in range(21)] == [0, 1, 2] + [
        row.moved for row in TABLE
    ]
    before = [position_seen(entries, 18, slot) for slot in range(19)]
    assert before == [0, 1, 2] + [row.position for row in TABLE[:16]]


@both
def test_rows_are_those_of_the_example(positions: PositionStrategy) -> None:
    response = seen(positions).response
    owners = [thread.owner for thread in response.interpreter.threads]
    rows = [dict(response.placer.entries[slot].row.cutoffs) for slot in (3, 7, 16, 18, 19, 20)]
    main, first, second = (dict.fromkeys([PROMPT_OWNER, owner], UNBOUNDED) for owner in owners)
    everything = dict.fromkeys([PROMPT_OWNER, *owners], UNBOUNDED)
    first[owners[0]], second[owners[0]] = 7, 15
    assert rows == [main, first, second, second, everything, everything]


@both
def test_threads_start_and_end_where_the_table_has_them(positions: PositionStrategy) -> None:
    threads = [
        (t.parent, t.topic is not None, t.promised_tokens, t.num_tokens, t.start_step, t.end_step)
        for t in trace(positions).threads
    ]
    assert threads == [
        (None, False, None, 10, 0, 10),
        (0, True, 10, 5, 3, 7),
        (0, True, 10, 3, 7, 9),
    ]
    (sync,) = trace(positions).syncs
    assert (sync.thread, sync.joined, sync.step) == (0, [1, 2], 9)
    assert sync.position == (19 if positions is ROTATE else 31)


@both
def test_tokens_are_decoded_from_the_pass_before(positions: PositionStrategy) -> None:
    decoded = {(t.thread, t.decoded_step + 1): NAMES[t.token or 0] for t in trace(positions).tokens}
    assert [decoded.get((0, step)) for step in range(12)] == [
        *["A", "open", "t", "close", "B", "open", "t", "close", "<sync/>"],
        *[None, "C", None],  # the sync is held; the end is not a token
    ]
    first = ["<async>", "a", "b", "c", "</async>"]
    assert [decoded.get((1, step)) for step in range(3, 8)] == first
    assert [decoded.get((2, step)) for step in range(7, 10)] == ["<async>", "d", "</async>"]


@both
def test_the_answer_reads_as_its_document(positions: PositionStrategy) -> None:
    answer = seen(positions).answer
    assert answer is not None
    text = {word: VOCABULARY.token_text(token) for word, token in IDS.items()}
    assert answer.text == "".join(text[word] for word in "AabcBdC")
    forced = request(positions).forced
    assert forced is not None
    assert answer.document == decode_document(VOCABULARY, forced)
    assert (answer.finish_reason, answer.trace.kind.value) == ("stop", "replayed")
    assert answer.usage == {"prompt_tokens": 3, "completion_tokens": 18, "total_tokens": 21}
    assert answer.trace.num_content_tokens == 7
    assert answer.trace.parallelism == 7 / 11


def test_events_come_in_the_order_in_which_things_happened() -> None:
    events: list[StreamEvent] = list(TorchEngine(MODEL, captures=False).stream(request(PREDICT)))
    told = []
    for event in events:
        match event:
            case ThreadStarted(_, thread, parent, _, promised):
                told.append(f"start {thread} of {parent} for {promised}")
            case TextDelta(_, thread):
                told.append(f"text {thread}")
            case ThreadEnded(_, thread, reason):
                assert reason is FinishReason.STOP
                told.append(f"end {thread}")
            case Synced(_, thread, joined):
                told.append(f"sync {thread} with {joined}")
            case Finished(_, answer):
                told.append(f"finish {answer.finish_reason}")
    assert told == [
        *["start 0 of None for None", "text 0", "start 1 of 0 for 10"],
        *["text 1", "text 0", "text 1", "text 1"],
        *["end 1", "start 2 of 0 for 10", "text 2", "end 2", "sync 0 with (1, 2)"],
        *["text 0", "end 0", "finish stop"],
    ]
