"""Requests made from the server's own OpenAPI schema, valid and not: none is an error of ours.

``PASTA_SCHEMA_REQUESTS`` sets the number of requests; the default is small.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from pasta_lm.serve.app import create_app
from tests.serve.conftest import scripted, serving

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
