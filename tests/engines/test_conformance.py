"""Every engine passes the conformance suite."""

from __future__ import annotations

from functools import cache

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import Document
from pasta_lm.view.scripted import ScriptedEngine
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
