"""uvicorn around the application: one clean end for SIGTERM and Ctrl-C, logs as JSON lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

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
    )
    return Server(config, service.engine.drain)


def log_as_json() -> None:
    """Write the log of the server to standard error, a JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("pasta_lm.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
