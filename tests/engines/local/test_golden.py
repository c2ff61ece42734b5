"""The worked example of the language's rules, to the letter.

A prompt of three tokens. The answer: A, a promise of one unit with the block ``a b c``, B, a
promise of one unit with the block ``d``, a sync, C, end. Eleven passes after the prefill.
"""

from __future__ import annotations

from functools import cache

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
from pasta_lm.interpreter.trace import Trace
from pasta_lm.interpreter.visibility import PROMPT_OWNER, UNBOUNDED
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, PROMISE_OPEN, SYNC, closing_piece
from pasta_lm.models.encoded import EncodedDocument
from tests.architectures import loaded
from tests.fakes.recording_engine import Recorded, Recording
from tests.programs import decode_document, words_of

MODEL = loaded("llama")
VOCABULARY = MODEL.vocabulary
TAGS = {"open": PROMISE_OPEN, "close": closing_piece(1)} | {
    tag: tag for tag in (ASYNC_OPEN, ASYNC_CLOSE, SYNC)
}
IDS = {name: VOCABULARY.piece_id(piece) for name, piece in TAGS.items()}
IDS |= dict(zip("tABCabcd", words_of(VOCABULARY).topic, strict=False))
NAMES = {token: name for name, token in IDS.items()}


TABLE = [  # step, thread, token, slot, position and depth of each fed token
    (1, 0, "A", 3, 3, 1),
    (2, 0, "open", 4, 4, 2),
    (3, 0, "t", 5, 5, 3),
    (4, 0, "close", 6, 6, 4),
    (4, 1, "<async>", 7, 7, 4),
    (5, 0, "B", 8, 17, 5),
    (5, 1, "a", 9, 8, 5),
    (6, 0, "open", 10, 18, 6),
    (6, 1, "b", 11, 9, 6),
    (7, 0, "t", 12, 19, 7),
    (7, 1, "c", 13, 10, 7),
    (8, 0, "close", 14, 20, 8),
    (8, 1, "</async>", 15, 11, 8),
    (8, 2, "<async>", 16, 21, 8),
    (9, 2, "d", 17, 22, 9),
    (10, 2, "</async>", 18, 23, 10),
    (10, 0, "<sync/>", 19, 31, 10),
    (11, 0, "C", 20, 32, 11),
]


def request() -> Request:
    main = ["A", "open", "t", "close", "B", "open", "t", "close", "<sync/>", "C"]
    blocks = (("a", "b", "c"), ("d",))
    ids = [tuple(IDS[word] for word in words) for words in (main, *blocks)]
    prompt = tuple(words_of(VOCABULARY).text[-3:])
    return Request(prompt=prompt, forced=EncodedDocument(ids[0], tuple(ids[1:])))


@cache
def seen() -> Recorded:
    ((found,),) = Recording(MODEL).run([request()])
    return found


def trace() -> Trace:
    answer = seen().answer
    assert answer is not None
    return answer.trace


def test_every_token_has_its_pass_slot_position_and_depth() -> None:
    found = [
        (t.fed_step, t.thread, NAMES[t.token or 0], t.slot, t.position, t.depth)
        for t in sorted(trace().tokens, key=lambda t: t.slot or 0)
    ]
    expected = [(step - 1, *row) for step, *row in TABLE]
    assert found == expected, "steps count from 0, passes of the table from 1"


def test_rows_are_those_of_the_example() -> None:
    response = seen().response
    owners = [thread.owner for thread in response.interpreter.threads]
    rows = [dict(response.placer.entries[slot].row.cutoffs) for slot in (3, 7, 16, 18, 19, 20)]
    main, first, second = (dict.fromkeys([PROMPT_OWNER, owner], UNBOUNDED) for owner in owners)
    everything = dict.fromkeys([PROMPT_OWNER, *owners], UNBOUNDED)
    first[owners[0]], second[owners[0]] = 7, 15
    assert rows == [main, first, second, second, everything, everything]


def test_threads_start_and_end_where_the_table_has_them() -> None:
    threads = [
        (t.parent, t.topic is not None, t.promised_tokens, t.num_tokens, t.start_step, t.end_step)
        for t in trace().threads
    ]
    assert threads == [
        (None, False, None, 10, 0, 10),
        (0, True, 10, 5, 3, 7),
        (0, True, 10, 3, 7, 9),
    ]
    (sync,) = trace().syncs
    assert (sync.thread, sync.joined, sync.step) == (0, [1, 2], 9)
    assert sync.position == 31


def test_tokens_are_decoded_from_the_pass_before() -> None:
    decoded = {(t.thread, t.decoded_step + 1): NAMES[t.token or 0] for t in trace().tokens}
    assert [decoded.get((0, step)) for step in range(12)] == [
        *["A", "open", "t", "close", "B", "open", "t", "close", "<sync/>"],
        *[None, "C", None],  # the sync is held; the end is not a token
    ]
    first = ["<async>", "a", "b", "c", "</async>"]
    assert [decoded.get((1, step)) for step in range(3, 8)] == first
    assert [decoded.get((2, step)) for step in range(7, 10)] == ["<async>", "d", "</async>"]


def test_the_answer_reads_as_its_document() -> None:
    answer = seen().answer
    assert answer is not None
    text = {word: VOCABULARY.token_text(token) for word, token in IDS.items()}
    assert answer.text == "".join(text[word] for word in "AabcBdC")
    forced = request().forced
    assert forced is not None
    assert answer.document == decode_document(VOCABULARY, forced)
    assert (answer.finish_reason, answer.trace.kind.value) == ("stop", "replayed")
    assert answer.usage == {"prompt_tokens": 3, "completion_tokens": 18, "total_tokens": 21}
    assert answer.trace.num_content_tokens == 7
    assert answer.trace.parallelism == 7 / 11


def test_events_come_in_the_order_in_which_things_happened() -> None:
    events: list[StreamEvent] = list(TorchEngine(MODEL, captures=False).stream(request()))
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
