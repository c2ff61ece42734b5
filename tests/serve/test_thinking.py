"""A served model that thinks, seen by OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import openai
import pytest

from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import LocalBackend
from tests.serve.conftest import LIMIT_S, post, serving, streamed
from tests.thinking import WRITTEN, ids_of, rendered, saying

FORK = 'Here: <promise topic="one" tokens="1"/> and'
MAIN = f"<think>\nTwo things\n</think>\n\n{FORK}"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Why?"}], "temperature": 0}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@cache
def backend(name: str = "qwen3", main: str = MAIN) -> LocalBackend:
    return LocalBackend(saying(name, main, "Block.", shares_prefixes=True), name)


def reply(body: dict[str, Any], **named: str) -> Any:
    return post("/v1/chat/completions", ASKED | body, app=create_app(backend(**named)))


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with serving(create_app(backend())) as (_, url):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=LIMIT_S)


def test_the_official_client_sees_the_reasoning_of_a_reply(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="qwen3", **ASKED)
    message: Any = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Two things", "Here: Block. and")
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(
        ids_of("qwen3", MAIN.partition(FORK)[0])
    )


def test_the_official_client_sees_the_reasoning_of_a_stream_first(client: openai.OpenAI) -> None:
    parts: list[tuple[str, str]] = []
    for piece in client.chat.completions.create(model="qwen3", stream=True, **ASKED):
        for choice in piece.choices:
            delta: Any = choice.delta
            thought = getattr(delta, "reasoning_content", None)
            parts += [("thought", thought)] if thought else []
            parts += [("answer", delta.content)] if delta.content else []
    kinds = [kind for kind, _ in parts]
    assert kinds == sorted(kinds, reverse=True)
    texts = {kind: "".join(t for k, t in parts if k == kind) for kind in kinds}
    assert texts == {"thought": "Two things", "answer": "Here: Block. and"}


def test_events_name_the_thought() -> None:
    pieces = streamed(reply({"stream": True, "pasta": {"stream": "events"}}))
    thoughts = [p for p in pieces if p.get("pasta", {}).get("kind") == "thought"]
    assert "".join(p["pasta"]["delta"] for p in thoughts) == "Two things"
    deltas = [p["choices"][0]["delta"] for p in thoughts]
    assert "".join(delta["reasoning_content"] for delta in deltas) == "Two things"


def test_variables_of_the_template_come_with_the_request() -> None:
    quiet = reply(OFF, main="Hello").json()
    assert "reasoning_content" not in quiet["choices"][0]["message"]
    assert "completion_tokens_details" not in quiet["usage"]
    thinking = reply({}, main="Hello").json()
    assert quiet["usage"]["prompt_tokens"] - thinking["usage"]["prompt_tokens"] == len(
        ids_of("qwen3", "<think>\n\n</think>\n\n")
    )
    high = reply({"reasoning_effort": "high"}, name="gpt-oss", main="Hello").json()
    low = reply({}, name="gpt-oss", main="Hello").json()
    assert high["usage"]["prompt_tokens"] != low["usage"]["prompt_tokens"]
    refused = reply({"chat_template_kwargs": {"tokenize": True}})
    assert refused.status_code == 400


def test_the_thought_has_a_limit_of_its_own() -> None:
    choice = reply({"max_thinking_tokens": 2}).json()["choices"][0]
    assert "Two things".startswith(choice["message"]["reasoning_content"])


ANSWER = "A long answer. " * 8
PAGE = 16


@pytest.mark.parametrize(
    ("name", "main", "is_kept"),
    [
        ("smollm3", ANSWER, True),
        ("gpt-oss", f"<|channel|>final<|message|>{ANSWER}", True),
        ("gpt-oss", f"<|channel|>final<|message|>{ANSWER}{FORK}", True),  # up to the promise
        ("qwen3", f"<think>\nHm\n</think>\n\n{ANSWER}", False),  # the answer saw its thought
    ],
)
def test_a_second_turn_computes_what_the_first_has_not(name: str, main: str, is_kept: bool) -> None:
    own = backend(name, main)
    first = post("/v1/chat/completions", ASKED, app=create_app(own)).json()
    turns = [
        *ASKED["messages"],
        first["choices"][0]["message"],
        {"role": "user", "content": "Really?"},
    ]
    body = ASKED | {"messages": turns}
    second = post("/v1/chat/completions", body, app=create_app(own)).json()
    shared = first["usage"]["prompt_tokens"] + is_kept * len(ids_of(name, main.partition(FORK)[0]))
    num_cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert shared - 2 * PAGE < num_cached <= shared
    alone = saying(name, main, "Block.").generate(turns)
    assert second["choices"][0]["message"]["content"] == alone.text


MARKED = [name for name in WRITTEN if name != "gpt-oss"]  # its marks are text in a message


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("begun", ["<think>\nfirst I", "<think>first I", "  <think>first\n\nI"])
def test_a_reply_that_is_begun_inside_its_thought_goes_on_in_it(name: str, begun: str) -> None:
    main = f" count{WRITTEN[name][1]}The answer is 4."
    turns = [*ASKED["messages"], {"role": "assistant", "content": begun}]
    body = {"messages": turns, "continue_final_message": True}
    message = reply(body, name=name, main=main).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (" count", "The answer is 4.")
    pieces = streamed(reply(body | {"stream": True}, name=name, main=main))
    deltas = [choice["delta"] for piece in pieces for choice in piece["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == " count"
    model = saying(name, main)
    request = model.request(turns, continues=True)
    assert rendered(name, list(request.prompt))[-40:].partition("<think>")[1:] == (
        "<think>", begun.partition("<think>")[2],
    )  # fmt: skip
    assert model.engine.generate([request])[0][0].reasoning == " count"


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("begun", ["<think>\nA\n</think>\n\nThe", "The"])
def test_a_reply_that_is_begun_behind_its_thought_has_none(name: str, begun: str) -> None:
    turns = [*ASKED["messages"], {"role": "assistant", "content": begun}]
    message = reply({"messages": turns, "continue_final_message": True}, name=name, main=" rest")
    (choice,) = message.json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": " rest", "refusal": None}


@pytest.mark.parametrize("name", WRITTEN)
def test_an_effort_of_none_is_no_thought(name: str) -> None:
    kwargs = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
    quiet = reply({"reasoning_effort": "none"}, name=name, main="Hello").json()
    assert "ignored" not in quiet["pasta"]
    same = reply(kwargs, name=name, main="Hello").json()["usage"]["prompt_tokens"]
    assert quiet["usage"]["prompt_tokens"] == same
    assert "reasoning_content" not in quiet["choices"][0]["message"]


@pytest.mark.parametrize(
    ("effort", "kwargs", "status"),
    [
        ("none", {"enable_thinking": True}, 400),
        ("none", {"thinking": True}, 400),
        ("none", {"reasoning_effort": "high"}, 400),
        ("low", {"reasoning_effort": "high"}, 400),
        ("none", {"enable_thinking": False, "thinking": None}, 200),
        ("low", {"reasoning_effort": "low"}, 200),
    ],
)
def test_an_effort_that_the_variables_of_the_template_contradict_is_refused(
    effort: str, kwargs: dict[str, Any], status: int
) -> None:
    body = {"reasoning_effort": effort, "chat_template_kwargs": kwargs}
    told = reply(body, main="Hello")
    assert (told.status_code, "leave one of them out" in told.text) == (status, status == 400)


def test_a_thought_that_the_template_cannot_switch_off_is_refused() -> None:
    own = saying("qwen3", MAIN)
    tokenizer = own.engine.loaded.vocabulary.tokenizer
    template = tokenizer.chat_template
    try:
        tokenizer.chat_template = "{{ messages[0].content }}{# <think> </think> #}"
        own_backend = LocalBackend(own, "qwen3")
        for body, status in (({"reasoning_effort": "none"}, 400), (OFF, 400), ({}, 200)):
            app = create_app(own_backend)
            refused = post("/v1/chat/completions", ASKED | body, app=app)
            assert refused.status_code == status
            assert ("cannot switch its thought off" in refused.text) is (status == 400)
    finally:
        tokenizer.chat_template = template


def test_what_the_template_does_not_read_is_named() -> None:
    body = {"reasoning_effort": "low", "chat_template_kwargs": {"colour": "red"}}
    body["messages"] = [{**ASKED["messages"][0], "name": "Ada"}]
    ignored = reply(body).json()["pasta"]["ignored"]
    assert ignored == ["messages.name", "reasoning_effort", "chat_template_kwargs.colour"]
    assert "ignored" not in reply({"reasoning_effort": "low"}, name="gpt-oss").json()["pasta"]
