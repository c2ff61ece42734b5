"""The routes of the server, and how errors leave it; uvicorn around them, with one clean end."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from types import FrameType
from typing import Any, TextIO

import uvicorn
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from pasta_lm.errors import PastaError, UsageError, cause
from pasta_lm.serve import ServeRecipe
from pasta_lm.serve.backends import Backend
from pasta_lm.serve.errors import ApiError, bad_request, from_error, internal
from pasta_lm.serve.fields import INSTEAD
from pasta_lm.serve.guard import Guard, JsonLines, PlainLines, StrictRoute, error_response
from pasta_lm.serve.protocol import ChatCompletionRequest, CompletionRequest
from pasta_lm.serve.service import Service, check_model
from pasta_lm.view.page import STATIC, page_of

Responses = dict[int | str, dict[str, Any]]  # of a route, by their status

_IS_KIND = re.compile(r"body|str|int|list\[.*\]|function-.*|literal\[.*\]|Tool")
"""Parts of the place of an error that the client did not write: the kind that failed."""
FIELDS = [*ChatCompletionRequest.model_fields]  # that a name of no field may be meant for


class PageFiles(StaticFiles):
    """The page's files; every request that no route takes ends here."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        super().__init__(directory=STATIC, html=True)
        self._routes = [route for route in routes if isinstance(route, Route)]

    async def get_response(self, path: str, scope: Scope) -> Response:
        method, place = scope["method"], scope["path"][:200]
        matches = [route for route in self._routes if route.path_regex.match(scope["path"])]
        if methods := {name for route in matches for name in route.methods or ()}:
            allow = ", ".join(sorted(methods))
            message = f"{place} takes {allow}, not {method}"
            raise HTTPException(405, message, headers={"Allow": allow})
        if any(route.path_regex.match(f"/v1{scope['path']}") for route in self._routes):
            message = f"there is no {place} here, but /v1{place}: the base URL ends in /v1"
            raise HTTPException(404, message)
        if method not in ("GET", "HEAD"):
            raise HTTPException(404, f"there is no {method} {place} here")
        return await super().get_response(path, scope)


def create_app(
    backend: Backend, recipe: ServeRecipe | None = None, *, api_key: str | None = None,
    only_loopback: bool = True, version: str = "unknown",
) -> FastAPI:  # fmt: skip
    """Return the application; its engine starts and ends with its lifespan.

    With ``only_loopback``, requests to other names than this machine's own are refused.
    """
    recipe = recipe or ServeRecipe()
    service = Service(backend, recipe)
    app = FastAPI(
        title="pasta-lm", version=version, lifespan=lambda _: service.engine.running(),
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    for error in (ApiError, PastaError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(error, _reply_to_error)
    app.state.service, app.state.recipe = service, recipe
    router = _routes(service, version)
    app.include_router(router)
    app.mount("/", PageFiles(router.routes), name="page")
    app.add_middleware(Guard, api_key=api_key, only_loopback=only_loopback)
    if recipe.cors_origins:  # outside of the guard: a browser asks first, without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(recipe.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # the official browser client sends headers of its own
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return app


def _routes(service: Service, number: str) -> APIRouter:
    errors: Responses = {kind: {"description": f"{kind} error"} for kind in ("4XX", "5XX")}
    router = APIRouter(route_class=StrictRoute, responses=errors)
    streams: Responses = {200: {"content": {"text/event-stream": {}}}}
    router.post("/v1/replay", responses=streams)(service.replay_answer)
    name = service.backend.name
    about = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "pasta-lm"}

    @router.post("/v1/chat/completions", responses=streams)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        return await service.respond(body, request)

    @router.post("/v1/completions", responses=streams)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await service.respond(body, request)

    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        ours = {"version": number, **service.about()}
        return {"object": "list", "data": [{**about, "pasta": ours}]}

    @router.get("/v1/page", response_class=HTMLResponse)
    async def page() -> str:
        return page_of([])

    @router.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> dict[str, Any]:
        check_model(model_id, name)
        return about

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> JSONResponse:
        status = service.engine.status
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(service.engine.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": number}

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
    *parts, last = (str(part)[:100] for part in mistake["loc"])
    is_unknown = mistake["type"] == "extra_forbidden"  # then the client wrote the last part
    kept = [part for part in parts if not _IS_KIND.fullmatch(part)]
    kept += [last] if is_unknown or not _IS_KIND.fullmatch(last) else []
    place = ".".join(kept)
    if not is_unknown:
        message = f"{place or 'the body'}: {mistake['msg'].removeprefix('Value error, ')}"
        return bad_request(message, place or None)
    near = INSTEAD.get(last) or next(iter(get_close_matches(last, FIELDS, 1, 0.8)), None)
    hint = "leave it out" if near is None or near == last else f"{near} is known here"
    return bad_request(f"{place} is not supported; {hint}", place, "unsupported")


class Server(uvicorn.Server):
    """Ends in two steps: the first signal drains, the second ends at once."""

    def __init__(self, app: FastAPI, greet: Callable[[], None] = lambda: None) -> None:
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
        super().__init__(config)
        self._drain, self._greet = service.engine.drain, greet

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._greet()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; uvicorn's own would raise it again at the end, and not exit with 0."""
        self.force_exit = self.should_exit
        if not self.should_exit:
            self._drain()
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet: a model takes a while to load."""
    place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((host.strip("[]"), port))
    except OSError as error:
        place.close()
        hint = "--port N takes another port; --port 0 a free one"
        raise UsageError(f"port {port} of {host}: {cause(error)}", hint=hint) from error
    return place


def address_of(place: socket.socket) -> str:
    host, port = place.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_log(stream: TextIO) -> None:
    """Write the log of the server to a stream: plain lines in a terminal, else JSON objects."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLines() if stream.isatty() else JsonLines())
    for name in ("pasta_lm.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
