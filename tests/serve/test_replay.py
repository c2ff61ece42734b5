"""Given answers on the server: decoded with forced tokens, bounded like every request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language import parse
from pasta_lm.language.check import check
from pasta_lm.language.document import Document
from pasta_lm.language.events import Text
from pasta_lm.learn.data.annotated import Record
from pasta_lm.measure.replay import replay
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.serve import Bounds
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import LocalBackend
from pasta_lm.strategies.model import Pasta
from tests.architectures import loaded
from tests.serve.conftest import (
    CHAT,
    DOCUMENT,
    SCRIPT,
    TEXT,
    client_of,
    post,
    scenario,
    scripted,
    streamed,
    text_of,
)
from tests.serve.test_served import served

REPLAY = "/v1/replay"
GIVEN = {**CHAT, "response": SCRIPT, "form": "annotator"}
PLAIN = "One line.\nAnd &lt;sync/> another, caf\u00e9."
CHAINED = (
    'First:<async topic="a &quot;b&quot;">one two three</async><sync/>'
    ' then<async topic="c"> four</async> and<async topic="d"> five six</async>.'
)
ANSWERS = {
    "plain": ("One <sync/> line.", "plain"),
    "the script": (SCRIPT, "annotator"),
    "no tags": (PLAIN, "annotator"),
    "a sync in the middle": (CHAINED, "annotator"),
    "written": (DOCUMENT.with_lengths(len).written(), "written"),
}
given_answers = pytest.mark.parametrize(("text", "form"), ANSWERS.values(), ids=ANSWERS.keys())


def document_of(text: str, form: str) -> Document:
    return Document((Text(text),)) if form == "plain" else parse(text, form)


def torch_app(name: str = "llama", pool_tokens: int = 4096, **settings: Any) -> FastAPI:
    engine = TorchEngine(loaded(name), pool_tokens=pool_tokens, captures=False)
    return create_app(LocalBackend(Pasta(engine), "tiny"), **settings)


def replayed(app: FastAPI, **changes: Any) -> dict[str, Any]:
    reply = post(REPLAY, {**GIVEN, **changes}, app=app)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


@given_answers
def test_a_given_answer_is_decoded_as_it_is(text: str, form: str) -> None:
    document = document_of(text, form)
    reply = replayed(torch_app(), response=text, form=form)
    assert (reply["text"], reply["finish_reason"]) == (document.plain_text, "stop")
    assert parse(reply["program"]).annotator_form() == document.annotator_form()
    assert reply["kind"] == "replayed"
    assert reply["strategy"] == ("pasta" if document.blocks else "sequential")
    assert [one["topic"] for one in reply["run"]["threads"]] == [
        None,
        *(block.topic for block in document.blocks),
    ]
    assert reply["critical_path_tokens"] == reply["forward_passes"]
    record = Record("1", CHAT["messages"][0]["content"], document)
    figures = replay([record], loaded("llama")).report().to_dict(has_bounds=False)
    assert reply["theoretical_speedup"] == pytest.approx(figures["theoretical_speedup"], abs=1e-3)


@pytest.mark.parametrize("positions", [one.value for one in PositionStrategy])
def test_an_answer_is_decoded_at_the_positions_that_are_asked_for(positions: str) -> None:
    reply = replayed(torch_app(), pasta={"positions": positions, "trace": True})
    assert reply["positions"] == reply["trace"]["positions"] == positions
    assert reply["text"] == TEXT


def test_threads_are_lowered_to_the_limit_and_fewer_threads_take_more_passes() -> None:
    many = replayed(torch_app(), pasta={"max_threads": 10**6})
    assert many["max_threads"] == Bounds().threads
    few = replayed(torch_app(), pasta={"max_threads": 2})
    assert few["max_threads"] == 2
    assert few["forward_passes"] > many["forward_passes"]
    assert few["text"] == many["text"]


@pytest.mark.parametrize("prompt", ["Once upon a time", [5, 300, 7]], ids=["text", "ids"])
def test_a_text_or_token_ids_may_stand_in_front_of_the_answer(prompt: Any) -> None:
    body = {"prompt": prompt, "response": SCRIPT, "form": "annotator"}
    reply = post(REPLAY, body, app=torch_app()).json()
    assert reply["text"] == TEXT
    if isinstance(prompt, list):
        assert reply["usage"]["prompt_tokens"] == len(prompt)


def test_a_stream_tells_each_thread_as_it_is_decoded_and_ends_with_the_run() -> None:
    whole = replayed(torch_app())
    asked = {**GIVEN, "stream": True, "pasta": {"trace": True}}
    pieces = streamed(post(REPLAY, asked, app=torch_app()))
    assert text_of(pieces) == TEXT
    events = [piece["pasta"] for piece in pieces if "kind" in piece.get("pasta", {})]
    for thread, topic in enumerate([None, "walk", "sleep", "eat"]):
        said = "".join(one["delta"] for one in events if one["thread"] == thread)
        own = [
            one["text"]
            for one in whole["run"]["tokens"]
            if one["thread"] == thread and one["role"] == "content"
        ]
        assert (said, topic) == ("".join(own), whole["run"]["threads"][thread]["topic"])
    news = [token for one in events if one["kind"] == "traced" for token in one["news"]["tokens"]]
    assert len(news) == len(whole["run"]["tokens"])
    last = [one for one in events if one["kind"] == "finished"]
    assert [one["text"] for one in last] == [TEXT]
    assert [one["run"]["tokens"] for one in last] == [whole["run"]["tokens"]]
    assert last[0]["theoretical_speedup"] == whole["theoretical_speedup"]


def test_a_model_without_tags_replays_an_answer_without_tags() -> None:
    bare = replace(loaded("llama"), vocabulary=Vocabulary(loaded("llama").vocabulary.tokenizer))
    backend = LocalBackend(Pasta(TorchEngine(bare, pool_tokens=2048, captures=False)), "bare")
    assert replayed(create_app(backend), response=PLAIN)["strategy"] == "sequential"
    backend = LocalBackend(Pasta(TorchEngine(bare, pool_tokens=2048, captures=False)), "bare")
    reply = post(REPLAY, GIVEN, app=create_app(backend))
    assert reply.status_code == 400
    assert "no tag pieces" in reply.json()["error"]["message"]


def test_stock_servers_decode_no_given_answer() -> None:
    with served() as (backend, _):
        reply = post(REPLAY, GIVEN, app=create_app(backend))
        assert reply.status_code == 400
        assert "no given answer" in reply.json()["error"]["message"]


FAULTS = {
    "never closed": ('a\nb <async topic="x">c', "annotator", "PASTA016"),
    "no promise": ("\u00e9\U0001f35d <async>b</async>", "written", "PASTA012"),
    "unfinished": ('a <promise topic="x', "written", "PASTA001"),
}


@pytest.mark.parametrize(("text", "form", "code"), FAULTS.values(), ids=FAULTS.keys())
def test_an_invalid_text_is_refused_with_the_error_s_place(text: str, form: str, code: str) -> None:
    (first, *_) = [fault for fault in check(text, form) if fault.severity == "error"]
    reply = post(REPLAY, {**GIVEN, "response": text, "form": form})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "response", code)
    assert f"line {first.line}, column {first.column}" in error["message"]


BLOCKS = "".join(f'<async topic="x {number}">y</async>' for number in range(65))
BAD: dict[str, dict[str, Any]] = {
    "no prompt": {"messages": None},
    "two prompts": {"prompt": "a"},
    "no answer": {"response": ""},
    "an unknown key": {"temperature": 0.5},
    "an unknown option": {"pasta": {"strategy": "pasta"}},
    "too many blocks": {"response": BLOCKS},
    "too long": {"response": "word " * 5000},
    "too long a block": {"response": f'<async topic="x">{"word " * 1100}</async>'},
}


@scenario
async def test_bad_bodies_are_refused() -> None:
    async with client_of(create_app(scripted())) as client:
        for name, changes in BAD.items():
            for stream in (False, True):
                reply = await client.post(REPLAY, json={**GIVEN, "stream": stream, **changes})
                assert reply.status_code == 400, name
                assert reply.json()["error"]["message"], name
        other = await client.post(REPLAY, json={**GIVEN, "model": "other"})
        assert other.status_code == 404
        endless = await client.post(REPLAY, json={**GIVEN, "response": "<sync/>" * 10_000})
        assert endless.status_code == 400
        assert "70000 characters" in endless.json()["error"]["message"]


def test_what_the_model_or_its_cache_cannot_hold_is_refused() -> None:
    tag = min(loaded("llama").vocabulary.piece_ids.values())
    for body, told in (
        ({**GIVEN, "messages": None, "prompt": [5, tag]}, "the tag"),
        ({**GIVEN, "messages": None, "prompt": [10**9]}, "no token"),
        ({**GIVEN, "response": "word " * 200}, "cache"),
    ):
        reply = post(REPLAY, body, app=torch_app(pool_tokens=256))
        assert reply.status_code == 400
        assert told in reply.json()["error"]["message"]
