"""Log-probabilities: the model's own, of the tokens that the text is made of."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import openai
import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import SamplingParams
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import LocalBackend
from pasta_lm.strategies.model import Pasta
from tests.architectures import loaded
from tests.serve.conftest import LIMIT_S, post, serving, streamed
from tests.serve.test_torch import PATH, chat, model


def test_they_are_those_of_the_logits_of_each_token() -> None:
    seen: dict[tuple[int, int, int], torch.Tensor] = {}

    def look(response: Any, live: Any, choice: Any, logits_V: torch.Tensor) -> None:
        index = response.trace.threads[live.thread.id].num_tokens
        seen[response.sample, live.thread.id, index] = logits_V.double().log_softmax(-1)

    engine = TorchEngine(loaded("llama"), pool_tokens=4096, captures=False, on_logits=look)
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=1, n=2, logprobs=3)
    plain = SamplingParams(max_tokens=60, temperature=1.0, seed=1, n=2)
    answers = Pasta(engine).samples("hello", params)
    assert [one.document for one in answers] == [
        one.document for one in model().samples("hello", plain)
    ]
    num_checked = 0
    for sample, answer in enumerate(answers):
        for thread in answer.trace.threads:
            for index, record in enumerate(answer.trace.tokens_of(thread.id)):
                if record.is_forced:
                    continue
                found, expected_V = (
                    answer.logprobs[thread.id, index],
                    seen[sample, thread.id, index],
                )
                assert record.token is not None
                assert found.logprob == pytest.approx(float(expected_V[record.token]), abs=1e-4)
                assert [token for token, _ in found.top] == expected_V.topk(3).indices.tolist()
                num_checked += 1
    assert num_checked > 30
    assert any(len(answer.trace.threads) > 1 for answer in answers)


@pytest.mark.parametrize("strategy", ["pasta", "sequential", "prompt-lookup", "sot"])
@pytest.mark.parametrize("changes", [{}, {"stop": ["e"]}])
def test_the_tokens_are_those_of_the_text_in_reading_order(
    strategy: str, changes: dict[str, Any]
) -> None:
    asked = chat("hello", n=1, logprobs=True, top_logprobs=2, pasta={"strategy": strategy})
    asked |= changes
    choice = post(PATH, asked, app=create_app(LocalBackend(model(), "tiny"))).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert content
    text = b"".join(bytes(one["bytes"]) for one in content).decode("utf-8", "replace")
    assert text.startswith(choice["message"]["content"].rstrip("\ufffd")) or changes
    for one in content:
        assert one["token"] == bytes(one["bytes"]).decode("utf-8", "replace")
        best, second = one["top_logprobs"]
        assert one["logprob"] <= best["logprob"] >= second["logprob"]
    pieces = streamed(
        post(PATH, {**asked, "stream": True}, app=create_app(LocalBackend(model(), "tiny")))
    )
    assert [p for p in pieces if p["choices"][0]["logprobs"]][0]["choices"][0]["logprobs"] == (
        choice["logprobs"]
    )


def test_a_completion_has_offsets() -> None:
    asked = {"prompt": "Once", "max_tokens": 30, "seed": 3, "temperature": 1.0, "logprobs": 2}
    choice = post("/v1/completions", asked, app=create_app(LocalBackend(model(), "tiny"))).json()[
        "choices"
    ][0]
    found = choice["logprobs"]
    assert found["text_offset"] == [0, *accumulate(map(len, found["tokens"]))][:-1]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"])
    assert all(value <= 0 for value in found["token_logprobs"])


def test_openai_s_package_reads_them() -> None:
    with serving(create_app(LocalBackend(model(), "tiny"))) as (_, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S)
        messages: Any = [{"role": "user", "content": "hello"}]
        answer = client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=20, logprobs=True, top_logprobs=1
        )
    assert answer.choices[0].logprobs is not None
    for one in answer.choices[0].logprobs.content or ():
        assert one.logprob <= one.top_logprobs[0].logprob <= 0
