"""Every engine passes the conformance suite."""

from __future__ import annotations

from functools import cache

import pytest

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.engines.torch.engine import TorchEngine
from pasta_lm.engines.torch.loading import LoadedModel
from pasta_lm.language.document import Document
from tests.engines.conformance import *  # noqa: F403
from tests.engines.conformance import Opener, Subject
from tests.models import loaded


def open_scripted(document: Document) -> Subject:
    engine = ScriptedEngine(document)

    def request(params: SamplingParams, forks: bool) -> Request:
        return Request(prompt=engine.request("a prompt").prompt, params=params, forks=forks)

    return Subject(engine, request, assert_empty=lambda: None)  # it keeps nothing between calls


@cache
def torch_engine(model: LoadedModel) -> TorchEngine:
    return TorchEngine(model, pool_tokens=8192, captures=False)


def open_torch(document: Document) -> Subject:
    model = loaded("llama")
    engine = torch_engine(model)

    def request(params: SamplingParams, forks: bool) -> Request:
        asked = document if forks else document.without_tags()
        forced = model.vocabulary.encode_document(asked)
        return Request(prompt=(5, 6, 7), params=params, forks=forks, forced=forced)

    def assert_empty() -> None:
        assert not engine.has_work
        assert engine.pool.num_free_pages == engine.pool.num_pages
        assert not engine.scheduler._running
        assert not engine.scheduler._waiting
        assert not engine._unread

    return Subject(engine, request, assert_empty)


OPENERS = {"scripted": open_scripted, "torch": open_torch}


@pytest.fixture(params=OPENERS.values(), ids=OPENERS.keys())
def opened(request: pytest.FixtureRequest) -> Opener:
    """Return the opener of each engine in turn."""
    opener: Opener = request.param
    return opener
