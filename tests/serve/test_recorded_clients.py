"""What other programs really send, as recorded, and which fields may be in a request at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pasta_lm.serve import Bounds
from pasta_lm.serve.app import create_app
from pasta_lm.serve.fields import IGNORED, NEUTRAL
from pasta_lm.serve.protocol import ChatCompletionRequest
from tests.serve.conftest import (
    CHAT,
    LIMIT_S,
    TEXT,
    ask,
    client_of,
    post,
    scenario,
    scripted,
    serving,
    streamed,
    text_of,
)

FILES = sorted(Path(__file__).with_name("recorded").glob("*.json"))
RECORDED = {
    f"{file.stem}: {one['what']}": one
    for file in FILES
    for one in json.loads(file.read_text("utf-8"))["requests"]
}
KEY, PATH = "sk-test", "/v1/chat/completions"


@pytest.mark.parametrize("what", RECORDED)
def test_a_recorded_request_is_answered_as_its_client_expects(what: str) -> None:
    sent = RECORDED[what]
    body: dict[str, Any] = sent["body"] or {}
    headers = {**sent["headers"], "authorization": f"Bearer {KEY}"}
    app = create_app(scripted(), api_key=KEY)
    content = json.dumps(body) if body else None
    reply = ask(sent["method"], sent["path"], app=app, headers=headers, content=content)
    assert reply.status_code == sent["status"], reply.text
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]
    elif sent["method"] == "GET":
        assert [model["id"] for model in reply.json()["data"]] == ["script"]
    elif body.get("stream"):
        check_stream(body, streamed(reply), is_chat="messages" in body)
    else:
        check_answer(body, reply.json(), is_chat="messages" in body)


def check_answer(body: dict[str, Any], said: dict[str, Any], *, is_chat: bool) -> None:
    texts = [one["message"]["content"] if is_chat else one["text"] for one in said["choices"]]
    assert len(texts) == body.get("n", 1) * (
        len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    )
    (expected,) = body.get("stop") or [TEXT]
    if "max_tokens" not in body:
        assert {text.removesuffix(expected) for text in texts} == {TEXT.removesuffix(expected)}
    else:
        assert all(TEXT.startswith(text) for text in texts)
        assert said["usage"]["completion_tokens"] <= body["max_tokens"] * len(texts)
    assert said["pasta"].get("ignored") == (["tools"] if body.get("tools") else None)


def check_stream(body: dict[str, Any], pieces: list[dict[str, Any]], *, is_chat: bool) -> None:
    text = text_of(pieces) if is_chat else "".join(p["choices"][0]["text"] for p in pieces)
    assert text
    assert TEXT.startswith(text)
    if (body.get("stream_options") or {}).get("include_usage"):
        assert pieces[-1]["usage"]["completion_tokens"] > 0
    assert pieces[0]["pasta"].get("ignored") == (["tools"] if body.get("tools") else None)


def test_every_recording_says_what_was_recorded_and_when() -> None:
    assert {file.stem for file in FILES} == {"litellm", "open_webui"}
    for file in FILES:
        about = json.loads(file.read_text("utf-8"))
        assert all(about[key] for key in ("client", "version", "date", "recorded"))
        assert KEY not in file.read_text("utf-8")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KNOWN = {*ChatCompletionRequest.model_fields, *NEUTRAL}
KNOWN |= {name for place, name in IGNORED if place == "request"}


@given(name=st.text(max_size=20).filter(lambda name: name not in KNOWN), value=JSON_VALUES)
def test_a_field_that_nobody_knows_is_refused_unless_it_is_null(name: str, value: Any) -> None:
    body = {**CHAT, name: value}
    if value is None:
        ChatCompletionRequest.model_validate(body)
    else:
        with pytest.raises(ValidationError) as error:
            ChatCompletionRequest.model_validate(body)
        assert [mistake["loc"] for mistake in error.value.errors()] == [(name,)]


@given(name=st.sampled_from(sorted(NEUTRAL)), value=JSON_VALUES | st.floats(0.5, 0.9))
def test_a_field_of_others_may_ask_for_nothing_and_for_no_more(name: str, value: Any) -> None:
    body = {**CHAT, name: value}
    if value is None or value in NEUTRAL[name]:
        ChatCompletionRequest.model_validate(body)
    else:
        with pytest.raises(ValidationError, match=name):
            ChatCompletionRequest.model_validate(body)


@pytest.mark.parametrize("name", sorted({*ChatCompletionRequest.model_fields} - {"messages"}))
def test_null_asks_for_nothing(name: str) -> None:
    plain = ChatCompletionRequest.model_validate({**CHAT, "seed": 3})
    try:
        found = ChatCompletionRequest.model_validate({**CHAT, "seed": 3, name: None})
    except ValidationError as error:
        raise AssertionError(f"{name} may not be null") from error
    if name != "seed":
        assert found.params(Bounds(), {}) == plain.params(Bounds(), {})


OTHERS: dict[str, Any] = {
    **{"echo": True, "best_of": 2, "n_predict": 2, "guided_json": {"a": 1}, "temprature": {}},
    **{"stop_token_ids": [1], "functions": [{"name": "f"}], "modalities": ["text", "audio"]},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}}
TURN = {"role": "assistant", "content": "plain"}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [*CHAT["messages"], {**TURN, **fields}]}


INSIDE: dict[str, dict[str, Any]] = {
    "response_format.schema": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "response_format.json_schema.regex": {
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "regex": "a"},
        }
    },
    "structured_outputs.structural_tag": {"structured_outputs": {"structural_tag": "a"}},
    "stream_options.continuous_usage_stats": {"stream_options": {"continuous_usage_stats": True}},
    "pasta.strategie": {"pasta": {"strategie": "pasta"}},
    "messages.1.prefix": turn(prefix=True),
    "messages.1.function_call": turn(function_call={"name": "f", "arguments": "{}"}),
    "messages.1.audio": turn(audio={"id": "a"}),
    "messages.1.content.0.detail": turn(content=[{"type": "text", "text": "a", "detail": "low"}]),
    "messages.1.tool_calls.0.custom": turn(tool_calls=[{**CALLED, "custom": {}}]),
    "messages.1.tool_calls.0.function.strict": turn(
        tool_calls=[{"function": {**CALLED["function"], "strict": True}}]
    ),
}  # fmt: skip


@scenario
async def test_fields_of_other_servers_are_refused_by_name_and_place() -> None:
    bodies = {**INSIDE, **{name: {name: value} for name, value in OTHERS.items()}}
    async with client_of(create_app(scripted())) as client:
        for place, changes in bodies.items():
            replies = [await client.post(PATH, json={**CHAT, **changes})]
            if place in OTHERS:
                replies.append(
                    await client.post("/v1/completions", json={"prompt": "a", **changes})
                )
            for reply in replies:
                error = reply.json()["error"]
                about = (reply.status_code, error["param"], error["code"])
                assert about == (400, place, "unsupported")
                assert error["message"].startswith(f"{place} is not supported; ")


def test_a_refusal_names_the_field_that_is_known_here() -> None:
    for sent, known in (("temprature", "temperature"), ("n_predict", "max_tokens")):
        assert f"{known} is known here" in post(PATH, {**CHAT, sent: 5}).text


def test_what_clients_echo_of_a_reply_and_send_for_others_changes_nothing() -> None:
    echoed = turn(
        name=None, refusal=None, annotations=[], audio=None, function_call=None, prefix=False,
        provider_specific_fields={"a": 1}, tool_calls=[{**CALLED, "index": 0}],
    )  # fmt: skip
    for place, name in IGNORED:
        value: Any = {"a": "b"}
        sent = {
            "request": {name: value},
            "stream_options": {"stream": True, "stream_options": {name: value}},
            "messages": turn(
                content=[{"type": "text", "text": "a", name: value}],
                tool_calls=[{**CALLED, name: value}],
                **{name: value},
            ),
            "json_schema": {},  # a script has no other form
        }[place]
        assert post(PATH, {**CHAT, **echoed, **sent}).status_code == 200, (place, name)
    plain = [{**CALLED}]
    (kept, bare) = (ChatCompletionRequest.model_validate(turn(**fields)) for fields in (
        {**echoed["messages"][-1]}, {"tool_calls": plain}))  # fmt: skip
    assert kept.messages[-1].turn == bare.messages[-1].turn


def test_the_page_says_what_is_ignored_and_why() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")
    for (place, name), why in IGNORED.items():
        rows = [line for line in page.splitlines() if line.startswith(f"| {place} |")]
        assert any(f"`{name}`" in row and why in row for row in rows)


MESSAGES: Any = CHAT["messages"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(create_app(scripted(), api_key=KEY)) as (_, address):
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=LIMIT_S)


@pytest.mark.parametrize("n", [1, 4])
def test_a_chat_whole_and_as_a_stream(client: openai.OpenAI, n: int) -> None:
    asked: dict[str, Any] = {"model": "script", "messages": MESSAGES, "n": n, "stop": ["all."]}
    whole = client.chat.completions.create(**asked, seed=1)
    assert {one.message.content for one in whole.choices} == {TEXT.removesuffix("all.")}
    assert whole.id.startswith("chatcmpl-")
    texts, reasons, usage = dict.fromkeys(range(n), ""), set(), None
    options = {"include_usage": True}
    for piece in client.chat.completions.create(**asked, stream=True, stream_options=options):
        usage = piece.usage or usage
        for choice in piece.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons.add(choice.finish_reason)
    assert {*texts.values()} == {TEXT.removesuffix("all.")}
    assert reasons == {None, "stop"}
    assert usage == whole.usage


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="script", prompt="Once", max_tokens=9)
    assert TEXT.startswith(answer.choices[0].text)
    assert answer.choices[0].finish_reason == "length"
    stream = client.completions.create(model="script", prompt="Once", stream=True)
    assert "".join(piece.choices[0].text for piece in stream) == TEXT


def test_errors_are_the_package_s_own(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="log-probabilities"):
        client.chat.completions.create(model="script", messages=MESSAGES, logprobs=True)
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


Command = Callable[..., str]


def output_of(command: list[str], **settings: Any) -> str:
    pipes = {"capture_output": True, "encoding": "utf-8", "timeout": 120}
    done = subprocess.run(command, **pipes, **settings)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_llm_prints_the_answer(url: str, tmp_path: Path, flags: list[str]) -> None:
    pytest.importorskip("llm", reason="the command llm is not installed")
    about = {"model_id": "pasta", "model_name": "script", "api_base": f"{url}/v1"}
    models = [{**about, "api_key_name": "pasta"}]  # JSON is YAML
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models), encoding="utf-8")
    (tmp_path / "keys.json").write_text(json.dumps({"pasta": KEY}), encoding="utf-8")
    environment = {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": "", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "llm", "-m", "pasta", *flags, "How do I live well?"]
    said = output_of(command, env={**os.environ, **environment}, input="")
    assert said.rstrip("\n") == TEXT


@pytest.fixture
def curl(url: str) -> Command:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")

    def call(path: str, *arguments: str, key: str = KEY) -> str:
        command = ["curl", "--silent", "--show-error", "--max-time", "60", "--noproxy", "*"]
        header = f"Authorization: Bearer {key}"
        return output_of([*command, "-H", header, *arguments, url + path])

    return call


def test_curl_without_a_content_type_is_told_what_to_send(curl: Command) -> None:
    said = json.loads(curl("/v1/chat/completions", "-d", json.dumps(CHAT)))
    assert "Content-Type: application/json" in said["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models/", "/v1//models", "//v1/models/script/"])
def test_slashes_too_many_change_nothing(curl: Command, path: str) -> None:
    assert '"id":"script"' in curl(path)
    assert "invalid_api_key" in curl(path, key="wrong")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/"])
def test_a_head_without_a_body_is_answered(curl: Command, path: str) -> None:
    assert curl(path, "--head").startswith("HTTP/1.1 200")
