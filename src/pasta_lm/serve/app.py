"""The routes of the server, and how errors leave it; uvicorn around them, with one clean end."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from types import FrameType
from typing import TextIO

import uvicorn
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from sse_starlette.sse import AppStatus
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from pasta_lm.errors import PastaError, UsageError, cause
from pasta_lm.serve import ServeRecipe
from pasta_lm.serve.backends import Backend
from pasta_lm.serve.errors import ApiError, Json, bad_request, from_error, internal
from pasta_lm.serve.fields import INSTEAD
from pasta_lm.serve.guard import Guard, JsonLines, PlainLines, StrictRoute, error_response
from pasta_lm.serve.protocol import ChatCompletionRequest
from pasta_lm.serve.service import Service
from pasta_lm.view.page import STATIC

_IS_KIND = re.compile(r"body|str|int|list\[.*\]|function-.*|literal\[.*\]|Tool")
"""Items of the location of an error that name the kind that failed; no client wrote them."""
FIELDS = [*ChatCompletionRequest.model_fields]  # that a misspelt name may mean


class PageFiles(StaticFiles):
    """The page's files; every request that no route takes ends here."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        super().__init__(directory=STATIC, html=True)
        self._routes = [route for route in routes if isinstance(route, Route)]

    async def get_response(self, path: str, scope: Scope) -> Response:
        method, shown = scope["method"], scope["path"][:200]
        matches = [route for route in self._routes if route.path_regex.match(scope["path"])]
        if methods := {name for route in matches for name in route.methods or ()}:
            allow = ", ".join(sorted(methods))
            message = f"{shown} takes {allow}, not {method}"
            raise HTTPException(405, message, headers={"Allow": allow})
        if any(route.path_regex.match(f"/v1{scope['path']}") for route in self._routes):
            message = f"there is no {shown} here, but /v1{shown}: the base URL ends in /v1"
            raise HTTPException(404, message)
        if method not in ("GET", "HEAD"):
            raise HTTPException(404, f"there is no {method} {shown} here")
        return await super().get_response(path, scope)


def create_app(
    backend: Backend, recipe: ServeRecipe | None = None, *, api_key: str | None = None,
    only_loopback: bool = True, version: str = "unknown",
) -> FastAPI:  # fmt: skip
    """Return the application; its engine starts and ends with its lifespan."""
    recipe = recipe or ServeRecipe()
    service = Service(backend, recipe, version)
    app = FastAPI(
        title="pasta-lm", version=version, lifespan=lambda _: service.engine.running(),
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    for error in (ApiError, PastaError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(error, _reply_to_error)
    app.state.service, app.state.recipe = service, recipe
    router = _routes(service)
    app.include_router(router)
    app.mount("/", PageFiles(router.routes), name="page")
    app.add_middleware(Guard, api_key=api_key, only_loopback=only_loopback)
    if recipe.cors_origins:  # outside of the guard: a browser asks first, without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(recipe.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # the official browser client sends several more
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return app


def _routes(service: Service) -> APIRouter:
    errors: dict[int | str, Json] = {
        kind: {"description": f"{kind} error"} for kind in ("4XX", "5XX")
    }
    streams: dict[int | str, Json] = {200: {"content": {"text/event-stream": {}}}}
    router = APIRouter(route_class=StrictRoute, responses=errors)
    router.post("/v1/replay", responses=streams)(service.replay_answer)
    router.post("/v1/chat/completions", responses=streams)(service.chat_completions)
    router.post("/v1/completions", responses=streams)(service.completions)
    router.get("/v1/models")(service.models)
    router.get("/v1/page", response_class=HTMLResponse)(service.page)
    router.get("/v1/models/{model_id:path}")(service.model)
    router.get("/health")(service.health)
    router.get("/metrics", response_class=PlainTextResponse)(service.metrics)
    router.get("/version")(service.version)
    router.head("/v1/models", include_in_schema=False)(service.models)
    router.head("/health", include_in_schema=False)(service.health)
    return router


async def _reply_to_error(_: Request, error: Exception) -> Response:
    match error:
        case ApiError():
            return error_response(error)
        case PastaError():
            return error_response(from_error(error))
        case RequestValidationError():
            return error_response(_of_mistake(error))
        case HTTPException():
            code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
            body = ApiError(error.status_code, str(error.detail), code=code).body
            return JSONResponse(body, error.status_code, headers=error.headers)
    return error_response(internal("internal_error"))


def _of_mistake(error: RequestValidationError) -> ApiError:
    mistake = max(error.errors(), key=lambda entry: len(entry["loc"]))  # the most exact
    *above, last = (str(item)[:100] for item in mistake["loc"])
    is_unknown = mistake["type"] == "extra_forbidden"  # then the client wrote the last item
    kept = [item for item in above if not _IS_KIND.fullmatch(item)]
    kept += [last] if is_unknown or not _IS_KIND.fullmatch(last) else []
    path = ".".join(kept)
    if not is_unknown:
        message = f"{path or 'the body'}: {mistake['msg'].removeprefix('Value error, ')}"
        return bad_request(message, path or None)
    near = INSTEAD.get(last) or next(iter(get_close_matches(last, FIELDS, 1, 0.8)), None)
    hint = "leave it out" if near is None or near == last else f"{near} is known here"
    return bad_request(f"{path} is not supported; {hint}", path, "unsupported")


class Server(uvicorn.Server):
    """Ends in two steps: the first signal drains, the second ends at once."""

    def __init__(self, app: FastAPI, greet: Callable[[], None] = lambda: None) -> None:
        service: Service = app.state.service
        config = uvicorn.Config(
            app, access_log=False, log_config=None, server_header=False, proxy_headers=False,
            # The engine ends requests at its deadline; this is for those that do not end.
            timeout_graceful_shutdown=int(service.recipe.queue.drain_s) + 5, timeout_keep_alive=30,
            lifespan="on",
            ws="none",  # there are no WebSockets; a request for one is answered as any other
        )  # fmt: skip
        super().__init__(config)
        # SIGTERM must not cut running streams: the engine loop ends them at its deadline.
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
        self._drain, self._greet = service.engine.drain, greet

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._greet()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; uvicorn would raise it again at the end, and not exit with 0."""
        self.force_exit = self.should_exit
        if not self.should_exit:
            self._drain()
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet: a model takes a while to load."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
    except OSError as error:
        bound.close()
        hint = "--port N takes another port; --port 0 a free one"
        raise UsageError(f"port {port} of {host}: {cause(error)}", hint=hint) from error
    return bound


def address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_log(stream: TextIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLines() if stream.isatty() else JsonLines())
    for name in ("pasta_lm.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
