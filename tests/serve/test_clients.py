"""Real clients against uvicorn on loopback: OpenAI's own package, ``llm`` and curl."""

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

from pasta_lm.serve.app import create_app
from tests.serve.conftest import CHAT, LIMIT_S, TEXT, scripted, serving

KEY = "sk-test"
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


@pytest.fixture
def llm(url: str, tmp_path: Path) -> Command:
    """Return what runs ``llm`` with a folder of its own, in which the server is a model."""
    pytest.importorskip("llm", reason="the command llm is not installed")
    about = {"model_name": "script", "api_base": f"{url}/v1", "api_key_name": "pasta"}
    models = [{"model_id": "pasta", **about}, {"model_id": "text", "completion": True, **about}]
    # JSON is YAML.
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models), encoding="utf-8")
    (tmp_path / "keys.json").write_text(json.dumps({"pasta": KEY}), encoding="utf-8")
    environment = {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": "", "PYTHONUTF8": "1"}

    def call(*arguments: str, typed: str = "") -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        return output_of(command, env={**os.environ, **environment}, input=typed)

    return call


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_llm_prints_the_answer(llm: Command, flags: list[str]) -> None:
    assert llm("-m", "pasta", *flags, "How do I live well?").rstrip("\n") == TEXT


@pytest.fixture
def curl(url: str) -> Command:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")

    def call(path: str, *arguments: str, key: str = KEY) -> str:
        command = ["curl", "--silent", "--show-error", "--max-time", "60", "--noproxy", "*"]
        header = f"Authorization: Bearer {key}"
        return output_of([*command, "-H", header, *arguments, url + path])

    return call


JSON = ("-H", "Content-Type: application/json")


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
