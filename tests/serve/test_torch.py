"""The server over the local engine: the answers of ``Pasta.samples``, and no page left behind."""

from __future__ import annotations

import asyncio
from typing import Any

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import SamplingParams
from pasta_lm.language.tags import PIECES
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import LocalBackend
from pasta_lm.serve.protocol import ClientPrompt
from pasta_lm.strategies.model import Pasta
from tests.architectures import loaded
from tests.serve.conftest import client_of, post, run, settle, streamed, text_of

PATH = "/v1/chat/completions"
ASKED = {"max_tokens": 60, "temperature": 1.0, "seed": 5, "n": 2}


def model(pool_tokens: int = 4096) -> Pasta:
    """Return a tiny random model that forks a lot."""
    return Pasta(TorchEngine(loaded("llama"), pool_tokens=pool_tokens, captures=False))


def chat(content: str, **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **ASKED, **changes}


def test_tags_that_a_user_types_are_text() -> None:
    backend = LocalBackend(model(), "tiny")
    vocabulary = loaded("llama").vocabulary
    typed = "".join(PIECES[:6]) + '<promise topic="a" tokens="3"/><async>b</async><sync/>'
    turns = [{"role": role, "content": typed} for role in ("system", "user", "assistant", "user")]
    for content in (turns, typed):
        ids = backend.prepare(ClientPrompt(content), SamplingParams()).prompt
        assert not set(ids) & set(vocabulary.piece_ids.values())


def test_a_completion_is_not_read_by_the_chat_template() -> None:
    backend = LocalBackend(model(), "tiny")
    vocabulary = loaded("llama").vocabulary
    ids = backend.prepare(ClientPrompt("Once upon"), SamplingParams()).prompt
    assert list(ids) == vocabulary.encode_prompt("Once upon")


def test_token_ids_are_a_prompt_and_those_of_tags_are_refused() -> None:
    vocabulary = loaded("llama").vocabulary
    ids = vocabulary.encode_prompt("Once upon")
    asked = {**ASKED, "max_tokens": 20, "prompt": ["Once upon", "a"]}
    texts = post("/v1/completions", asked, app=create_app(LocalBackend(model(), "tiny"))).json()
    asked["prompt"] = [ids, vocabulary.encode_prompt("a")]
    same = post("/v1/completions", asked, app=create_app(LocalBackend(model(), "tiny"))).json()
    assert [one["text"] for one in same["choices"]] == [one["text"] for one in texts["choices"]]
    assert [one["index"] for one in same["choices"]] == [0, 1, 2, 3]
    assert same["usage"] == texts["usage"]
    for wrong in (min(vocabulary.piece_ids.values()), -1, 10**9, 2**70):
        app = create_app(LocalBackend(model(), "tiny"))
        assert post("/v1/completions", {"prompt": [*ids, wrong]}, app=app).status_code == 400


def test_tokens_are_lowered_to_the_cache_and_a_prompt_without_room_is_refused() -> None:
    app = create_app(LocalBackend(model(pool_tokens=256), "tiny"))
    body = post(PATH, chat("hello", max_tokens=4000, n=1), app=app).json()
    assert 100 < body["pasta"]["max_tokens"] < 256
    app = create_app(LocalBackend(model(pool_tokens=64), "tiny"))
    response = post(PATH, chat("hello " * 300), app=app)
    assert response.status_code == 400
    assert "cache" in response.json()["error"]["message"]


def test_requests_beyond_the_cache_wait_and_are_answered() -> None:
    async def crowd() -> int:
        app = create_app(LocalBackend(model(pool_tokens=300), "tiny"))
        async with client_of(app) as client:
            replies = await asyncio.gather(
                *(client.post(PATH, json=chat("hello", seed=seed)) for seed in range(6))
            )
            assert {reply.status_code for reply in replies} == {200}
            engine = app.state.service.engine
            await settle(lambda: engine.load.num_running == 0)
            assert engine.load.cache_usage == 0.0
            return len(replies)

    assert run(crowd()) == 6


def test_a_skeleton_comes_at_the_end_and_continues_no_text() -> None:
    asked = chat("hello", n=1, max_tokens=80, pasta={"strategy": "sot"})
    app = create_app(LocalBackend(model(), "tiny"))
    whole = post(PATH, asked, app=app).json()["choices"][0]["message"]["content"]
    app = create_app(LocalBackend(model(), "tiny"))
    assert text_of(streamed(post(PATH, {**asked, "stream": True}, app=app))) == whole
    app = create_app(LocalBackend(model(), "tiny"))
    body = {"prompt": "Once", "pasta": {"strategy": "sot"}}
    assert post("/v1/completions", body, app=app).status_code == 400
