from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.engines.request import SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.errors import InputError
from pasta_lm.interpreter import trace as metrics
from pasta_lm.interpreter.trace import Kind, Role, SyncRecord, ThreadRecord, TokenRecord, Trace
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, SYNC, closing_piece
from pasta_lm.learn.annotate.filters import critical_path, speedup
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.view.page import to_perfetto
from pasta_lm.view.run_data import critical_tokens, speed_figures


@pytest.fixture
def trace() -> Trace:
    """Return ``A [t: b] | C``, as an engine could have recorded it."""
    tokens = [
        TokenRecord(0, 5, "A", Role.CONTENT, -1, 0.1, False, 0, 3, 3, 1),
        TokenRecord(0, 6, "t", Role.TOPIC, 0, 0.2, False, 1, 4, 4, 2),
        TokenRecord(0, 7, "", Role.TAG, 1, 0.3, False, 2, 5, 5, 3, closing_piece(1), forks=1),
        TokenRecord(1, 8, "", Role.TAG, 1, 0.3, True, 2, 6, 6, 3, ASYNC_OPEN),
        TokenRecord(1, 9, "b\u00e9\n\U0001f600", Role.CONTENT, 2, 0.4, False, 3, 7, 7, 4),
        TokenRecord(1, 4, "", Role.TAG, 3, 0.5, False, 4, 8, 8, 5, ASYNC_CLOSE),
        TokenRecord(0, 3, "", Role.TAG, 2, 0.4, False, 4, 9, 16, 5, SYNC),
        TokenRecord(0, 5, "C", Role.CONTENT, 4, 0.6),  # decoded last, never fed
    ]
    threads = [
        ThreadRecord(0, None, None, None, 5, 0, 4, "stop"),
        ThreadRecord(1, 0, 'a "topic"', 10, 3, 2, 4, "stop"),
    ]
    return Trace(
        kind=Kind.REPLAYED, model="tiny", engine="torch", strategy="pasta", positions="predict",
        num_prompt_tokens=3, finish_reason="stop", forward_passes=5, critical_path=5, num_illegal=2,
        prefill_s=0.1, wall_s=0.6, step_s=[0.2, 0.3, 0.4, 0.5, 0.6], threads=threads, tokens=tokens,
        syncs=[SyncRecord(0, [1], 4, 16)],
    )  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
def test_a_trace_survives_being_written(trace: Trace, indent: int | None) -> None:
    assert Trace.from_json(trace.to_json(indent)) == trace


def test_a_trace_without_tokens_survives_being_written() -> None:
    empty = Trace(kind=Kind.SIMULATED)
    assert Trace.from_json(empty.to_json()) == empty
    assert empty.parallelism == 1.0
    assert (list(empty.in_reading_order()), critical_tokens(empty)) == ([], [])


def test_the_derived_figures_are_in_the_file_for_readers_without_this_code(trace: Trace) -> None:
    data = json.loads(trace.to_json())
    assert data["parallelism"] == trace.parallelism == 2 / 5, "the last token is never fed"
    assert data["num_content_tokens"] == trace.num_content_tokens == 3
    assert data["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    assert data["kind"] == "replayed"


def test_the_tokens_of_a_block_stand_behind_the_token_that_forks_it(trace: Trace) -> None:
    order = [trace.tokens.index(token) for token in trace.in_reading_order()]
    assert order == [0, 1, 2, 3, 4, 5, 6, 7]
    trace.tokens[2].forks = None  # Skeleton-of-Thought: no token forks a block
    order = [trace.tokens.index(token) for token in trace.in_reading_order()]
    assert order == [0, 1, 2, 6, 7, 3, 4, 5]


def test_the_critical_tokens_go_through_the_block_that_a_sync_waits_for(trace: Trace) -> None:
    assert [token.text or token.tag for token in reversed(critical_tokens(trace))] == [
        "A", "t", closing_piece(1), ASYNC_OPEN, "b\u00e9\n\U0001f600", ASYNC_CLOSE
    ]  # fmt: skip
    trace.tokens[5].depth = None
    assert [token.text or token.tag for token in critical_tokens(trace)][:2] == [
        SYNC, "b\u00e9\n\U0001f600"
    ]  # fmt: skip


def test_a_trace_without_the_later_facts_is_read(trace: Trace) -> None:
    data = json.loads(trace.to_json())
    for token in data["tokens"]:
        del token["tag"], token["forks"]
    assert {token.tag for token in Trace.from_json(json.dumps(data)).tokens} == {None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the trace is not JSON"),
        ("[1, 2]", r"not a trace of version 1 \(found version: None\)"),
        ('{"version": 99}', "found version: 99"),
        ('{"version": 1}', "the trace is damaged: 'kind'"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_fault(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Trace.from_json(text)


@pytest.mark.parametrize("damage", ["kind", "tokens", "threads", "syncs", "step_s"])
def test_a_damaged_trace_is_refused(trace: Trace, damage: str) -> None:
    data = json.loads(trace.to_json())
    data[damage] = [{"wrong": 1}] if isinstance(data[damage], list) else "wrong"
    if damage == "step_s":
        del data[damage]
    with pytest.raises(InputError, match="the trace is damaged"):
        Trace.from_json(json.dumps(data))


def test_perfetto_gets_a_slice_for_every_fed_token_on_the_named_track_of_its_thread(
    trace: Trace,
) -> None:
    events = json.loads(to_perfetto(trace))["traceEvents"]
    assert all({"ph", "name", "pid", "tid"} <= event.keys() for event in events)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "main", 1: '1 a "topic"'}
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 7
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices)
    for thread in (0, 1):
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == thread)
        for (_, end), (start, _) in zip(own, own[1:], strict=False):
            assert end <= start + 1e-6, "a thread feeds one token at a time"


def test_every_arrow_has_a_beginning_an_end_and_goes_forward(trace: Trace) -> None:
    events = json.loads(to_perfetto(trace))["traceEvents"]
    arrows: dict[tuple[str, object], dict[str, dict[str, float]]] = {}
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault((event["cat"], event["id"]), {})[event["ph"]] = event
    assert {category for category, _ in arrows} == {"fork", "sync"}
    for ends in arrows.values():
        assert set(ends) == {"s", "f"}
        assert ends["s"]["ts"] <= ends["f"]["ts"]
        assert ends["s"]["tid"] != ends["f"]["tid"]
        assert ends["f"]["bp"] == "e"


TEXTS = st.integers(1, 6).map(lambda number: Text(" word" * number))
BLOCKS = st.builds(lambda text: Block("a topic", 1, (text,)), TEXTS)
ITEMS = st.lists(st.one_of(TEXTS, BLOCKS, st.just(Sync())), min_size=1, max_size=6)


@given(ITEMS)
def test_the_critical_path_is_that_of_the_trace(items: list[Text | Block | Sync]) -> None:
    joined = False
    legal: list[Text | Block | Sync] = [Text("x")]
    for item in items:  # a sync for nothing is never fed
        if not isinstance(item, Sync) or joined:
            legal.append(item)
            joined = not isinstance(item, Sync) and (joined or isinstance(item, Block))
    document = Document(tuple(legal))
    together = ScriptedEngine(document).answer("p").trace
    alone = ScriptedEngine(document.without_tags()).answer("p").trace
    assert critical_path(document) == together.critical_path
    found = metrics.theoretical_speedup(alone.critical_path, together.critical_path)
    assert speedup(document) == pytest.approx(found)


@given(st.integers(0, 9), st.integers(1, 10), st.sampled_from([(), ("3",), ("none",)]))
def test_one_thread_has_a_speedup_of_exactly_one(
    num_words: int, max_tokens: int, stop: tuple[str, ...]
) -> None:
    text = " ".join(map(str, range(num_words)))
    params = SamplingParams(max_tokens=max_tokens, stop=stop)
    answer = ScriptedEngine(parse(text)).answer("p", params)
    assert answer.trace.parallelism == AnswerRecord.of(answer).parallelism == 1.0
    assert answer.trace.speedup_over_text(len(answer.text.split())) == 1.0
    assert speed_figures(answer.trace, len(answer.text.split()))["theoretical_speedup"] == 1


@given(st.integers(1, 30))
def test_the_last_token_of_a_cut_thread_counts_on_neither_side(max_tokens: int) -> None:
    document = Document((Text("a b"), Block("t", 1, (Text(" c d e f"),)), Text(" g h i j")))
    trace = ScriptedEngine(document).answer("p", SamplingParams(max_tokens=max_tokens)).trace
    fed = [one for one in trace.tokens if one.role is Role.CONTENT and one.slot is not None]
    if len(trace.threads) > 1:
        assert trace.parallelism == len(fed) / trace.critical_path
    else:
        assert trace.parallelism == 1.0


def test_an_answer_that_fed_no_token_counts_as_a_path_of_one() -> None:
    assert metrics.parallelism(0, 0) == 0.0
    assert metrics.parallelism(1, 0) == 1.0
    assert metrics.theoretical_speedup(0, 0) == 1.0
    assert metrics.theoretical_speedup(9, 0) == 9.0
    assert metrics.parallelism(3, 2, is_parallel=False) == 1.0
    assert metrics.speedup_over_text(3, 2, is_parallel=False) == 1.0
    assert metrics.speedup_over_text(9, 2, is_parallel=True, is_cut=True) == 4.0
