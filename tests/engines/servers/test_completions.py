"""The engine on stock servers: its answers, what it refuses, and servers that fail."""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from itertools import islice, pairwise, product

import pytest

from pasta_lm.engines.request import Request, SamplingParams, ThreadStarted
from pasta_lm.engines.servers.completions import CompletionsEngine, ServedModel, connect
from pasta_lm.engines.servers.dialects import DIALECTS, TokenRequest
from pasta_lm.engines.servers.streamed_response import MAX_ASKED_AGAIN, seed_of
from pasta_lm.errors import BrokenAnswerError, EndpointError, RemoteError, RequestError, UsageError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Role
from pasta_lm.language.document import parse
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, MAX_UNITS, PROMISE_OPEN, closing_piece
from pasta_lm.models.encoded import EncodedDocument
from tests.fakes.stock_server import Draw, StockFaults, StockTestServer
from tests.learn.data.examples import BARE, EOS
from tests.plain_sequences import plain_sequences
from tests.programs import Program, random_program
from tests.stock import engine_at, playing, tokens_by_thread

PROMPT = (5, 6, 7)
MODEL = ServedModel(BARE, frozenset({EOS}))
DOCUMENT = parse(
    'Go. <promise topic="one" tokens="1"/><async>1 1 1 1</async> and '
    '<promise topic="two" tokens="1"/><async>2 2</async><sync/> So '
    '<promise topic="three" tokens="1"/><async>3 3 3</async> on<sync/> End.'
)
ANSWER = BARE.encode_document(DOCUMENT)


def asked(prompt: Sequence[int] = PROMPT, **params: object) -> Request:
    return Request(
        prompt=prompt,
        params=SamplingParams(**params),  # type: ignore[arg-type]
        positions=PositionStrategy.CONTINUE,
        join=Join.RECOMPUTE,
    )


def serving(
    *answers: tuple[Sequence[int], EncodedDocument],
    dialect: str = "vllm",
    faults: StockFaults | None = None,
) -> StockTestServer:
    answers = answers or ((PROMPT, ANSWER),)
    return StockTestServer(playing(BARE, EOS, *answers), EOS, dialect=dialect, faults=faults)


def engine(*servers: StockTestServer, timeout_s: float = 60.0) -> CompletionsEngine:
    return engine_at(*servers, vocabulary=BARE, eos_id=EOS, timeout_s=timeout_s)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_is_the_same_in_every_dialect(dialect: str) -> None:
    with serving(dialect=dialect) as server:
        ((answer,),) = engine(server).generate([asked()])
    assert answer.document == DOCUMENT
    assert (answer.finish_reason, answer.trace.num_illegal) == ("stop", 0)
    assert answer.trace.forward_passes == answer.trace.critical_path
    assert answer.trace.num_recomputed > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_setting_of_a_server_or_of_the_model_s_files_changes_what_is_sampled(
    dialect: str,
) -> None:
    body = DIALECTS[dialect].body("m", TokenRequest(prompt=PROMPT, max_tokens=4))
    body = body.get("sampling_params", body)
    penalty = body.get("repeat_penalty", body.get("repetition_penalty"))
    assert (penalty, body["presence_penalty"], body["frequency_penalty"]) == (1, 0, 0)
    assert ("dry_multiplier" in body) is (dialect == "llama.cpp")
    assert (body["temperature"], body["top_p"], body["min_p"]) == (0, 1, 0)
    assert body["top_k"] < 1


@pytest.mark.parametrize("num_programs", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_random_programs_come_back_token_by_token(num_programs: int) -> None:
    rng = random.Random("stock")
    programs: list[Program] = []
    for number in range(num_programs):
        program = random_program(rng, BARE)
        programs.append(Program((number, *program.prompt), program.answer))
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
    keys = product((0, 1), ((), (1,)), (0, 4))
    seeds = {seed_of(0, sample, path, index) for sample, path, index in keys}
    assert len(seeds) == 8
    assert max(seeds) < 2**31


def test_an_illegal_token_is_asked_for_again_with_it_barred() -> None:
    legal = playing(BARE, EOS, (PROMPT, ANSWER))
    closing = BARE.piece_id(ASYNC_CLOSE)
    num_tried = 0

    def next_token(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        nonlocal num_tried
        if ids[-1] == BARE.piece_id(ASYNC_OPEN) and closing not in barred:
            num_tried += 1
            return closing  # a block must not be empty
        return legal(ids, barred, draw)

    with StockTestServer(next_token, EOS) as server:
        ((answer,),) = engine(server).generate([asked()])
    assert answer.document == DOCUMENT
    assert num_tried == 3, "once for each block"


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama.cpp"])
def test_a_topic_that_is_full_is_ended_by_the_closing_piece_that_the_server_likes_best(
    dialect: str,
) -> None:
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
    assert answer.trace.num_illegal == 1
    assert answer.text == ""


TEXT_IDS = {ANSWER.main[1], ANSWER.blocks[0][0], ANSWER.blocks[2][-1]}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_tokens_that_llama_cpp_leaves_out_of_its_stream_are_asked_for(temperature: float) -> None:
    faults = StockFaults(unsent=TEXT_IDS)
    with serving(dialect="llama.cpp", faults=faults) as server:
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
        (asked(max_thinking_tokens=5), "ends no thought"),
        (Request(prompt=PROMPT, forced=ANSWER), "not a given one"),
    ],
)
def test_what_a_stock_server_cannot_do_is_refused_before_it_is_asked(
    request_: Request, reason: str
) -> None:
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
def test_a_server_that_is_lost_in_an_answer_leaves_the_text_so_far(
    ending: str, num_tokens: int
) -> None:
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
        started = list(islice(starts, 3))
        assert [event.thread for event in started] == [0, 1, 2]
        events.close()  # type: ignore[attr-defined]
        assert asking.servers[0].num_in_flight == 0
        num_begun = len(server.prompts)
    assert num_begun <= 5
