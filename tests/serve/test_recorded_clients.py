"""What other programs really send, as recorded, and which fields may be in a request at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    TEXT,
    ask,
    client_of,
    post,
    scenario,
    scripted,
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
    reply = ask(
        sent["method"],
        sent["path"],
        app=app,
        headers=headers,
        content=json.dumps(body) if body else None,
    )
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
    **{
        name: value
        for names, value in (
            ("add_special_tokens echo enable_thinking safe_prompt thinking", True),
            ("skip_special_tokens logit_bias_exp", False),
            ("dry_multiplier length_penalty tfs_z typical_p xtc_probability", 0.5),
            ("best_of min_tokens mirostat n_predict truncate_prompt_tokens", 2),
            ("id_slot random_seed repeat_last_n thinking_budget_tokens", 3),
            ("ebnf grammar prompt_embeds regex stop_regex suffix", "a"),
            ("audio guided_json json_schema prediction reasoning", {"a": 1}),
            ("bad_words banned_tokens lora samplers stop_token_ids", [1]),
            ("extra_body options temprature web_search_options", {}),
        )
        for name in names.split()
    },
    "use_beam_search": True,
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
}  # fmt: skip
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
