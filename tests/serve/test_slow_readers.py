"""A reader that does not read is dropped, with its connection, over real sockets."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pasta_lm.language import parse
from pasta_lm.serve.app import create_app
from pasta_lm.view.scripted import ScriptedEngine
from tests.fakes.scripted_backend import ScriptedBackend
from tests.serve.conftest import CHAT, LIMIT_S, recipe, scripted, serving

Until = Callable[[Callable[[], bool]], None]
BLOCK = f'<async topic="t"> {" ".join(["x" * 8000] * 80)}</async>'
LONG = parse(BLOCK * 12, "annotator")  # more than all buffers between the two take


def ask(url: str, **changes: Any) -> socket.socket:
    """Send a request on a connection that takes little, and do not read."""
    host, port = url.removeprefix("http://").split(":")
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect((host, int(port)))
    body = json.dumps({**CHAT, "stream": True, **changes}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    line.sendall(head.encode() + body)
    return line


def test_who_does_not_read_is_dropped_and_its_connection_is_closed(
    until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(ScriptedBackend(ScriptedEngine(LONG)), recipe(send_s=0.2))
    service = app.state.service
    with (
        caplog.at_level(logging.WARNING),
        serving(app) as (server, url),
        ask(url, n=8, pasta={"stream": "events"}) as line,
    ):
        dropped = 'limit_hits_total{limit="slow_reader",model_name="script"} 1.0'
        until(lambda: dropped in service.engine.metrics.text().decode())
        until(lambda: not (server.server_state.connections or server.server_state.tasks))
        until(lambda: not service.engine.backend.has_work)
        until(lambda: service.engine.load["num_requests_running"] == 0)
        line.settimeout(30)
        received = bytearray()
        with suppress(ConnectionResetError):
            while part := line.recv(65536):
                received += part
        assert received.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in received
        assert not received.endswith(b"\r\n0\r\n\r\n"), "it ended as if it were complete"
    assert not [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


def test_connections_on_which_no_whole_request_comes_are_closed_and_large_bodies_refused() -> None:
    post = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    sent = {
        b"": b"",
        b"GET /health HTTP": b"",
        b"GET /version HTTP": b"",  # the second on its connection
        post + b"Content-Length: 99\r\n\r\n{": b"408",
        post + b"Content-Length: 9999999999\r\n\r\n": b"413",
    }
    with serving(create_app(scripted(), recipe(read_s=0.3))) as (_, address):
        host, port = address.removeprefix("http://").split(":")
        places = [socket.create_connection((host, int(port)), LIMIT_S) for _ in sent]
        places[2].sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert places[2].recv(4096).startswith(b"HTTP/1.1 200")
        for place, data in zip(places, sent, strict=True):
            place.sendall(data)
        for place, status in zip(places, sent.values(), strict=True):
            reply = b""
            with suppress(ConnectionResetError):
                while part := place.recv(4096):  # to its end
                    reply += part
            assert reply.split(b" ", 2)[1:2] == [status] * bool(status)
