"""The engine on stock servers: its answers, what it refuses, and servers that fail."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence, Set
from contextlib import closing
from dataclasses import replace
from itertools import islice, pairwise, product
from typing import Any

import pytest

from pasta_lm import StructuredOutputs
from pasta_lm.engines.request import Failed, Finished, Request, SamplingParams, ThreadStarted
from pasta_lm.engines.servers.cluster import StockServer
from pasta_lm.engines.servers.completions import CompletionsEngine, ServedModel, connect
from pasta_lm.engines.servers.dialects import DIALECTS, KEY_ENV, TokenRequest
from pasta_lm.engines.servers.streamed_response import MAX_ASKED_AGAIN, seed_of
from pasta_lm.errors import (
    BrokenAnswerError,
    EndpointError,
    ModelError,
    PastaError,
    RemoteError,
    RequestError,
    UsageError,
    VocabularyError,
)
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Role
from pasta_lm.language.document import Document, parse
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, MAX_UNITS, PROMISE_OPEN, closing_piece
from pasta_lm.models.encoded import EncodedDocument
from tests.fakes.stock_server import Draw, NextToken, StockFaults, StockTestServer
from tests.learn.data.examples import BARE, EOS
from tests.plain_sequences import plain_sequences
from tests.programs import Program, random_program
from tests.stock import QUICK, engine_at, playing, spelled, tokens_by_thread
from tests.taught import TAUGHT

PROMPT = (5, 6, 7)
MODEL = ServedModel(BARE, frozenset({EOS}))
DOCUMENT = parse(
    'Go. <promise topic="one" tokens="1"/><async>1 1 1 1</async> and '
    '<promise topic="two" tokens="1"/><async>2 2</async><sync/> So '
    '<promise topic="three" tokens="1"/><async>3 3 3</async> on<sync/> End.'
)
ANSWER = BARE.encode_document(DOCUMENT)
FORM = StructuredOutputs(regex="a+")


def asked(prompt: Sequence[int] = PROMPT, **params: object) -> Request:
    place, join = PositionStrategy.CONTINUE, Join.RECOMPUTE
    return Request(prompt=prompt, params=SamplingParams(**params), positions=place, join=join)  # type: ignore[arg-type]


def serving(*answers: tuple[Sequence[int], EncodedDocument], **settings: Any) -> StockTestServer:
    return StockTestServer(playing(BARE, EOS, *(answers or ((PROMPT, ANSWER),))), EOS, **settings)


def engine(*servers: StockTestServer, **settings: Any) -> CompletionsEngine:
    return engine_at(*servers, vocabulary=BARE, eos_id=EOS, **settings)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_is_the_same_in_every_dialect(dialect: str) -> None:
    with serving(dialect=dialect) as server:
        ((answer,),) = engine(server).generate([asked()])
    assert answer.document == DOCUMENT
    assert (answer.finish_reason, answer.trace.num_illegal) == ("stop", 0)
    assert answer.trace.forward_passes == answer.trace.critical_path
    assert answer.trace.num_recomputed > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_setting_of_a_server_or_a_model_s_files_changes_what_is_sampled(dialect: str) -> None:
    body = DIALECTS[dialect].body("m", TokenRequest(prompt=PROMPT, max_tokens=4))
    body = body.get("sampling_params", body)
    penalty = body.get("repeat_penalty", body.get("repetition_penalty"))
    assert (penalty, body["presence_penalty"], body["frequency_penalty"]) == (1, 0, 0)
    order = ["top_k", "temperature", "min_p", "top_p"]  # that of ``draw``
    own = {"samplers": order, "dynatemp_range": 0, "mirostat": 0}
    assert (own.items() <= body.items()) is (dialect == "llama.cpp")
    assert (body["temperature"], body["top_p"], body["min_p"]) == (0, 1, 0)
    assert body["top_k"] < 1


def test_biases_keep_the_odds_of_favoured_tokens_in_the_range_that_servers_take() -> None:
    bias, sets = {1: 100.0, 2: -100.0, 3: 5.0, 4: 9.0}, {"barred": [3], "favoured": [0, 1, 2]}
    request = TokenRequest(prompt=PROMPT, max_tokens=1, bias=bias)
    assert request.biases == bias
    assert replace(request, **sets).biases == {0: 0, 1: 100, 2: -100, 3: -100}


@pytest.mark.parametrize("num_programs", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_random_programs_come_back_token_by_token(num_programs: int) -> None:
    rng = random.Random("stock")
    drawn = enumerate(random_program(rng, BARE) for _ in range(num_programs))
    programs = [Program((number, *program.prompt), program.answer) for number, program in drawn]
    pairs = [(program.prompt, program.answer) for program in programs]
    with serving(*pairs) as one, serving(*pairs) as other:
        # The mask would refuse a sync without a block, and a block without a word.
        requests = [asked(program.prompt, mask=False) for program in programs]
        answers = engine(one, other).generate(requests)
        shares = len(one.prompts), len(other.prompts)
    assert min(shares) > 0, "responses are spread over the servers"
    opening, closing = BARE.piece_id(ASYNC_OPEN), BARE.piece_id(ASYNC_CLOSE)
    for program, (answer,) in zip(programs, answers, strict=True):
        blocks = [[opening, *block, closing] for block in program.answer.blocks]
        expected = dict(enumerate([list(program.answer.main), *blocks]))
        assert tokens_by_thread(answer) == expected


def test_a_fork_opens_a_completion_while_the_one_of_main_goes_on() -> None:
    with serving() as server:
        engine(server).generate([asked()])
        prompts = [tuple(prompt) for prompt in server.prompts]
    sequences = plain_sequences(BARE, PROMPT, ANSWER)
    syncs = [i for i, token in enumerate(ANSWER.main) if token == BARE.piece_id("<sync/>")]
    joins = {sequences[0, index] for index in syncs}
    assert set(prompts) == {PROMPT, *joins, *(sequences[block, 0] for block in (1, 2, 3))}
    assert len(prompts) == 6, "one completion for each block, and main's three"
    joined = [prompt for prompt in prompts if prompt in joins]
    assert all(later[: len(sooner)] == sooner for sooner, later in pairwise(joined))


def test_samples_have_seeds_of_their_own() -> None:
    with serving() as server:
        (answers,) = engine(server).generate([asked(n=3, temperature=0.5)])
    assert [answer.document for answer in answers] == [DOCUMENT] * 3
    seeds = {seed_of(0, *key) for key in product((0, 1), ((), (1,)), (0, 4), (0, 1))}
    assert len(seeds) == 16
    assert max(seeds) < 2**31


def test_an_illegal_token_is_asked_for_again_with_it_barred_and_another_seed() -> None:
    legal = playing(BARE, EOS, (PROMPT, ANSWER))
    closing = BARE.piece_id(ASYNC_CLOSE)
    seeds: list[int] = []

    def next_token(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        if ids[-1] == BARE.piece_id(ASYNC_OPEN):
            seeds.append(draw.seed)
            if closing not in barred:
                return closing  # a block must not be empty
        return legal(ids, barred, draw)

    with StockTestServer(next_token, EOS) as server:
        ((answer,),) = engine(server).generate([asked()])
    assert answer.document == DOCUMENT
    assert len(seeds) == len({*seeds}) == 6, "twice for each block"


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama.cpp"])
def test_a_full_topic_is_ended_by_the_closing_piece_that_the_server_likes(dialect: str) -> None:
    opening, word = BARE.piece_id(PROMISE_OPEN), ANSWER.main[1]
    closing = {BARE.piece_id(closing_piece(units)) for units in range(1, MAX_UNITS + 1)}
    asked_for: list[Set[int]] = []

    def next_token(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        if draw.favoured:
            asked_for.append(draw.favoured)
            return max(draw.favoured & closing)
        if closing.isdisjoint(ids):
            return word if opening in ids else opening
        if BARE.piece_id(ASYNC_OPEN) not in ids:
            return EOS
        return word if ids[-1] != word else BARE.piece_id(ASYNC_CLOSE)

    with StockTestServer(next_token, EOS, dialect=dialect) as server:
        ((answer,),) = engine(server).generate([asked()])
    assert asked_for == [closing]
    (block,) = answer.document.blocks
    assert block.units == MAX_UNITS
    topic = [one for one in answer.trace.tokens_of(0) if one.role is Role.TOPIC]
    assert len(topic) == Limits().max_topic_tokens
    assert answer.trace.num_illegal == 0


def test_a_server_that_cannot_bar_tokens_ends_in_a_counted_malformed_one() -> None:
    closing = BARE.piece_id(ASYNC_CLOSE)
    with StockTestServer(lambda ids, *_: EOS if ids[-1] == closing else closing, EOS) as server:
        ((answer,),) = engine(server).generate([asked()])
        assert len(server.prompts) <= MAX_ASKED_AGAIN + 2
    assert (answer.trace.num_illegal, answer.text) == (1, "")


@pytest.mark.parametrize("params", [{}, {"mask": False}, {"structured_outputs": FORM}])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_ignored_end_of_text_ends_no_answer(dialect: str, params: dict[str, object]) -> None:
    has_form = "structured_outputs" in params and bool(pytest.importorskip("llguidance"))
    a, b = VOCABULARY.encode_text("ab")

    def next_token(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        liked = {b} if len(ids) == len(PROMPT) + 2 else {a, END_ID}  # the form has no b
        return min(draw.favoured or liked - barred)

    with StockTestServer(next_token, END_ID, dialect=dialect) as server:
        asking = engine_at(server, vocabulary=VOCABULARY, eos_id=END_ID)
        request = asked(ignore_eos=True, max_tokens=12, **params)
        ((answer,),) = asking.generate([replace(request, forks=not has_form)])
    assert (answer.finish_reason, answer.trace.num_tokens) == ("length", 12)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_tokens_that_llama_cpp_leaves_out_of_its_stream_are_asked_for(temperature: float) -> None:
    unsent = {ANSWER.main[1], ANSWER.blocks[0][0], ANSWER.blocks[2][-1]}
    with serving(dialect="llama.cpp", faults=StockFaults(unsent=unsent)) as server:
        ((answer,),) = engine(server).generate([asked(temperature=temperature)])
        assert len(server.prompts) > 6, "some completions were asked for again"
    assert answer.document == DOCUMENT
    assert answer.trace.num_illegal == 0


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_completion_that_goes_another_way_when_asked_again_is_left(temperature: float) -> None:
    legal = playing(BARE, EOS, (PROMPT, ANSWER))
    first, other = ANSWER.main[:2]
    num_tried = 0

    def next_token(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        nonlocal num_tried
        if tuple(ids) == (*PROMPT, first):
            num_tried += 1
            if num_tried == 1:
                return first
        return legal(ids, barred, draw)

    faults = StockFaults(unsent={first, other})
    with StockTestServer(next_token, EOS, dialect="llama.cpp", faults=faults) as server:
        ((answer,),) = engine(server).generate([asked(temperature=temperature)])
    assert answer.document == DOCUMENT


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request(prompt=PROMPT), "'predict' with join 'shared' are not"),
        (Request(prompt=PROMPT, positions=PositionStrategy.CONTINUE), "join 'shared' are not"),
        (Request(prompt=()), "the prompt is empty"),
        (asked(repetition_penalty=1.2), "count tag pieces"),
        (asked(logprobs=1), "are not read"),
        (asked(logit_bias={5: 101.0}), "no bias beyond 100"),
        (asked(max_thinking_tokens=5), "ends no thought"),
        (Request(prompt=PROMPT, forced=ANSWER), "not a given one"),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_asking(request_: Request, reason: str) -> None:
    with serving() as server:
        with pytest.raises(RequestError, match=reason):
            engine(server).generate([request_])
        assert not server.prompts


def test_inexact_answers_must_be_allowed() -> None:
    with serving() as server:
        servers = connect(f"{server.url}/v1/")
        allowing = CompletionsEngine(servers, MODEL, allow_inexact=True, checks=False)
        ((answer,),) = allowing.generate([Request(prompt=PROMPT)])
    assert answer.document == DOCUMENT
    assert (answer.trace.positions, answer.trace.join) == ("continue", "recompute")


def test_no_server_and_an_unknown_dialect_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="no server is named"):
        CompletionsEngine(connect(" , "), MODEL)
    with pytest.raises(UsageError, match="unknown dialect 'tgi'"):
        connect("http://127.0.0.1:1", dialect="tgi")


@pytest.mark.parametrize(
    ("status", "error", "num_asked"),
    [(503, RemoteError, 4), (401, EndpointError, 1), (400, RequestError, 1)],
)
def test_a_busy_server_is_asked_again_and_one_that_refuses_is_not(
    status: int, error: type[Exception], num_asked: int
) -> None:
    with serving(faults=StockFaults(num_refused=99, status=status)) as server:
        with pytest.raises(error, match=f"HTTP {status}"):
            engine(server).generate([asked()])
        assert len(server.prompts) == num_asked


@pytest.mark.parametrize(
    ("ending", "num_tokens"),
    [*(("dies_after", number) for number in (1, 4, 9, 17)), ("hangs_after", 1), ("hangs_after", 9)],
)
def test_a_server_lost_in_an_answer_leaves_the_text_so_far(ending: str, num_tokens: int) -> None:
    with serving(faults=StockFaults(**{ending: num_tokens})) as server:  # type: ignore[arg-type]
        # What hangs must be waited for; what dies tells so, however slow the machine is.
        asking = engine(server, timeout_s=2.0 if ending == "hangs_after" else 60.0)
        with pytest.raises(BrokenAnswerError) as caught:
            asking.generate([asked()])
        assert asking.servers[0].num_in_flight == 0
    assert DOCUMENT.plain_text.startswith(caught.value.text[:3])
    assert len(caught.value.text) < len(DOCUMENT.plain_text)


def test_a_stream_that_is_closed_cancels_all_completions_of_its_tree() -> None:
    with serving(faults=StockFaults(pause_s=0.05)) as server:
        asking = engine(server)
        events = asking.stream(asked())
        starts = (event for event in events if isinstance(event, ThreadStarted))
        assert [event.thread for event in islice(starts, 3)] == [0, 1, 2]
        events.close()  # type: ignore[attr-defined]
        assert asking.servers[0].num_in_flight == 0
        num_begun = len(server.prompts)
    assert num_begun <= 5


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
ALL = [asked(prompt(number)) for number in range(NUM)]


def documents(asking: CompletionsEngine, requests: Sequence[Request]) -> list[Document]:
    return [answer.document for samples in asking.generate(requests) for answer in samples]


@pytest.mark.parametrize("retry_after_s", [None, 0.05])
@pytest.mark.parametrize("most_at_once", [1, 3])
def test_a_storm_of_429_loses_no_answers(most_at_once: int, retry_after_s: float | None) -> None:
    storm = StockFaults(
        num_refused=6, most_at_once=most_at_once, retry_after_s=retry_after_s, pause_s=0.003
    )
    with serving(*PAIRS, faults=storm) as server:
        assert documents(engine(server), ALL) == [document(number) for number in range(NUM)]
        assert server.num_refused >= 6


@pytest.mark.parametrize("retry_after_s", [None, 0.05, 3600.0])
def test_a_server_that_only_answers_429_is_given_up(retry_after_s: float | None) -> None:
    always = StockFaults(num_refused=10**9, retry_after_s=retry_after_s)
    with serving(*PAIRS, faults=always) as server:
        busy = StockServer(server.url, policy=replace(QUICK, max_busy_s=0.3))
        asking = CompletionsEngine([busy], ServedModel(BARE, frozenset({EOS})), checks=False)
        with pytest.raises(RemoteError, match="the last: HTTP 429"):
            asking.generate(ALL[:3])


def test_a_response_and_its_samples_are_spread_and_each_stays_on_one_server() -> None:
    with serving(*PAIRS) as one, serving(*PAIRS) as other:
        found = documents(engine(one, other), [*ALL, asked(prompt(0), n=4)])
        assert found == [*(document(number) for number in range(NUM)), *[document(0)] * 4]
        seen = {(ids[2], server) for server in (one, other) for ids in server.prompts}
    assert sorted(number for number, _ in seen if number) == [*range(1, NUM)]
    assert {server for number, server in seen if number} == {one, other}


def test_a_server_that_is_gone_leaves_its_responses_to_the_other_one() -> None:
    with serving(*PAIRS) as gone, serving(*PAIRS) as good:
        asking = engine(gone, good)
        asking.check()
        gone.__exit__()
        assert documents(asking, ALL) == [document(number) for number in range(NUM)]
        assert [server.is_up for server in asking.servers] == [False, True]
        assert all(server.num_in_flight == 0 for server in asking.servers)


def test_what_a_killed_server_had_begun_is_decoded_anew_where_nobody_saw_it() -> None:
    with serving(*PAIRS, faults=StockFaults(dies_after=15)) as dying, serving(*PAIRS) as good:
        found = documents(engine(dying, good, num_again=2), ALL)
    assert found == [document(number) for number in range(NUM)]


def test_a_killed_server_ends_its_own_responses_alone() -> None:
    with serving(*PAIRS, faults=StockFaults(dies_after=20)) as dying, serving(*PAIRS) as good:
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
                        assert len(event.error.text) < len(document(numbers[number]).plain_text)
                        broken += 1
    assert broken > 0
    assert broken + len(answered) == NUM
    assert answered == {number: document(number) for number in answered}


def test_a_server_that_is_back_takes_responses_again() -> None:
    back, held, play = threading.Event(), threading.Event(), playing(BARE, EOS, *PAIRS)

    def wait(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        if ids[2] == 1:  # this response keeps the good server busy
            held.set()
            back.wait(30)
        return play(ids, barred, draw)

    with serving(*PAIRS) as gone, StockTestServer(wait, EOS) as good:
        asking = engine(gone, good)
        asking.check()
        gone.__exit__()
        with closing(asking) as flight:
            flight.submit(asked(prompt(1)))
            assert held.wait(30)
            with serving(*PAIRS, port=gone.server_port) as again:
                while not asking.servers[0].is_up:
                    back.wait(0.02)
                flight.submit(asked(prompt(2)))
                left = 1
                while left:
                    left -= sum(isinstance(event, Finished) for _, event in flight.step())
                assert again.prompts, "the one that is back had fewer responses"
                back.set()
                while flight.has_work:
                    flight.step()


def test_an_aborted_request_leaves_the_others() -> None:
    with serving(*PAIRS, faults=StockFaults(pause_s=0.01)) as server:
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
HELD_MODEL = ServedModel(VOCABULARY, frozenset({END_ID}), max_position=4095)
TAUGHT_MODEL = playing(VOCABULARY, END_ID)
UNTAUGHT: NextToken = lambda ids, barred, draw: min({5, 6} - barred)  # noqa: E731


def holding(next_token: NextToken = TAUGHT_MODEL, **settings: object) -> StockTestServer:
    settings = {"tokenize": spelled(VOCABULARY), **settings}
    return StockTestServer(next_token, END_ID, **settings)  # type: ignore[arg-type]


def checking(*servers: StockTestServer, **settings: object) -> CompletionsEngine:
    addresses = ",".join(server.url for server in servers)
    return CompletionsEngine(connect(addresses), HELD_MODEL, **settings)  # type: ignore[arg-type]


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
        (UNTAUGHT, {}, ModelError, "was not taught the tags"),
        (lambda ids, _, draw: TAUGHT_MODEL(ids, frozenset(), draw), {}, EndpointError,
         "which the request barred"),
    ],
)  # fmt: skip
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
    with holding(UNTAUGHT, tokenize=None) as server, pytest.raises(ModelError, match="not taught"):
        checking(server).check()


def test_a_server_of_no_known_kind_is_to_be_named() -> None:
    with holding() as server:
        models = [{"id": "m", "owned_by": "pasta-lm"}]
        server.page = lambda path: (200, {"data": models})  # type: ignore[method-assign]
        with pytest.raises(EndpointError, match="of which kind it is, but 'pasta-lm'"):
            checking(server).check()
        named = CompletionsEngine(connect(server.url, dialect="vllm"), HELD_MODEL)
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
    unbounded = CompletionsEngine(asking.servers, replace(HELD_MODEL, max_position=None))
    assert unbounded.max_prompt_tokens == 99


def test_one_server_that_answers_is_enough() -> None:
    with holding() as gone, holding() as good:
        asking = checking(gone, good)
        gone.__exit__()
        asking.check()
        assert [server.is_up for server in asking.servers] == [False, True]
    with pytest.raises(RemoteError, match="no answer after"):
        checking(gone, good).check()
