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
from pasta_lm.serve.errors import ApiError
from pasta_lm.serve.protocol import NEUTRAL, ChatCompletionRequest
from tests.serve.conftest import CHAT, TEXT, ask, scripted, streamed, text_of

FILES = sorted(Path(__file__).with_name("recorded").glob("*.json"))
RECORDED = {
    f"{file.stem}: {one['what']}": one
    for file in FILES
    for one in json.loads(file.read_text("utf-8"))["requests"]
}
KEY = "sk-test"


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


@given(name=st.text(max_size=20).filter(lambda name: name not in KNOWN), value=JSON_VALUES)
def test_a_field_that_nobody_knows_changes_nothing(name: str, value: Any) -> None:
    found = ChatCompletionRequest.model_validate({**CHAT, "seed": 3, name: value})
    assert found.params(Bounds(), {}) == ChatCompletionRequest.model_validate(
        {**CHAT, "seed": 3}
    ).params(Bounds(), {})


@given(name=st.sampled_from(sorted(NEUTRAL)), value=JSON_VALUES | st.floats(0.5, 0.9))
def test_a_field_that_would_change_the_answer_is_refused_by_its_name(name: str, value: Any) -> None:
    asked = ChatCompletionRequest.model_validate({**CHAT, name: value})
    if value is None or value in NEUTRAL[name]:
        asked.params(Bounds(), {})
    else:
        with pytest.raises(ApiError) as refused:
            asked.params(Bounds(), {})
        assert refused.value.status == 400
        assert refused.value.param == name
        assert name in refused.value.message


@pytest.mark.parametrize("name", sorted({*ChatCompletionRequest.model_fields} - {"messages"}))
def test_null_asks_for_nothing(name: str) -> None:
    plain = ChatCompletionRequest.model_validate({**CHAT, "seed": 3})
    try:
        found = ChatCompletionRequest.model_validate({**CHAT, "seed": 3, name: None})
    except ValidationError as error:
        raise AssertionError(f"{name} may not be null") from error
    if name != "seed":
        assert found.params(Bounds(), {}) == plain.params(Bounds(), {})
