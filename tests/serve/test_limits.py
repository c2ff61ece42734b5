"""Limits hold for every request: what is lowered is echoed, what is refused is refused at once."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from pasta_lm.serve import Bounds, ServeRecipe
from pasta_lm.serve.app import create_app
from tests.serve.conftest import CHAT, ask, client_of, post, recipe, run, scripted

PATH = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(("num_more", "status"), [(0, 200), (1, 413)])
@pytest.mark.parametrize("is_in_parts", [False, True])
def test_a_body_of_two_mebibytes_is_read_and_no_byte_more(
    num_more: int, status: int, is_in_parts: bool
) -> None:
    head, tail = b'{"messages": [{"role": "user", "content": "a"}], "user": "', b'"}'
    body = head + b"x" * (2 * 1024 * 1024 + num_more - len(head) - len(tail)) + tail

    async def parts() -> Any:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    content = parts() if is_in_parts else body
    assert ask("POST", PATH, content=content, headers=JSON).status_code == status


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    app = create_app(scripted(), recipe(read_s=0.05))
    reply = ask("POST", PATH, app=app, content=half(), headers=JSON)
    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "body_too_slow")


@pytest.mark.parametrize("limits", [Bounds(tokens=12), Bounds(tokens_per_thread=5)])
@pytest.mark.parametrize("n", [1, 4])
def test_a_limit_of_tokens_holds_whatever_is_asked(limits: Bounds, n: int) -> None:
    app = create_app(scripted(), ServeRecipe(limits=limits))
    options = {"max_tokens_per_thread": 900, "max_threads": 60}
    told = post(PATH, {**CHAT, "max_tokens": 4000, "n": n, "pasta": options}, app=app).json()[
        "pasta"
    ]
    assert told["max_tokens"] == min(4000, limits.tokens)
    assert told["max_tokens_per_thread"] == min(900, limits.tokens_per_thread)
    assert len(told["choices"]) == n
    for choice in told["choices"]:
        lengths = [one["num_tokens"] for one in choice["threads"]]
        assert sum(lengths) <= limits.tokens
        assert max(lengths[1:], default=0) <= limits.tokens_per_thread


def test_a_key_is_compared_in_constant_time_whatever_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = Mock(wraps=hmac.compare_digest)
    monkeypatch.setattr("pasta_lm.serve.guard.hmac.compare_digest", compared)
    app = create_app(scripted(), api_key="secret")
    for key in ("", "wrong", "x" * 5000):
        headers = {"Authorization": f"Bearer {key}"}
        assert ask("GET", "/v1/models", app=app, headers=headers).status_code == 401
        one, other = compared.call_args.args
        assert len(one) == len(other)
        assert b"secret" not in other


PATHS = ("/%00", "/a%00b", "/" + "a" * 5000, "/%ff", "/..%2f..%2fetc%2fpasswd", "//", "/v1//")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "OTHER")


def test_no_path_or_method_is_an_error_of_the_server() -> None:
    async def ask_all() -> set[int]:
        async with client_of(create_app(scripted())) as client:
            paths = (*PATHS, "/v1/events/%00", "/v1/events/" + "a" * 3000, PATH, "/health")
            return {
                (await client.request(method, path)).status_code
                for path in paths
                for method in METHODS
            }

    assert max(run(ask_all())) < 500


DEPTHS = (10, 200, 500, 900, 990, 1000, 5000, 100_000)
PLACES = (
    '{"messages": @}',
    '{"messages": [{"role": "user", "content": @}]}',
    '{"pasta": {"a": @}}',
)


@pytest.mark.parametrize(
    "place", [*PLACES, '{"messages": [{"role": "user", "content": "a"}], "b": @}']
)
def test_json_of_any_depth_is_read_or_refused(place: str) -> None:
    async def ask_all() -> set[int]:
        async with client_of(create_app(scripted())) as client:
            bodies = [
                place.replace("@", opens * depth + "1" * (opens != "[") + closes * depth)
                for depth in DEPTHS
                for opens, closes in (("[", "]"), ('{"a": ', "}"))
            ]
            replies = [await client.post(PATH, content=one, headers=JSON) for one in bodies]
            return {reply.status_code for reply in replies}

    assert run(ask_all()) <= {200, 400}
