"""Commands that people have against uvicorn on loopback: curl, and ``llm`` with its own files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pasta_lm.serve.app import create_app
from tests.serve.conftest import CHAT, TEXT, scripted, serving

KEY = "sk-test"
Command = Callable[..., str]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(create_app(scripted(), api_key=KEY)) as (_, address):
        yield address


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
        done = subprocess.run(
            [sys.executable, "-m", "llm", *arguments],
            env={**os.environ, **environment},
            input=typed,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_llm_prints_the_answer(llm: Command, flags: list[str]) -> None:
    assert llm("-m", "pasta", *flags, "How do I live well?").rstrip("\n") == TEXT


def test_llm_continues_a_conversation(llm: Command) -> None:
    llm("-m", "pasta", "How do I live well?")
    llm("-c", "And what else?")
    turns = json.loads(llm("logs", "--json", "-n", "2"))
    assert [turn["response"] for turn in turns] == [TEXT, TEXT]
    assert turns[0]["conversation_id"] == turns[1]["conversation_id"]
    first, second = (turn["input_tokens"] for turn in turns)
    assert second > first + len(TEXT.split()) // 2, "the first answer went along"


def test_llm_completes_a_text(llm: Command) -> None:
    assert llm("-m", "text", "Once").rstrip("\n") == TEXT


@pytest.fixture
def curl(url: str) -> Command:
    """Return what runs curl on a path of the server."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")

    def call(path: str, *arguments: str, key: str = KEY) -> str:
        command = ["curl", "--silent", "--show-error", "--max-time", "60", "--noproxy", "*"]
        header = f"Authorization: Bearer {key}"
        done = subprocess.run(
            [*command, "-H", header, *arguments, url + path],
            capture_output=True,
            encoding="utf-8",
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


JSON = ("-H", "Content-Type: application/json")


def test_curl_reads_a_stream_line_by_line(curl: Command) -> None:
    asked = json.dumps({**CHAT, "stream": True, "stream_options": {"include_usage": True}})
    said = curl("/v1/chat/completions", "--no-buffer", *JSON, "-d", asked)
    lines = [line.removeprefix("data: ") for line in said.split("\n") if line]
    assert lines[-1] == "[DONE]"
    pieces = [json.loads(line) for line in lines[:-1]]
    text = "".join(one["delta"].get("content", "") for p in pieces for one in p["choices"])
    assert text == TEXT
    assert pieces[-1]["usage"]["completion_tokens"] > 0


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
