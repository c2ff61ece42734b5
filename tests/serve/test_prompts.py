"""Several prompts in one request: their choices one after another, given up together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pasta_lm.serve.app import create_app
from tests.serve.conftest import (
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

PATH = "/v1/completions"
PROMPTS: tuple[Any, ...] = (["a", "b c"], [[7, 8], [9]], ["a"] * 5, [3, 4, 5], [[5]])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("n", [1, 3])
def test_every_prompt_has_n_choices_whole_and_streamed(prompt: Any, n: int) -> None:
    num_prompts = 1 if isinstance(prompt[0], int) else len(prompt)
    body = post(PATH, {"prompt": prompt, "n": n}).json()
    indices = list(range(num_prompts * n))
    assert [(one["index"], one["text"]) for one in body["choices"]] == [(i, TEXT) for i in indices]
    words = sum(len(one.split()) if isinstance(one, str) else 1 for one in prompt)
    num_ids = sum(len(one) for one in prompt if isinstance(one, list))
    assert body["usage"]["prompt_tokens"] == (num_ids or words)
    asked = {"prompt": prompt, "n": n, "stream": True, "stream_options": {"include_usage": True}}
    pieces = streamed(post(PATH, asked))
    assert [text_of(pieces, index) for index in indices] == [TEXT] * len(indices)
    assert pieces[-1]["usage"] == body["usage"]


@scenario
async def test_a_prompt_that_fails_ends_the_request_and_no_other() -> None:
    app = create_app(poisoned("poison", 3))
    async with client_of(app) as client:
        bad = {"prompt": ["a", "poison", "b"]}
        bodies = [bad, {**bad, "stream": True}, {"prompt": ["a", "b"]}]
        asked = [client.post(PATH, json=body) for body in bodies]
        whole, stream, other = await asyncio.gather(*asked)
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, "engine_error")
        assert streamed(stream)[-1]["error"]["code"] == "engine_error"
        assert [one["text"] for one in other.json()["choices"]] == [TEXT] * 2
        await settle(lambda: is_idle(app))
