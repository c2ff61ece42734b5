"""A server is used once it has shown that it holds the model."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import pytest

from pasta_lm.engines.servers.completions import CompletionsEngine, ServedModel, connect
from pasta_lm.engines.servers.dialects import DIALECTS, KEY_ENV
from pasta_lm.errors import EndpointError, ModelError, PastaError, RemoteError, VocabularyError
from tests.fakes.stock_server import Draw, NextToken, StockTestServer
from tests.stock import playing, spelled
from tests.taught import TAUGHT

VOCABULARY, OTHER = TAUGHT["byte_level"], TAUGHT["llama_2_like"]
EOS = 1
MODEL = ServedModel(VOCABULARY, frozenset({EOS}), max_position=4095)
TAUGHT_MODEL = playing(VOCABULARY, EOS)


def untaught(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
    return min({5, 6} - barred)


def unbarred(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
    return TAUGHT_MODEL(ids, frozenset(), draw)


def serving(next_token: NextToken = TAUGHT_MODEL, **settings: object) -> StockTestServer:
    settings = {"tokenize": spelled(VOCABULARY), **settings}
    return StockTestServer(next_token, EOS, **settings)  # type: ignore[arg-type]


def engine(*servers: StockTestServer, **settings: object) -> CompletionsEngine:
    addresses = ",".join(server.url for server in servers)
    return CompletionsEngine(connect(addresses), MODEL, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_that_holds_the_model_passes_and_its_kind_is_found(dialect: str) -> None:
    with serving(dialect=dialect) as server:
        asking = engine(server)
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
    with serving(next_token, **settings) as server, serving() as good:
        asking = engine(good, server)
        with pytest.raises(error, match=reason) as caught:
            asking.check()
    assert server.url in caught.value.message
    assert caught.value.hint


def test_a_server_without_a_page_that_encodes_is_checked_by_what_it_decodes() -> None:
    with serving(tokenize=None) as server:
        engine(server).check()
    with serving(untaught, tokenize=None) as server, pytest.raises(ModelError, match="not taught"):
        engine(server).check()


def test_a_server_of_no_known_kind_is_to_be_named() -> None:
    with serving() as server:
        models = [{"id": "m", "owned_by": "pasta-lm"}]
        server.page = lambda path: (200, {"data": models})  # type: ignore[method-assign]
        with pytest.raises(EndpointError, match="of which kind it is, but 'pasta-lm'"):
            engine(server).check()
        named = CompletionsEngine(connect(server.url, dialect="vllm"), MODEL)
        named.check()


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(api_key="secret") as server:
        for wrong in ("", "wrong"):
            monkeypatch.setenv(KEY_ENV, wrong)
            with pytest.raises(EndpointError, match="HTTP 401") as caught:
                engine(server).check()
            assert KEY_ENV in (caught.value.hint or "")
        monkeypatch.setenv(KEY_ENV, "secret")
        engine(server).check()


def test_the_context_that_a_server_says_bounds_requests() -> None:
    with serving(context=100) as one, serving(context=200) as other:
        asking = engine(one, other)
        assert asking.max_prompt_tokens == 4095
        asking.check()
        assert asking.max_prompt_tokens == 99
    unbounded = CompletionsEngine(asking.servers, replace(MODEL, max_position=None))
    assert unbounded.max_prompt_tokens == 99


def test_one_server_that_answers_is_enough() -> None:
    with serving() as gone, serving() as good:
        asking = engine(gone, good)
        gone.__exit__()
        asking.check()
        assert [server.is_up for server in asking.servers] == [False, True]
    with pytest.raises(RemoteError, match="no answer after"):
        engine(gone, good).check()
