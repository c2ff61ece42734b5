"""Real clients against uvicorn on loopback: OpenAI's own package, streaming and not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from pasta_lm.serve.app import create_app
from tests.serve.conftest import CHAT, LIMIT_S, TEXT, scripted, serving

KEY = "sk-test"
MESSAGES: Any = CHAT["messages"]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Any, str]]:
    app = create_app(scripted(), api_key=KEY)
    with serving(app) as (_, url):
        yield app, url


@pytest.fixture(scope="module")
def client(server: tuple[Any, str]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server[1]}/v1", api_key=KEY, max_retries=0, timeout=LIMIT_S)


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="script", messages=MESSAGES, seed=1)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert answer.id.startswith("chatcmpl-")


@pytest.mark.parametrize("n", [1, 4])
def test_a_chat_as_a_stream(client: openai.OpenAI, n: int) -> None:
    stream = client.chat.completions.create(
        model="script",
        messages=MESSAGES,
        n=n,
        stream=True,
        stream_options={"include_usage": True},
        temperature=0.5,
        stop=["all."],
    )
    texts = dict.fromkeys(range(n), "")
    reasons = {}
    usage = None
    for piece in stream:
        usage = piece.usage or usage
        for choice in piece.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    assert set(texts.values()) == {TEXT.removesuffix("all.")}
    assert set(reasons.values()) == {"stop"}
    assert usage is not None


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="script", prompt="Once", max_tokens=9)
    assert TEXT.startswith(answer.choices[0].text)
    assert answer.choices[0].finish_reason == "length"
    stream = client.completions.create(model="script", prompt="Once", stream=True)
    assert "".join(piece.choices[0].text for piece in stream) == TEXT


def test_events_reach_the_client_beside_the_text(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="script",
        messages=MESSAGES,
        stream=True,
        extra_body={"pasta": {"stream": "events"}},
    )
    pieces = list(stream)
    kinds = [
        piece.pasta["kind"] for piece in pieces if "kind" in (getattr(piece, "pasta", 0) or ())
    ]
    assert {"started", "text", "ended", "synced", "finished"} <= set(kinds)
    assert "".join(c.delta.content or "" for p in pieces for c in p.choices) == TEXT


def test_errors_are_the_package_s_own(client: openai.OpenAI, server: tuple[Any, str]) -> None:
    with pytest.raises(openai.BadRequestError, match="log-probabilities"):
        client.chat.completions.create(model="script", messages=MESSAGES, logprobs=True)
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    stranger = openai.OpenAI(base_url=f"{server[1]}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
