"""Answers of the server: whole and streamed, in reading order and as events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pasta_lm.engines.scripted import ScriptedEngine, words
from pasta_lm.language import parse
from pasta_lm.language.document import Block, Document
from pasta_lm.language.events import Text
from pasta_lm.serve.app import create_app
from tests.fakes.scripted_backend import ScriptedBackend
from tests.serve.conftest import (
    CHAT,
    DOCUMENT,
    TEXT,
    client_of,
    is_idle,
    poisoned,
    post,
    scenario,
    settle,
    streamed,
    text_of,
)

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"


def test_a_plain_request_gets_the_whole_text_and_the_usage() -> None:
    body = post(CHAT_PATH, CHAT).json()
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert choice["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert body["object"] == "chat.completion"
    assert body["pasta"]["choices"][0]["parallelism"] > 1
    assert len(body["pasta"]["choices"][0]["threads"]) == 4


def test_an_answer_whose_blocks_a_limit_cut_says_so() -> None:
    asked = {**CHAT, "pasta": {"max_tokens_per_thread": 4}}
    assert post(CHAT_PATH, asked).json()["choices"][0]["finish_reason"] == "length"
    last = streamed(post(CHAT_PATH, {**asked, "stream": True}))[-1]
    assert last["choices"][0]["finish_reason"] == "length"


def test_the_figures_are_those_of_the_trace_and_a_simulated_clock_gives_no_rate() -> None:
    body = post(CHAT_PATH, {**CHAT, "pasta": {"trace": True}}).json()
    (figures,) = body["pasta"]["choices"]
    path = figures["critical_path_tokens"]
    assert figures["theoretical_speedup"] == pytest.approx(len(words(TEXT)) / path, abs=1e-4)
    assert figures["parallelism"] == pytest.approx(figures["trace"]["parallelism"], abs=1e-4)
    assert figures["trace"]["kind"] == "simulated"
    assert figures["tokens_per_s"] is None


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("tags", ["strip", "keep"])
@pytest.mark.parametrize("mode", ["text", "events"])
def test_a_stream_is_the_whole_answer_in_reading_order(n: int, tags: str, mode: str) -> None:
    asked = {**CHAT, "n": n, "pasta": {"tags": tags, "stream": mode}}
    whole = post(CHAT_PATH, asked).json()
    pieces = streamed(post(CHAT_PATH, {**asked, "stream": True}))
    for choice in whole["choices"]:
        assert text_of(pieces, choice["index"]) == choice["message"]["content"]
    script = ScriptedEngine(DOCUMENT).answer()
    expected = script.program if tags == "keep" else TEXT
    assert whole["choices"][0]["message"]["content"] == expected


def test_events_name_every_thread_and_count_on() -> None:
    pieces = streamed(
        post(CHAT_PATH, {**CHAT, "stream": True, "pasta": {"stream": "events", "trace": True}})
    )
    facts = [piece["pasta"] for piece in pieces if "kind" in piece.get("pasta", {})]
    assert [one["seq"] for one in facts] == list(range(1, len(facts) + 1))
    assert all(one.keys() >= {"thread", "parent", "kind", "seq", "t_ms", "delta"} for one in facts)
    started = [(one["parent"], one["topic"]) for one in facts if one["kind"] == "started"]
    assert started == [(None, None), (0, "walk"), (0, "sleep"), (0, "eat")]
    assert [one["joined"] for one in facts if one["kind"] == "synced"] == [[1, 2, 3]]
    assert facts[-1]["trace"]["version"] == 1


HOSTILE = [
    "a < b & c &lt; &amp;lt; <promise <sync/ </async <syncs <sync",
    "<script>alert(1)</script>\u202e \u2028 \x85 \x00 end",
    "<" * 50 + "promise/> &" + "amp;" * 40 + "lt;promise <",
]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("tags", ["strip", "keep"])
def test_hostile_text_comes_out_as_it_is(hostile: str, tags: str) -> None:
    document = Document((Text(hostile), Block('a "t" & <', None, (Text(f" {hostile}"),))))
    app = create_app(ScriptedBackend(ScriptedEngine(document)))
    response = post(CHAT_PATH, {**CHAT, "stream": True, "pasta": {"tags": tags}}, app=app)
    assert not set("\u2028\x85") & set(response.text)
    text = text_of(streamed(response))
    if tags == "strip":
        assert text == document.plain_text
    else:
        assert parse(text).plain_text == document.plain_text


def test_usage_comes_last_when_it_is_asked_for() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    pieces = streamed(post(CHAT_PATH, {**CHAT, **options}))
    assert pieces[-1]["choices"] == []
    whole = post(CHAT_PATH, CHAT).json()
    assert pieces[-1]["usage"] == whole["usage"]
    (figures,), (expected,) = pieces[-1]["pasta"]["choices"], whole["pasta"]["choices"]
    assert {**figures, "wall_s": 0} == {**expected, "wall_s": 0}
    assert all(piece["usage"] is None for piece in pieces[:-1])


PROMPTS: tuple[Any, ...] = (["a", "b c"], [[7, 8], [9]], ["a"] * 5, [3, 4, 5], [[5]])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("n", [1, 3])
def test_every_prompt_has_n_choices_whole_and_streamed(prompt: Any, n: int) -> None:
    num_prompts = 1 if isinstance(prompt[0], int) else len(prompt)
    body = post(TEXT_PATH, {"prompt": prompt, "n": n}).json()
    indices = list(range(num_prompts * n))
    assert [(one["index"], one["text"]) for one in body["choices"]] == [(i, TEXT) for i in indices]
    words = sum(len(one.split()) if isinstance(one, str) else 1 for one in prompt)
    num_ids = sum(len(one) for one in prompt if isinstance(one, list))
    assert body["usage"]["prompt_tokens"] == (num_ids or words)
    asked = {"prompt": prompt, "n": n, "stream": True, "stream_options": {"include_usage": True}}
    pieces = streamed(post(TEXT_PATH, asked))
    assert [text_of(pieces, index) for index in indices] == [TEXT] * len(indices)
    assert pieces[-1]["usage"] == body["usage"]


@scenario
async def test_a_prompt_that_fails_ends_the_request_and_no_other() -> None:
    app = create_app(poisoned("poison", 3))
    async with client_of(app) as client:
        bad = {"prompt": ["a", "poison", "b"]}
        bodies = [bad, {**bad, "stream": True}, {"prompt": ["a", "b"]}]
        asked = [client.post(TEXT_PATH, json=body) for body in bodies]
        whole, stream, other = await asyncio.gather(*asked)
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, "engine_error")
        assert streamed(stream)[-1]["error"]["code"] == "engine_error"
        assert [one["text"] for one in other.json()["choices"]] == [TEXT] * 2
        await settle(lambda: is_idle(app))
