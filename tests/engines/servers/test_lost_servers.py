"""Several servers, some of which are busy, slow, killed or back: nothing is lost, nothing mixed."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence, Set
from contextlib import closing
from dataclasses import replace

import pytest

from pasta_lm.engines.request import Failed, Finished, Request, SamplingParams
from pasta_lm.engines.servers.client import StockServer
from pasta_lm.engines.servers.completions import CompletionsEngine, ServedModel, connect
from pasta_lm.engines.servers.dialects import DIALECTS, KEY_ENV
from pasta_lm.errors import (
    BrokenAnswerError,
    EndpointError,
    ModelError,
    PastaError,
    RemoteError,
    VocabularyError,
)
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import Document, parse
from pasta_lm.models.encoded import EncodedDocument
from tests.fakes.stock_server import Draw, NextToken, StockFaults, StockTestServer
from tests.learn.data.examples import BARE, EOS
from tests.stock import QUICK, engine_at, playing, spelled
from tests.taught import TAUGHT

NUM = 12


def document(number: int) -> Document:
    return parse(
        f'{number}<promise topic="one" tokens="1"/><async> {number} 1</async> and '
        f'<promise topic="two" tokens="1"/><async> {number} 2 2</async><sync/> so {number}.'
    )


def prompt(number: int) -> tuple[int, ...]:
    return (5, 6, number)


PAIRS: list[tuple[Sequence[int], EncodedDocument]] = [
    (prompt(number), BARE.encode_document(document(number))) for number in range(NUM)
]
PLAY = playing(BARE, EOS, *PAIRS)


def serving(
    faults: StockFaults | None = None, *, next_token: NextToken = PLAY, port: int = 0
) -> StockTestServer:
    return StockTestServer(next_token, EOS, faults=faults, port=port)


def engine(*servers: StockTestServer, num_again: int = 0) -> CompletionsEngine:
    return engine_at(*servers, vocabulary=BARE, eos_id=EOS, num_again=num_again)


def asked(number: int, n: int = 1) -> Request:
    plain = PositionStrategy.CONTINUE
    params = SamplingParams(n=n)
    return Request(prompt=prompt(number), params=params, positions=plain, join=Join.RECOMPUTE)


ALL = [asked(number) for number in range(NUM)]


def documents(asking: CompletionsEngine, requests: Sequence[Request]) -> list[Document]:
    return [answer.document for samples in asking.generate(requests) for answer in samples]


@pytest.mark.parametrize("retry_after_s", [None, 0.05])
@pytest.mark.parametrize("most_at_once", [1, 3])
def test_a_storm_of_429_delays_answers_and_loses_none(
    most_at_once: int, retry_after_s: float | None
) -> None:
    storm = StockFaults(
        num_refused=6, most_at_once=most_at_once, retry_after_s=retry_after_s, pause_s=0.003
    )
    with serving(storm) as server:
        assert documents(engine(server), ALL) == [document(number) for number in range(NUM)]
        assert server.num_refused >= 6


@pytest.mark.parametrize("retry_after_s", [None, 0.05, 3600.0])
def test_a_server_that_only_answers_429_is_given_up(retry_after_s: float | None) -> None:
    always = StockFaults(num_refused=10**9, retry_after_s=retry_after_s)
    with serving(always) as server:
        busy = StockServer(server.url, policy=replace(QUICK, max_busy_s=0.3))
        asking = CompletionsEngine([busy], ServedModel(BARE, frozenset({EOS})), checks=False)
        with pytest.raises(RemoteError, match="the last: HTTP 429"):
            asking.generate(ALL[:3])


def test_a_response_and_its_samples_are_spread_and_each_stays_on_one_server() -> None:
    with serving() as one, serving() as other:
        found = documents(engine(one, other), [*ALL, asked(0, n=4)])
        assert found == [*(document(number) for number in range(NUM)), *[document(0)] * 4]
        seen = defaultdict(set)
        for server in (one, other):
            for ids in server.prompts:
                seen[ids[2]].add(server)
    assert all(len(seen[number]) == 1 for number in range(1, NUM))
    assert {server for number in range(1, NUM) for server in seen[number]} == {one, other}


def test_a_server_that_is_gone_leaves_its_responses_to_the_other_one() -> None:
    with serving() as gone, serving() as good:
        asking = engine(gone, good)
        asking.check()
        gone.__exit__()
        assert documents(asking, ALL) == [document(number) for number in range(NUM)]
        assert [server.is_up for server in asking.servers] == [False, True]
        assert all(server.num_in_flight == 0 for server in asking.servers)


def test_what_a_killed_server_had_begun_is_decoded_anew_where_nobody_saw_it() -> None:
    with serving(StockFaults(dies_after=15)) as dying, serving() as good:
        found = documents(engine(dying, good, num_again=2), ALL)
    assert found == [document(number) for number in range(NUM)]


def test_a_killed_server_ends_its_own_responses_alone() -> None:
    with serving(StockFaults(dies_after=20)) as dying, serving() as good:
        asking = engine(dying, good)
        broken, answered = 0, {}
        with closing(asking) as flight:
            numbers = {flight.submit(one): one.prompt[2] for one in ALL}
            while flight.has_work:
                for number, event in flight.step():
                    if isinstance(event, Finished):
                        answered[numbers[number]] = event.answer.document
                    elif isinstance(event, Failed):
                        assert isinstance(event.error, BrokenAnswerError)
                        text = document(numbers[number]).plain_text
                        assert len(event.error.text) < len(text)
                        broken += 1
    assert broken > 0
    assert broken + len(answered) == NUM
    assert answered == {number: document(number) for number in answered}


def test_a_server_that_is_back_takes_responses_again() -> None:
    back, held = threading.Event(), threading.Event()

    def wait(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        if ids[2] == 1:  # this response keeps the good server busy
            held.set()
            back.wait(30)
        return PLAY(ids, barred, draw)

    with serving() as gone, serving(next_token=wait) as good:
        asking = engine(gone, good)
        asking.check()
        gone.__exit__()
        with closing(asking) as flight:
            flight.submit(asked(1))
            assert held.wait(30)
            with serving(port=gone.server_port) as again:
                while not asking.servers[0].is_up:
                    back.wait(0.02)
                flight.submit(asked(2))
                left = 1
                while left:
                    left -= sum(isinstance(event, Finished) for _, event in flight.step())
                assert again.prompts, "the one that is back had fewer responses"
                back.set()
                while flight.has_work:
                    flight.step()


def test_an_aborted_request_leaves_the_others() -> None:
    with serving(StockFaults(pause_s=0.01)) as server:
        asking = engine(server)
        found = {}
        with closing(asking) as flight:
            numbers = [flight.submit(one) for one in ALL[:4]]
            flight.step()
            flight.cancel(numbers[1])
            flight.cancel(12345)
            while flight.has_work:
                for number, event in flight.step():
                    assert number != numbers[1]
                    if isinstance(event, Finished):
                        found[number] = event.answer.document
        assert found == {numbers[place]: document(place) for place in (0, 2, 3)}
        assert asking.servers[0].num_in_flight == 0


VOCABULARY, OTHER = TAUGHT["byte_level"], TAUGHT["llama_2_like"]
END_ID = 1
MODEL = ServedModel(VOCABULARY, frozenset({END_ID}), max_position=4095)
TAUGHT_MODEL = playing(VOCABULARY, END_ID)


def untaught(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
    return min({5, 6} - barred)


def unbarred(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
    return TAUGHT_MODEL(ids, frozenset(), draw)


def holding(next_token: NextToken = TAUGHT_MODEL, **settings: object) -> StockTestServer:
    settings = {"tokenize": spelled(VOCABULARY), **settings}
    return StockTestServer(next_token, END_ID, **settings)  # type: ignore[arg-type]


def checking(*servers: StockTestServer, **settings: object) -> CompletionsEngine:
    addresses = ",".join(server.url for server in servers)
    return CompletionsEngine(connect(addresses), MODEL, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_that_holds_the_model_passes_and_its_kind_is_found(dialect: str) -> None:
    with holding(dialect=dialect) as server:
        asking = checking(server)
        asking.check()
    (known,) = asking.servers
    assert known.is_up
    assert known.dialect == DIALECTS[dialect]


@pytest.mark.parametrize(
    ("next_token", "settings", "error", "reason"),
    [
        (TAUGHT_MODEL, {"tokenize": spelled(OTHER)}, VocabularyError, "has another tokenizer"),
        (TAUGHT_MODEL, {"tokenize": VOCABULARY.encode_prompt}, VocabularyError, "has other tags"),
        (untaught, {}, ModelError, "was not taught the tags"),
        (unbarred, {}, EndpointError, "which the request barred"),
    ],
)
def test_a_server_that_holds_another_model_is_refused(
    next_token: NextToken, settings: dict[str, object], error: type[PastaError], reason: str
) -> None:
    with holding(next_token, **settings) as server, holding() as good:
        asking = checking(good, server)
        with pytest.raises(error, match=reason) as caught:
            asking.check()
    assert server.url in caught.value.message
    assert caught.value.hint


def test_a_server_without_a_page_that_encodes_is_checked_by_what_it_decodes() -> None:
    with holding(tokenize=None) as server:
        checking(server).check()
    with holding(untaught, tokenize=None) as server, pytest.raises(ModelError, match="not taught"):
        checking(server).check()


def test_a_server_of_no_known_kind_is_to_be_named() -> None:
    with holding() as server:
        models = [{"id": "m", "owned_by": "pasta-lm"}]
        server.page = lambda path: (200, {"data": models})  # type: ignore[method-assign]
        with pytest.raises(EndpointError, match="of which kind it is, but 'pasta-lm'"):
            checking(server).check()
        named = CompletionsEngine(connect(server.url, dialect="vllm"), MODEL)
        named.check()


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with holding(api_key="secret") as server:
        for wrong in ("", "wrong"):
            monkeypatch.setenv(KEY_ENV, wrong)
            with pytest.raises(EndpointError, match="HTTP 401") as caught:
                checking(server).check()
            assert KEY_ENV in (caught.value.hint or "")
        monkeypatch.setenv(KEY_ENV, "secret")
        checking(server).check()


def test_the_context_that_a_server_says_bounds_requests() -> None:
    with holding(context=100) as one, holding(context=200) as other:
        asking = checking(one, other)
        assert asking.max_prompt_tokens == 4095
        asking.check()
        assert asking.max_prompt_tokens == 99
    unbounded = CompletionsEngine(asking.servers, replace(MODEL, max_position=None))
    assert unbounded.max_prompt_tokens == 99


def test_one_server_that_answers_is_enough() -> None:
    with holding() as gone, holding() as good:
        asking = checking(gone, good)
        gone.__exit__()
        asking.check()
        assert [server.is_up for server in asking.servers] == [False, True]
    with pytest.raises(RemoteError, match="no answer after"):
        checking(gone, good).check()
