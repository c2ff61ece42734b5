"""The server over the local engine: the answers of ``Pasta.samples``, and no page left behind."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from fastapi import FastAPI

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import SamplingParams
from pasta_lm.serve import ServeRecipe
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import LocalBackend
from pasta_lm.serve.protocol import ChatCompletionRequest
from pasta_lm.strategies.model import Pasta
from tests.architectures import loaded
from tests.serve.conftest import post, streamed, text_of

PATH = "/v1/chat/completions"
ASKED = {"max_tokens": 60, "temperature": 1.0, "seed": 5, "n": 2}


def model(pool_tokens: int = 4096) -> Pasta:
    return Pasta(TorchEngine(loaded("llama"), pool_tokens=pool_tokens, captures=False))


def tiny(**settings: Any) -> FastAPI:
    return create_app(LocalBackend(model(**settings), "tiny"))


def chat(content: str, **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **ASKED, **changes}


def test_token_ids_are_a_prompt_and_those_of_tags_are_refused() -> None:
    vocabulary = loaded("llama").vocabulary
    ids = vocabulary.encode_prompt("Once upon")
    asked = {**ASKED, "max_tokens": 20, "prompt": ["Once upon", "a"]}
    texts = post("/v1/completions", asked, app=tiny()).json()
    asked["prompt"] = [ids, vocabulary.encode_prompt("a")]
    same = post("/v1/completions", asked, app=tiny()).json()
    assert [one["text"] for one in same["choices"]] == [one["text"] for one in texts["choices"]]
    assert [one["index"] for one in same["choices"]] == [0, 1, 2, 3]
    assert same["usage"] == texts["usage"]
    for wrong in (min(vocabulary.piece_ids.values()), -1, 10**9, 2**70):
        app = tiny()
        assert post("/v1/completions", {"prompt": [*ids, wrong]}, app=app).status_code == 400


def test_tokens_are_lowered_to_the_cache_and_a_prompt_without_room_is_refused() -> None:
    app = tiny(pool_tokens=256)
    body = post(PATH, chat("hello", max_tokens=4000, n=1), app=app).json()
    assert 100 < body["pasta"]["max_tokens"] < 256
    app = tiny(pool_tokens=64)
    response = post(PATH, chat("hello " * 300), app=app)
    assert response.status_code == 400
    assert "cache" in response.json()["error"]["message"]


def test_a_skeleton_comes_at_the_end_and_continues_no_text() -> None:
    asked = chat("hello", n=1, max_tokens=80, pasta={"strategy": "sot"})
    whole = post(PATH, asked, app=tiny()).json()["choices"][0]["message"]["content"]
    assert text_of(streamed(post(PATH, {**asked, "stream": True}, app=tiny()))) == whole
    app = tiny()
    body = {"prompt": "Once", "pasta": {"strategy": "sot"}}
    assert post("/v1/completions", body, app=app).status_code == 400


@pytest.mark.parametrize("mask", [True, False])
def test_log_probabilities_are_those_of_the_logits_of_each_token(*, mask: bool) -> None:
    seen: dict[tuple[int, int, int], torch.Tensor] = {}

    def look(response: Any, live: Any, choice: Any, logits_V: torch.Tensor) -> None:
        index = response.trace.threads[live.thread.id].num_tokens
        seen[response.sample, live.thread.id, index] = logits_V.double().log_softmax(-1)

    engine = TorchEngine(loaded("llama"), pool_tokens=4096, captures=False, on_logits=look)
    ends = dict.fromkeys(loaded("llama").eos_ids, 4.0)
    params = SamplingParams(
        max_tokens=60, temperature=1.0, seed=2, n=4, logprobs=3, max_tokens_per_thread=6,
        logit_bias=ends, mask=mask, fork_bias=4.0,
    )  # fmt: skip
    answers = Pasta(engine).samples("hello", params)
    plain = model().samples("hello", replace(params, logprobs=None))
    assert [one.document for one in answers] == [one.document for one in plain]
    num_checked = 0
    for sample, answer in enumerate(answers):
        for thread in answer.trace.threads:
            for index, record in enumerate(answer.trace.tokens_of(thread.id)):
                if record.is_forced:
                    continue
                found = answer.logprobs[thread.id, index]
                expected_V = seen[sample, thread.id, index]
                assert record.token is not None
                assert found.logprob == pytest.approx(float(expected_V[record.token]), abs=1e-4)
                assert [token for token, _ in found.top] == expected_V.topk(3).indices.tolist()
                num_checked += 1
    assert num_checked == sum(len(answer.logprobs) for answer in answers) > 30, "of no others"
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}
    blocks = [(a.trace.tokens_of(t.id), t) for a in answers for t in a.trace.threads[1:]]
    assert any(t.finish_reason == "length" for _, t in blocks)
    assert mask or any(ts[-1].is_forced and t.finish_reason == "stop" for ts, t in blocks)


@pytest.mark.parametrize("strategy", ["pasta", "sequential", "prompt-lookup", "sot"])
@pytest.mark.parametrize("changes", [{}, {"stop": ["e"]}])
def test_logprobs_are_of_the_text_in_reading_order(strategy: str, changes: dict[str, Any]) -> None:
    asked = chat("hello", n=1, logprobs=True, top_logprobs=2, pasta={"strategy": strategy})
    asked |= changes
    choice = post(PATH, asked, app=tiny()).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert content
    text = b"".join(bytes(one["bytes"]) for one in content).decode("utf-8", "replace")
    assert text.startswith(choice["message"]["content"].rstrip("\ufffd")) or changes
    for one in content:
        assert one["token"] == bytes(one["bytes"]).decode("utf-8", "replace")
        best, second = one["top_logprobs"]
        assert one["logprob"] <= best["logprob"] >= second["logprob"]
    pieces = streamed(post(PATH, {**asked, "stream": True}, app=tiny()))
    assert [p for p in pieces if p["choices"][0]["logprobs"]][0]["choices"][0]["logprobs"] == (
        choice["logprobs"]
    )


def test_the_log_probabilities_of_a_completion_have_offsets() -> None:
    asked = {"prompt": "Once", "max_tokens": 30, "seed": 3, "temperature": 1.0, "logprobs": 2}
    choice = post("/v1/completions", asked, app=tiny()).json()["choices"][0]
    found = choice["logprobs"]
    assert found["text_offset"] == [0, *accumulate(map(len, found["tokens"]))][:-1]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"])
    assert all(value <= 0 for value in found["token_logprobs"])


JSON_MODE = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (0.3, 5, 1.1)),
        ({"temperature": 1, "top_k": -1, "repetition_penalty": 1}, (1, None, 1)),
        ({"response_format": {"type": "text"}}, (0.3, 5, 1.1)),
        (JSON_MODE, (0.3, 5, 1)),
        ({"structured_outputs": {"choice": ["a"]}}, (0.3, 5, 1)),
        ({**JSON_MODE, "repetition_penalty": 1.2}, (0.3, 5, 1.2)),
    ],
)
def test_what_a_request_leaves_out_is_as_the_model_s_generation_config_says(
    changes: dict[str, float], expected: tuple[float, int | None, float]
) -> None:
    defaults = {"temperature": 0.3, "top_k": 5, "repetition_penalty": 1.1}
    body = ChatCompletionRequest(messages=[{"role": "user", "content": "a"}], **changes)  # type: ignore[arg-type]
    params = body.params(ServeRecipe().limits, defaults)
    assert (params.temperature, params.top_k, params.repetition_penalty) == expected


SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
SCHEMA |= {"additionalProperties": False}


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"response_format": {"type": "json_schema",
                              "json_schema": {"name": "a", "schema": SCHEMA}}},
         r'\{"n": ?[12]\}'),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}},
         r'\s*\{\s*"n"\s*:\s*[12]\s*\}\s*'),
        ({"response_format": {"type": "json_object"}}, r"(?s)\{[^ \n].*"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"response_format": {"type": "text"}}, "(?s).*"),
    ],
)  # fmt: skip
def test_an_answer_matches_the_form_that_is_asked_for(wanted: dict[str, Any], pattern: str) -> None:
    body = post(PATH, chat("hello", **wanted), app=tiny()).json()
    for choice in body["choices"]:
        assert re.fullmatch(pattern, choice["message"]["content"])


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"response_format": {"type": "json_schema"}}, "belongs to the type json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
         "no such type 'x'"),
        ({"structured_outputs": {}}, "exactly one of"),
        ({"structured_outputs": {"jsn": {}}}, "jsn"),
        ({"structured_outputs": {"json": {}, "json_object": True}}, "are two forms"),
        ({"structured_outputs": {"grammar": "start: <[999999]>"}}, "cannot be"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
         "two ways to say the same"),
        ({"response_format": {"type": "json_object"}, "pasta": {"strategy": "sot"}},
         "several threads"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_used_is_refused(wanted: dict[str, Any], reason: str) -> None:
    reply = post(PATH, chat("hello", **wanted), app=tiny())
    assert (reply.status_code, reason in reply.text) == (400, True)


# --- parts


CARD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "hotel": {"enum": ["Aurora", "Sol"]},
        "guest": {"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 4}, "tag": {"enum": ["a", "b"]}}},
        "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "extra": {"const": {"x": ["}"]}},
    },
}  # fmt: skip


def card(schema: Any = CARD, **changes: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "card", "schema": schema}}
    return chat("hello", response_format=form, **{"pasta": {"parts": True}, **changes})


@pytest.mark.parametrize(
    ("max_tokens", "options"),
    [(9, {}), (15, {"max_threads": 2}), (200, {}), (200, {"after": {"nights": ["guest"]}})],
)
def test_streamed_parts_are_as_the_whole_object(max_tokens: int, options: dict[str, Any]) -> None:
    asked = card(max_tokens=max_tokens, pasta={"parts": True, **options})
    whole = post(PATH, asked, app=tiny()).json()
    assert whole["pasta"]["strategy"] == "parts"
    for stream in ("text", "events"):
        changed = {**asked, "stream": True, "pasta": {**asked["pasta"], "stream": stream}}
        pieces = streamed(post(PATH, changed, app=tiny()))
        for choice, figures in zip(whole["choices"], whole["pasta"]["choices"], strict=True):
            text, unfinished = choice["message"]["content"], figures.get("unfinished", ())
            assert text_of(pieces, choice["index"]) == text
            missing = {name.partition(".")[0] for name in unfinished}
            assert {*json.loads(text), *missing} == {*CARD["properties"]}
            assert bool(unfinished) is (max_tokens < 200)
            ends = [(piece["choices"][0], piece.get("pasta", {})) for piece in pieces]
            ((end, about),) = [(e, about) for e, about in ends
                               if e["index"] == choice["index"] and e["finish_reason"]]  # fmt: skip
            reason = "length" if unfinished else "stop"
            assert end["finish_reason"] == choice["finish_reason"] == reason
            assert about.get("unfinished", ()) == unfinished
    kinds = {piece["pasta"].get("kind") for piece in pieces if "pasta" in piece}
    assert {"started", "text", "ended", "finished"} <= kinds


@pytest.mark.parametrize("content", ["The Sol.", "An Aurora?"])
def test_places_of_texts_are_in_the_last_message_or_in_a_choice_s_prompt(content: str) -> None:
    fields = {"properties": {"a": {"const": "Sol"}, "b": {"const": "Aurora"}, "c": {"const": 1}}}
    options = {"pasta": {"parts": True, "spans": True}, "n": 2}
    expected = {"a": [4, 7] if "Sol" in content else None,
                "b": [3, 9] if "Aurora" in content else None, "c": None}  # fmt: skip
    asked = card(fields, **options)
    asked["messages"] = [{"role": "system", "content": "Sol or Aurora"},
                         {"role": "user", "content": content}]  # fmt: skip
    choices = post(PATH, asked, app=tiny()).json()["pasta"]["choices"]
    assert [choice["spans"] for choice in choices] == [expected] * 2
    del asked["messages"]
    asked["prompt"] = ["Sol", content]
    texts = post("/v1/completions", asked, app=tiny()).json()["pasta"]["choices"]
    assert [choice["spans"] for choice in texts[2:]] == [expected] * 2
    assert [choice["spans"]["a"] for choice in texts[:2]] == [[0, 3]] * 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"response_format": None}, "give its schema in response_format"),
        ({"response_format": {"type": "json_object"}}, "so it has no parts"),
        ({"pasta": {"parts": True, "strategy": "pasta"}}, "no other strategy"),
        ({"pasta": {"after": {"nights": ["guest"]}}}, "after is for parts"),
        ({"pasta": {"spans": True}}, "spans is for parts"),
        ({"pasta": {"parts": True, "after": {"x": ["guest"]}}}, "no part is named 'x'"),
        ({"pasta": {"parts": True, "after": {"nights": ["nights"]}}}, "wait for each other"),
        ({"continue_final_message": True}, "parts continue no message"),
    ],
)
def test_parts_that_cannot_be_are_refused(changes: dict[str, Any], reason: str) -> None:
    reply = post(PATH, card() | changes, app=tiny())
    assert (reply.status_code, reason in reply.text) == (400, True), reply.text
