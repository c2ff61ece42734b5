"""What is refused, and how: 400, 401, 404, 405 or 413 with a typed error, never 500."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from pydantic import ValidationError

from pasta_lm.errors import UsageError
from pasta_lm.recipe import read_recipe
from pasta_lm.serve import ServeRecipe
from pasta_lm.serve.app import create_app
from pasta_lm.serve.errors import ApiError
from pasta_lm.serve.guard import check_exposure, is_loopback, parse_json
from pasta_lm.serve.protocol import ChatCompletionRequest, CompletionRequest
from pasta_lm.serve.service import ReplayRequest
from tests.serve.conftest import CHAT, ask, client_of, scenario, scripted, serving

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}

BAD: dict[str, Any] = {
    "a list": [],
    "null": None,
    "empty messages": {"messages": []},
    "an unknown role": {"messages": [{"role": "robot", "content": "x"}]},
    "an image": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "a part without text": {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    "nothing but space": {"messages": [{"role": "user", "content": "  \n"}]},
    "too many messages": {"messages": [USER] * 1000},
    "n of 17": {**CHAT, "n": 17},
    "no tokens": {**CHAT, "max_tokens": 0},
    "an empty stop": {**CHAT, "stop": ""},
    "a stop in a list that is empty": {**CHAT, "stop": ["a", ""]},
    "too many stops": {**CHAT, "stop": ["a"] * 100},
    "a long stop": {**CHAT, "stop": "a" * 10_000},
    "top_logprobs alone": {**CHAT, "top_logprobs": 3},
    "a JSON schema": {**CHAT, "response_format": {"type": "json_object"}},
    "many biases": {**CHAT, "logit_bias": {str(token): 1 for token in range(301)}},
    "an unknown strategy": {**CHAT, "pasta": {"strategy": "best"}},
}


def assert_refused(response: Any, status: int = 400) -> dict[str, Any]:
    """Check the shape of an error and return its object."""
    assert response.status_code == status, response.text
    (error,) = response.json().values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in response.text
    return dict(error)


@scenario
async def test_bad_bodies_are_refused() -> None:
    async with client_of(create_app(scripted())) as client:
        for name, body in BAD.items():
            for changes in ({}, {"stream": True}):
                asked = {**changes, **body} if isinstance(body, dict) else body
                response = await client.post(PATH, json=asked)
                assert response.status_code == 400, name
                message = assert_refused(response)["message"]
                assert ("reads text only, not image_url" in message) is (name == "an image")


RAW = {
    "nothing": b"",
    "half an object": b"{",
    "NaN": b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
    "infinity": b'{"messages": [{"role": "user", "content": "a"}], "temperature": -Infinity}',
    "infinity in digits": b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
    "no UTF-8": b'{"messages": "\xff"}',
    "half a surrogate pair": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "half a pair as a key": b'{"\\uDfff": 1}',
    "a doubled key": b'{"messages": [{"role": "user", "content": "a"}], "n": 1, "n": 1}',
    "many digits": b'{"n": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW.keys())
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert_refused(ask("POST", PATH, content=raw, headers=headers))


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse_json(b'"\\ud83c\\udf5d"') == "\U0001f35d"


@pytest.mark.parametrize(
    "prompt",
    [None, 3, [], "", " ", {"text": "a"}, [[]], ["a", ""], ["a", 1], [1, "a"], ["a", [1]]]
    + [[True], [1.5], [[1], "a"], [[[1]]], ["a"] * 65, [[1]] * 65],
)
def test_a_completion_needs_texts_or_token_ids(prompt: Any) -> None:
    assert_refused(ask("POST", "/v1/completions", json={"prompt": prompt}))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/nothing", 404),
        ("POST", "/chat/completions", 404),
        ("PUT", "/health", 405),
        ("GET", "/v1/chat/completions", 405),
    ],
)
def test_unknown_routes_are_typed_errors(method: str, path: str, status: int) -> None:
    reply = ask(method, path)
    message = assert_refused(reply, status)["message"]
    assert ("the base URL ends in /v1" in message) is (path == "/chat/completions")
    assert ("Allow" in reply.headers) is (status == 405)


KEY = "secret-\u00e9"


@pytest.mark.parametrize(
    "given", [None, "Bearer", "Bearer wrong", f"Basic {KEY}", KEY, "Bearer " + KEY[:-1]]
)
@scenario
async def test_every_route_but_health_needs_the_key(given: str | None) -> None:
    app = create_app(scripted(), api_key=KEY)
    routes = [route.path for route in app.routes if hasattr(route, "path")]
    found = [path for path in routes if path not in ("", "/health")]
    paths = {*found, "/v1/models", "/metrics", "/version", "/openapi.json", PATH}
    headers = {} if given is None else {"Authorization": given.encode()}

    async with client_of(app) as client:
        assert (await client.get("/health")).status_code == 200
        for path in sorted(paths):
            for method in ("GET", "POST"):
                response = await client.request(method, path, headers=headers)
                assert_refused(response, 401)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8000"])
def test_without_a_key_only_names_of_this_machine_are_answered(host: str) -> None:
    assert_refused(ask("GET", "/v1/models", headers={"Host": host}))
    for own in ("LOCALHOST", "localhost.:8000", "[::1]:80"):
        assert ask("GET", "/v1/models", headers={"Host": own}).status_code == 200


def test_no_origin_is_allowed_unless_the_recipe_says_so() -> None:
    origin = {"Origin": "https://a.example"}
    headers = "authorization, x-stainless-os, last-event-id"  # as the official browser client
    asks = "Access-Control-Request-"
    asked = {**origin, f"{asks}Method": "POST", f"{asks}Headers": headers}
    response = ask("OPTIONS", PATH, headers=asked)
    assert "access-control-allow-origin" not in response.headers
    app = create_app(scripted(), ServeRecipe(cors_origins=("https://a.example",)), api_key=KEY)
    response = ask("OPTIONS", PATH, app=app, headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://a.example"
    assert response.headers["access-control-allow-headers"] == headers


def test_replies_carry_a_strict_policy_and_a_request_id() -> None:
    response = ask("GET", "/health", headers={"X-Request-Id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    hostile = ask("GET", "/health", headers={"X-Request-Id": 'a"b c'})
    assert len(hostile.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True)]
    + [("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.evil", False)],
)
def test_other_machines_are_let_in_only_with_a_key_or_on_purpose(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local
    check_exposure(host, "key", allows_everyone=False)
    check_exposure(host, None, allows_everyone=True)
    if is_local:
        check_exposure(host, None, allows_everyone=False)
    else:
        with pytest.raises(UsageError, match="no API key"):
            check_exposure(host, None, allows_everyone=False)


def test_an_empty_key_is_no_key() -> None:
    with pytest.raises(UsageError, match="empty"):
        check_exposure("127.0.0.1", " ", allows_everyone=False)


def test_limits_are_read_from_a_recipe() -> None:
    recipe = read_recipe(None, ServeRecipe, ["limits.n=4", "queue.waiting=0", "queue.ping_s=2"])
    assert (recipe.limits.n, recipe.queue.waiting, recipe.queue.ping_s) == (4, 0, 2)
    for change in ("limits.n=0", "queue.wall_s=0", "limits.m=3", "limits.tokens_per_thread=2"):
        with pytest.raises(UsageError):
            read_recipe(None, ServeRecipe, [change])


KEYS = [f"k{number}" for number in range(1000)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"messages": [0] * 300_000}),
        (PATH, {"messages": [{"role": "user", "content": [0] * 300_000}]}),
        (PATH, {**CHAT, "stop": [0] * 300_000}),
        ("/v1/completions", {"prompt": [*[0] * 300_000, "x"]}),
        ("/v1/completions", {"prompt": [[]] * 300_000}),
        ("/v1/replay", {"prompt": [*[0] * 300_000, "x"], "response": "a"}),
        (PATH, {**CHAT, "logit_bias": dict.fromkeys(KEYS, "z")}),
        (PATH, {**CHAT, "pasta": dict.fromkeys(KEYS)}),
        ("/v1/replay", {"prompt": "a", "response": "a", **dict.fromkeys(KEYS)}),
        ("/v1/replay", {"prompt": "a", "response": "a", "pasta": dict.fromkeys(KEYS)}),
    ],
)
def test_a_long_list_or_object_ends_at_its_first_fault(path: str, body: Any) -> None:
    model = {PATH: ChatCompletionRequest, "/v1/completions": CompletionRequest}
    model |= {"/v1/replay": ReplayRequest}
    with pytest.raises(ValidationError) as raised:
        model[path].model_validate(body)
    assert raised.value.error_count() < 10
    assert_refused(ask("POST", path, json=body))


def test_a_body_of_very_many_small_objects_is_not_even_parsed() -> None:
    with pytest.raises(ApiError, match="50000 brackets"):
        parse_json(b'{"prompt":[' + b"[0]," * 50_000 + b"[0]]}")


schemathesis = pytest.importorskip("schemathesis", reason="it is in the extra dev")

APP = create_app(scripted())
SCHEMA = schemathesis.openapi.from_dict(APP.openapi())
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
MODES = list(schemathesis.GenerationMode)
NUM_REQUESTS = int(os.environ.get("PASTA_SCHEMA_REQUESTS", "160"))
POSTED = [one for one in OPERATIONS if one.method == "post"]
NUM_GOT = 3  # of each route without a body: there is little to vary


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(APP) as (_, address):
        yield address


def without_options(body: Any) -> Any:
    """Return the body without what a script refuses, such as another form of the answer."""
    kept = ("messages", "prompt", "response", "form", "stream", "max_tokens")
    return {key: body[key] for key in kept if key in body} if isinstance(body, dict) else body


def send_all(operation: Any, mode: Any, num: int, url: str) -> set[int]:
    """Send requests of an operation, whole and bare, and return the statuses of the replies."""
    statuses = set()

    @hypothesis.settings(
        max_examples=num,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "script"  # another one is 404 before anything else is read
        whole = case.body
        for body in (whole, without_options(whole)):
            case.body = body
            reply = case.call(base_url=url)
            assert reply.status_code < 500, (reply.status_code, reply.text, case.as_curl_command())
            statuses.add(reply.status_code)

    send()
    return statuses


@pytest.mark.parametrize("operation", POSTED, ids=lambda one: one.label)
@pytest.mark.parametrize("mode", MODES, ids=lambda one: one.value)
def test_no_body_is_an_error_of_the_server(operation: Any, mode: Any, url: str) -> None:
    statuses = send_all(operation, mode, NUM_REQUESTS // (len(POSTED) * len(MODES)), url)
    assert 400 in statuses if mode is schemathesis.GenerationMode.NEGATIVE else 200 in statuses


@pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if one not in POSTED], ids=lambda one: one.label
)
def test_no_request_without_a_body_is_an_error_of_the_server(operation: Any, url: str) -> None:
    assert send_all(operation, schemathesis.GenerationMode.POSITIVE, NUM_GOT, url) <= {200, 404}


def test_every_route_of_the_api_is_in_the_schema() -> None:
    labels = {one.label for one in OPERATIONS}
    assert labels >= {"POST /v1/chat/completions", "POST /v1/completions", "GET /v1/models"}
    assert labels >= {"POST /v1/replay"}
    assert labels >= {"GET /health", "GET /metrics", "GET /version"}
