"""uvicorn around the application: one clean end for SIGTERM and Ctrl-C, logs as JSON lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.types import Scope

from pasta_lm.serve.guard import JsonLines


class Server(uvicorn.Server):
    """Ends in two steps: the first signal drains, the second ends at once."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain = drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; uvicorn's own would raise it again at the end, and not exit with 0."""
        if self.should_exit:
            self.force_exit = True
            return
        self._drain()
        self.should_exit = True

    def cut_off(self, scope: Scope) -> None:
        """Close a request's connection; what waits to be sent would otherwise keep it open."""
        for connection in list(self.server_state.connections):
            peer = connection.transport.get_extra_info("peername")
            if peer and tuple(peer[:2]) == tuple(scope.get("client") or ()):
                connection.transport.abort()


def make_server(app: FastAPI, *, host: str, port: int) -> Server:
    """Return a server that is ready to run."""
    service = app.state.service
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        # The engine ends what runs at its own deadline; this is for what does not hear it.
        timeout_graceful_shutdown=int(service.recipe.queue.drain_s) + 5,
        timeout_keep_alive=30,
        lifespan="on",
        ws="none",  # there are no WebSockets; a request for one is answered as any other
    )
    server = Server(config, service.engine.drain)
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
