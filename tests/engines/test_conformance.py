"""Every engine passes the conformance suite."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.engines.live_thread import StopWatch
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.reading_order import ReadingOrder
from pasta_lm.engines.request import Request, SamplingParams, TextDelta
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.errors import InputError, RequestError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import Block, Document, Item, parse
from pasta_lm.language.events import Sync, Text
from tests.architectures import loaded
from tests.engines.conformance import *  # noqa: F403
from tests.engines.conformance import Opener, Subject
from tests.engines.rows.hybrids import hybrid
from tests.fakes.stock_server import StockTestServer
from tests.learn.data.examples import BARE, EOS
from tests.stock import engine_at, playing


def open_scripted(document: Document) -> Subject:
    engine = ScriptedEngine(document)

    def request(params: SamplingParams, forks: bool) -> Request:
        return Request(prompt=engine.request("a prompt").prompt, params=params, forks=forks)

    return Subject(engine, request, assert_empty=lambda: None)  # it keeps nothing between calls


@cache
def torch_engine(model: LoadedModel) -> TorchEngine:
    return TorchEngine(model, pool_tokens=8192, captures=False)


def open_torch(document: Document, model: LoadedModel | None = None) -> Subject:
    model = model or loaded("llama")
    engine, ways = torch_engine(model), {"positions": model.positions, "join": model.join}

    def request(params: SamplingParams, forks: bool) -> Request:
        asked = document if forks else document.without_tags()
        forced = model.vocabulary.encode_document(asked)
        return Request(prompt=(5, 6, 7), params=params, forks=forks, forced=forced, **ways)

    def assert_empty() -> None:
        assert not engine.has_work
        assert engine.pool.num_free_pages == engine.pool.num_pages
        assert not engine.scheduler.running
        assert not engine.scheduler.waiting
        assert not engine.unread
        assert not (engine.rows and engine.rows.caches)

    return Subject(engine, request, assert_empty)


def open_rows(document: Document) -> Subject:
    return open_torch(document, hybrid("lfm2"))


@cache
def stock_server(document: Document) -> StockTestServer:
    """Return a server that decodes a document behind one prompt, and its plain text behind another.

    It serves until the tests end, in daemon threads.
    """
    texts = [((5, 6, 7), document), ((5, 6, 8), document.without_tags())]
    answers = [(prompt, BARE.encode_document(text)) for prompt, text in texts]
    return StockTestServer(playing(BARE, EOS, *answers), EOS).__enter__()


def open_completions(document: Document) -> Subject:
    engine = engine_at(stock_server(document), vocabulary=BARE, eos_id=EOS)

    def request(params: SamplingParams, forks: bool) -> Request:
        prompt, positions = (5, 6, 7 if forks else 8), PositionStrategy.CONTINUE
        join = Join.RECOMPUTE
        return Request(prompt=prompt, params=params, forks=forks, positions=positions, join=join)

    def assert_empty() -> None:
        assert not any(server.num_in_flight for server in engine.servers)

    return Subject(engine, request, assert_empty)


OPENERS = {
    "scripted": open_scripted,
    "torch": open_torch,
    "rows": open_rows,
    "completions": open_completions,
}


@pytest.fixture(params=OPENERS.values(), ids=OPENERS.keys())
def opened(request: pytest.FixtureRequest) -> Opener:
    opener: Opener = request.param
    return opener


# The worked example of the semantics: eleven passes after the prefill.
GOLDEN = parse(
    'A<promise topic="x" tokens="1"/><async>a b c</async>B'
    '<promise topic="y" tokens="1"/><async>d</async><sync/>C'
)

TEXTS = st.text(alphabet="ab \n", min_size=1, max_size=12).map(Text)
BLOCKS = st.builds(
    Block, st.sampled_from(["x", "two words"]), st.integers(1, 64),
    st.lists(TEXTS, max_size=2).map(tuple),
)  # fmt: skip
DOCUMENTS = st.lists(TEXTS | BLOCKS | st.just(Sync()), max_size=7).map(
    lambda items: Document(tuple(items))
)


def test_blocks_within_blocks_are_played() -> None:
    inner = Block("inner", 1, (Text("deep"),))
    nested = Document((Text("a"), Block("outer", 2, (Text("b"), inner, Text("c")))))
    answer = ScriptedEngine(nested).answer()
    assert answer.document == nested
    assert [lane.parent for lane in answer.trace.threads] == [None, 0, 1]


def test_lengths_that_nobody_knows_are_counted_in_words() -> None:
    document = parse('<async topic="x">one two three four</async>', "annotator")
    (block,) = ScriptedEngine(document).script.blocks
    assert block.units == 1


@given(DOCUMENTS)
def test_a_request_may_bring_an_answer_of_its_own(document: Document) -> None:
    engine = ScriptedEngine(GOLDEN)
    request = engine.request("a prompt", SamplingParams(max_tokens=10_000))
    (answer,) = engine.generate([engine.replay(request, document)])[0]
    # A sync that waits for nothing is no part of what a model could have decoded, but is harmless.
    assert (answer.finish_reason, answer.trace.num_illegal) == ("stop", 0)
    assert answer.trace.threads == ScriptedEngine(document).answer("a prompt").trace.threads
    assert answer.program == document.program
    sequential = engine.replay(replace(request, forks=False), document)
    assert engine.generate([sequential])[0][0].program == document.without_tags().program


def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(InputError, match="no topic"):
        ScriptedEngine(Document((Block(" ", 1),)))
    engine = ScriptedEngine(GOLDEN)
    with pytest.raises(RequestError, match="empty"):
        engine.generate([replace(engine.request("p"), prompt=())])


letters = st.text("ab", max_size=12)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def fed(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """Return what a watch released of text in pieces, and whether it found a stop."""
    watch = StopWatch(stops)
    released = "".join(watch.feed(piece) for piece in pieces)
    has_matched = watch.has_matched
    return released + watch.flush(), has_matched


@pytest.mark.parametrize(
    ("stops", "text", "released"),
    [
        (["END"], "one END two", "one "),
        (["END"], "one EN", "one EN"),  # what never became a stop is text
        (["aab"], "aaab", "a"),  # a stop may begin inside what looked like one
        (["abc", "b"], "xabc", "xa"),  # the first to be complete
        (["bc", "abc"], "xabc", "x"),  # of two complete at once, the longer
        (["\n\n"], "a\nb\n\nc", "a\nb"),
        ([], "anything", "anything"),
    ],
)
def test_what_stands_before_the_stop_is_released(
    stops: list[str], text: str, released: str
) -> None:
    for pieces in ([text], list(text)):
        assert fed(stops, pieces)[0] == released


@given(stop_lists, st.lists(letters, max_size=6))
def test_stops_do_not_depend_on_how_the_text_was_cut(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    assert fed(stops, pieces) == fed(stops, list(text)) == fed(stops, [text])


@given(stop_lists, st.lists(letters, max_size=6))
def test_no_stop_is_ever_released(stops: list[str], pieces: list[str]) -> None:
    released, has_matched = fed(stops, pieces)
    assert has_matched == any(stop in "".join(pieces) for stop in stops)
    assert not any(stop in released for stop in stops)
    assert "".join(pieces).startswith(released)


@given(stop_lists, letters)
def test_only_what_may_yet_become_a_stop_is_held_back(stops: list[str], text: str) -> None:
    watch = StopWatch(stops)
    released = watch.feed(text)
    if watch.has_matched:
        return
    held = text[len(released) :]
    assert released + held == text
    assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_flush_forgets_what_was_held_back() -> None:
    watch = StopWatch(["ab"])
    assert watch.feed("a") == ""
    assert watch.flush() == "a"
    assert watch.feed("b") == "b", "a tag stood between them"


WORDS = ("a", " bc", " d.", "\n", " <sync", "/>", " &lt;promise", " <b>", " &", " \u00e9\U0001f35d")


def random_items(rng: random.Random, depth: int) -> tuple[Item, ...]:
    """Return random text, blocks and syncs; blocks may nest."""
    items: list[Item] = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(["text", "text", "block", "sync"])
        if kind == "block" and depth:
            items.append(Block("topic & more", None, random_items(rng, depth - 1)))
        elif kind == "sync" and depth == 2 and items and isinstance(items[-1], Block):
            items.append(Sync())
        else:
            items.append(Text("".join(rng.choices(WORDS, k=rng.randint(1, 6)))))
    return tuple(items)


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("keeps_tags", [False, True])
def test_the_pieces_make_up_the_answer_whatever_happens(seed: int, keeps_tags: bool) -> None:
    rng = random.Random(seed)
    engine = ScriptedEngine(Document(random_items(rng, 2)))
    params = SamplingParams(
        max_tokens=rng.choice([5, 20, 1000]), max_threads=rng.choice([None, 1, 2]),
        max_tokens_per_thread=rng.choice([None, 4]),
        stop=tuple(rng.sample(["d.", "sync", "\u00e9", "b>", "a bc"], rng.choice([0, 0, 1, 2]))),
    )  # fmt: skip
    request = engine.request("ask", params)
    answer = engine.generate([request])[0][0]
    order, shown = ReadingOrder(keeps_tags=keeps_tags), ""
    for events in engine.steps(replace(request)):
        shown += order.feed(events)
    assert shown == (answer.program if keeps_tags else answer.text)


def test_text_is_passed_on_as_soon_as_its_turn_comes() -> None:
    script = Document(
        (Text("one two"), Block("b", None, (Text(" three four"),)), Text(" five six"))
    )
    engine = ScriptedEngine(script)
    order, lateness = ReadingOrder(), []
    decoded = shown = ""
    for events in engine.steps(engine.request("ask")):
        shown += order.feed(events)
        decoded += "".join(one.text for one in events if isinstance(one, TextDelta))
        lateness.append(len(decoded) - len(shown))
    assert lateness[:3] == [0, 0, 0]
    assert max(lateness) <= len(" five six"), "only what stands behind the block is held"
    assert shown == script.plain_text
