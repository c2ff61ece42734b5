"""uvicorn around the application: one clean end for SIGTERM and Ctrl-C, logs as JSON lines."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.types import Scope

from pasta_lm.errors import UsageError, cause
from pasta_lm.serve.guard import JsonLines
from pasta_lm.serve.service import Service

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Ends in two steps: the first signal drains, the second ends at once."""

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[], None], greet: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._greet = greet

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and tell so."""
        await super().startup(sockets)
        if self.started:
            self._greet()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; uvicorn's own would raise it again at the end, and not exit with 0."""
        if self.should_exit:
            self.force_exit = True
            return
        self._drain()
        self.should_exit = True

    def cut_off(self, scope: Scope) -> None:
        """Close a request's connection; bytes that wait to be sent would otherwise keep it open."""
        for connection in list(self.server_state.connections):
            peer = connection.transport.get_extra_info("peername")
            if peer and tuple(peer[:2]) == tuple(scope.get("client") or ()):
                connection.transport.abort()


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and does not listen yet: a model takes a while to load.

    Raises:
        UsageError: the address is taken, or is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    place = socket.socket(family)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((host.strip("[]"), port))
    except OSError as error:
        place.close()
        hint = "--port N takes another port; --port 0 a free one"
        raise UsageError(f"port {port} of {host}: {cause(error)}", hint=hint) from error
    return place


def address_of(place: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = place.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: FastAPI, greet: Callable[[], None] = lambda: None) -> Server:
    """Return a server that is ready to run on bound sockets; it greets once it listens."""
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        # The engine ends requests at its own deadline; this is for those that do not end.
        timeout_graceful_shutdown=int(service.recipe.queue.drain_s) + 5,
        timeout_keep_alive=30,
        lifespan="on",
        ws="none",  # there are no WebSockets; a request for one is answered as any other
    )
    server = Server(config, service.engine.drain, greet)
    service.cut_off = server.cut_off
    return server


def log_as_json() -> None:
    """Write the log of the server to standard error, a JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("pasta_lm.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
