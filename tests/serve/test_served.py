"""The server in front of stock servers: their answers, its limits, and servers that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from pasta_lm.engines.servers.cluster import StockServer
from pasta_lm.engines.servers.completions import CompletionsEngine, ServedModel
from pasta_lm.language.document import Document, parse
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import ServedBackend
from pasta_lm.strategies.model import Pasta
from tests.fakes.stock_server import StockFaults, StockTestServer
from tests.serve.conftest import client_of, post, run, streamed, text_of
from tests.stock import QUICK, playing
from tests.taught import taught

VOCABULARY = taught("byte_level")
EOS = 1
PATH = "/v1/chat/completions"


def asked(number: int, **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"question {number}"}], **changes}


def document(number: int) -> Document:
    return parse(
        f'{number}:<promise topic="one" tokens="1"/><async> first {number}</async> and '
        f'<promise topic="two" tokens="1"/><async> second {number}</async><sync/> done {number}.'
    )


def written(number: int) -> tuple[list[int], EncodedDocument]:
    prompt = VOCABULARY.encode_prompt(asked(number)["messages"])
    return prompt, VOCABULARY.encode_document(document(number))


def stock(faults: StockFaults | None = None, port: int = 0) -> StockTestServer:
    next_token = playing(VOCABULARY, EOS, *map(written, range(8)))
    return StockTestServer(next_token, EOS, faults=faults, port=port)


@contextmanager
def served(*faults: StockFaults) -> Iterator[tuple[ServedBackend, list[StockTestServer]]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(stock(one)) for one in faults or (StockFaults(),)]
        found = [StockServer(one.url, timeout_s=60, policy=QUICK) for one in servers]
        engine = CompletionsEngine(found, ServedModel(VOCABULARY, frozenset({EOS})))
        yield ServedBackend(Pasta(engine), "cluster"), servers


def test_an_answer_is_that_of_the_servers_in_reading_order() -> None:
    with served() as (backend, _):
        app = create_app(backend)
        whole = post(PATH, asked(1, pasta={"tags": "keep"}), app=app).json()
        assert whole["choices"][0]["message"]["content"] == document(1).program
        assert whole["model"] == "cluster"
    with served() as (backend, _):
        body = asked(1, stream=True, pasta={"stream": "events"})
        pieces = streamed(post(PATH, body, app=create_app(backend)))
    assert text_of(pieces) == document(1).plain_text
    events = [piece["pasta"] for piece in pieces if "kind" in piece.get("pasta", {})]
    assert {event["thread"] for event in events} == {0, 1, 2}
    kinds = [event["kind"] for event in events]
    assert kinds.count("started") == kinds.count("ended") == 3


def test_a_client_that_leaves_takes_all_its_completions_with_it(
    until: Callable[[Callable[[], bool]], None],
) -> None:
    async def leave(backend: ServedBackend, server: StockTestServer) -> None:
        async with client_of(create_app(backend)) as client:
            asking = asyncio.ensure_future(client.post(PATH, json=asked(1)))
            while server.num_open < 2:  # main and a block
                await asyncio.sleep(0.01)
            asking.cancel()
            while backend.has_work:
                await asyncio.sleep(0.01)
            # Another one is answered as ever.
            other = await client.post(PATH, json=asked(2))
            assert other.json()["choices"][0]["message"]["content"] == document(2).plain_text

    with served(StockFaults(pause_s=0.05)) as (backend, (server,)):
        run(leave(backend, server))
        until(lambda: server.num_open == 0)


def test_a_server_that_is_killed_ends_its_responses_and_is_used_again_when_it_is_back() -> None:
    async def kill(backend: ServedBackend, server: StockTestServer) -> None:
        async with client_of(create_app(backend)) as client:
            asking = asyncio.ensure_future(client.post(PATH, json=asked(1, stream=True)))
            while server.num_open < 2:
                await asyncio.sleep(0.01)
            server.__exit__()
            pieces = streamed(await asking)
            error = pieces[-1]["error"]
            assert (error["type"], error["code"]) == ("unavailable", "backend_lost")
            assert "127.0.0.1" not in error["message"]
            shown = text_of([one for one in pieces if "choices" in one])
            assert document(1).plain_text.startswith(shown)
            refused = await client.post(PATH, json=asked(2))
            assert refused.status_code == 503
            assert "Retry-After" in refused.headers
            assert (await client.get("/health")).json() == {"status": "ok"}
            with stock(port=server.server_port):
                found = await client.post(PATH, json=asked(2))
            assert found.json()["choices"][0]["message"]["content"] == document(2).plain_text

    with served(StockFaults(pause_s=0.05)) as (backend, (server,)):
        run(kill(backend, server))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"presence_penalty": 1, "frequency_penalty": 1}, "frequency_penalty"),
        ({"logprobs": True}, "log-probabilities"),
        ({"pasta": {"positions": "predict"}}, "positions 'predict'"),
        ({"logit_bias": {"999999": 5}}, "no token 999999"),
        ({"pasta": {"strategy": "sot"}, "response_format": {"type": "json_object"}}, "one schema"),
        ({"pasta": {"strategy": "apar"}}, "'apar' is not offered"),
    ],
)
def test_what_servers_cannot_compute_is_refused_by_name(wrong: dict[str, Any], name: str) -> None:
    with served() as (backend, (server,)):
        reply = post(PATH, asked(1, **wrong), app=create_app(backend))
        assert (reply.status_code, name in reply.text) == (400, True), reply.text
        ids = {"prompt": [5, 999999], "max_tokens": 5}
        assert "no token 999999" in post("/v1/completions", ids, app=create_app(backend)).text
        assert written(1)[0] not in server.prompts
