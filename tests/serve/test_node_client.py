"""The npm package ``openai`` against uvicorn on loopback; installed for the run, on request."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import LocalBackend
from tests.serve.conftest import TEXT, held, is_idle, scripted, serving
from tests.serve.test_torch import model

KEY = "sk-test"
SCRIPT = Path(__file__).with_name("node") / "client.mjs"
Ask = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Return what calls a function of client.mjs; the package is installed once."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "openai"]
    subprocess.run(install, cwd=folder, check=True, timeout=300, capture_output=True)

    def call(url: str, what: str, name: str = "script") -> dict[str, Any]:
        command = [node, str(SCRIPT), url, KEY, name, what]
        done = subprocess.run(command, cwd=folder, timeout=120, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return call


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(create_app(scripted(), api_key=KEY)) as (_, address):
        yield address


def test_a_chat_whole_and_as_a_stream(ask: Ask, url: str) -> None:
    whole, stream = ask(url, "chat"), ask(url, "chatStream")
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert texts == stream["texts"] == [TEXT.removesuffix("all.")] * 2
    assert stream["reasons"] == [choice["finish_reason"] for choice in whole["choices"]]
    assert stream["reasons"] == ["stop", "stop"]
    assert stream["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] > 0
    assert whole["pasta"]["seed"] == 7


def test_its_own_helper_for_streams_reads_a_stream(ask: Ask, url: str) -> None:
    assert ask(url, "chatHelper")["text"] == TEXT


def test_completions_whole_and_as_a_stream(ask: Ask, url: str) -> None:
    choice = ask(url, "completion")["choices"][0]
    assert TEXT.startswith(choice["text"])
    assert choice["finish_reason"] == "length"
    assert ask(url, "completionStream")["text"] == TEXT


def test_the_models_are_listed(ask: Ask, url: str) -> None:
    assert ask(url, "models") == {"ids": ["script"]}


def test_errors_are_the_package_s_own(ask: Ask, url: str) -> None:
    assert ask(url, "errors")["names"] == [
        "NotFoundError 404 model_not_found",
        "BadRequestError 400 unsupported",
        "NotFoundError 404 not_found",
        "NotFoundError 404 not_found",
        "AuthenticationError 401 invalid_api_key",
    ]


def test_log_probabilities(ask: Ask) -> None:
    with serving(create_app(LocalBackend(model(), "tiny"))) as (_, address):
        choice = ask(address, "logprobs", "tiny")["choices"][0]
    content = choice["logprobs"]["content"]
    assert content
    for one in content:
        assert one["logprob"] <= one["top_logprobs"][0]["logprob"] <= 0
        assert len(one["top_logprobs"]) == 2


def test_a_stream_that_the_client_aborts_leaves_nothing(
    ask: Ask, until: Callable[[Callable[[], bool]], None]
) -> None:
    app = create_app(held(), api_key=KEY)
    with serving(app) as (_, address):
        assert ask(address, "abort") == {"numPieces": 1}
        until(lambda: is_idle(app))
