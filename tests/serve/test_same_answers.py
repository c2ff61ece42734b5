"""The server's answers are those of ``pasta run``: each route and stream, alone and in company."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache
from typing import Any

import httpx
import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import SamplingParams
from pasta_lm.language.document import Document, parse
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import LocalBackend
from pasta_lm.serve.protocol import ClientPrompt
from pasta_lm.strategies.model import Pasta
from tests.architectures import build, load
from tests.serve.conftest import client_of, run, scenario, streamed
from tests.serve.load import CHAT_PATH, TEXT_PATH
from tests.taught import CHAT

PROMPTS = ("hello", "the dog", "three tips")
SEED = 5
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "top_p": 0.9, "min_p": 0.02},
    "penalised": {"presence_penalty": 0.5, "frequency_penalty": 1.5, "logit_bias": {9: 4.0}},
}
STREAMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "text": {"stream": True},
    "events": {"stream": True, "pasta": {"stream": "events"}},
}


@cache
def taught(name: str) -> LoadedModel:
    """Return a tiny random model that forks a lot and has a chat template."""
    made = load(name, build(name))
    made.vocabulary.tokenizer.chat_template = CHAT
    return made


def model(name: str = "llama") -> Pasta:
    return Pasta(TorchEngine(taught(name), pool_tokens=8192, captures=False))


def texts_of(reply: httpx.Response, num: int) -> list[str]:
    pieces = streamed(reply) if reply.text.startswith(("data", "id")) else [reply.json()]
    texts = [""] * num
    for choice in (one for piece in pieces for one in piece["choices"]):
        told = choice.get("message") or choice.get("delta") or choice
        texts[choice["index"]] += told.get("content") or told.get("text") or ""
    return texts


@pytest.mark.parametrize("sampling", SAMPLINGS)
@scenario
async def test_every_route_answers_as_pasta_run_does_also_in_company(sampling: str) -> None:
    own = model()
    params = SamplingParams(max_tokens=40, seed=SEED, n=2, **SAMPLINGS[sampling])
    chats = [[one.text for one in own.samples(prompt, params)] for prompt in PROMPTS]
    continued = own.engine.generate([own.request(one, params, continues=True) for one in PROMPTS])
    texts = [answer.text for answers in continued for answer in answers]
    assert len({*texts, *(text for pair in chats for text in pair)}) > 3
    asked = {"max_tokens": 40, "seed": SEED, "n": 2, **SAMPLINGS[sampling]}

    async with client_of(create_app(LocalBackend(model(), "tiny"))) as client:

        async def one(path: str, body: dict[str, Any], expected: list[str]) -> None:
            reply = await client.post(path, json={**asked, **body})
            assert texts_of(reply, len(expected)) == expected

        works: list[tuple[str, dict[str, Any], list[str]]] = []
        for stream in STREAMS.values():
            for prompt, expected in zip(PROMPTS, chats, strict=True):
                messages = [{"role": "user", "content": prompt}]
                works.append((CHAT_PATH, {"messages": messages, **stream}, expected))
            works.append((TEXT_PATH, {"prompt": list(PROMPTS), **stream}, texts))
        for work in works[:4]:
            await one(*work)
        await asyncio.gather(*(one(*work) for work in works))


MANY_BYTES = parse(
    "Na\u00efve \U0001f35d\U0001f9d1\u200d\U0001f373 caf\u00e9:"
    '<promise topic="one" tokens="2"/><async> \u4f60\u597d, \u4e16\u754c \U0001f35c</async>'
    '<promise topic="two" tokens="2"/><async> \u0928\u092e\u0938\u094d\u0924\u0947 STOP here'
    "</async><sync/> \u20ac5 \U0001f9c0."
)


class Given(LocalBackend):
    """The local engine, which writes a given answer whatever is asked."""

    def __init__(self, own: Pasta, document: Document) -> None:
        super().__init__(own, "tiny")
        self.forced = own.engine.loaded.vocabulary.encode_document(document)

    def prepare(self, prompt: ClientPrompt, params: SamplingParams) -> Any:
        return replace(super().prepare(prompt, params), forced=self.forced)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("stream", ["text", "events"])
@pytest.mark.parametrize("stop", [None, "STOP", "\U0001f9c0", "\u4e16\u754c"])
def test_no_character_is_split_and_no_stop_leaks(name: str, stream: str, stop: str | None) -> None:
    own = model(name)
    vocabulary = own.engine.loaded.vocabulary
    assert any(len(vocabulary.encode_text(one)) > 1 for one in "\u4f60\U0001f9c0")
    stops = {} if stop is None else {"stop": [stop]}
    body = {"prompt": "a", **stops}

    async def ask() -> tuple[httpx.Response, httpx.Response]:
        async with client_of(create_app(Given(own, MANY_BYTES))) as client:
            streams = await client.post(TEXT_PATH, json={**body, **STREAMS[stream]})
            return streams, await client.post(TEXT_PATH, json=body)

    reply, whole = run(ask())
    text = MANY_BYTES.plain_text
    (expected,) = texts_of(whole, 1)
    assert texts_of(reply, 1) == [expected]
    assert expected == text if stop is None else text.startswith(expected) or stop not in expected
    threads: dict[int, str] = {}
    for piece in streamed(reply):
        facts = piece.get("pasta", {})
        assert "\ufffd" not in (piece["choices"][0]["text"] if piece["choices"] else "")
        # Only a thread that a stop string of another cuts off may end within a character.
        assert "\ufffd" not in facts.get("delta", "").removesuffix("" if stop is None else "\ufffd")
        if facts.get("kind") == "text":
            threads[facts["thread"]] = threads.get(facts["thread"], "") + facts["delta"]
    assert all(stop is None or stop not in one for one in [expected, *threads.values()])


@scenario
async def test_long_prompts_tools_and_cached_tokens_are_told_in_openais_words() -> None:
    own = Pasta(
        TorchEngine(taught("llama"), pool_tokens=8192, captures=False, shares_prefixes=True)
    )
    turns = [{"role": "user", "content": "the dog " * 40}, {"role": "tool", "content": "it barks"}]
    async with client_of(create_app(LocalBackend(own, "tiny"))) as client:
        refused = await client.post(TEXT_PATH, json={"prompt": [5] * 3000})
        long = {"messages": [{"role": "user", "content": "the dog " * 200_000}]}
        for path, body in ((CHAT_PATH, long), (TEXT_PATH, {"prompt": "a" * 999_999})):
            assert "the prompt has more than" in (await client.post(path, json=body)).text
        asked = {"messages": turns, "max_tokens": -1, "stop": ["e"]}
        usages = [(await client.post(CHAT_PATH, json=asked)).json()["usage"] for _ in range(2)]
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 2048 tokens; the prompt has 3000" in refused.text
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[0] == 0 < cached[1] < usages[1]["prompt_tokens"]
