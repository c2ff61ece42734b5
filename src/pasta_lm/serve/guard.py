"""Who is let in, and checks of untrusted requests; headers of replies, log of requests."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from hashlib import sha256
from ipaddress import ip_address
from typing import Never

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pasta_lm.errors import UsageError
from pasta_lm.journal import parse_unique
from pasta_lm.serve.errors import CLIENT_GONE, HEADERS, ApiError, bad_request

log = logging.getLogger("pasta_lm.serve.requests")

FACTS = "pasta.facts"
"""The key of a scope under which handlers leave facts for the log."""

PRIVATE = ("/v1/", "/metrics/", "/version/", "/openapi.json/")
"""Paths that need the key. The others are ``/health`` and the page's files."""

MAX_BRACKETS = 50_000  # lists and objects
_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, api_key: str | None, *, allows_everyone: bool) -> None:
    if api_key is not None and not api_key.strip():
        raise UsageError("the API key is empty", hint="leave it out, or give at least a character")
    if not is_loopback(host) and api_key is None and not allows_everyone:
        hint = "give --api-key, or --allow-unauthenticated if everyone may use this server"
        raise UsageError(f"other machines can reach {host}, and there is no API key", hint=hint)


class Guard:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, api_key: str | None, only_loopback: bool) -> None:
        """Ask for the key on private paths; with ``only_loopback`` refuse other names in ``Host``.

        A web site could otherwise let its name point here and read the answers.
        """
        self._app = app
        self._key = None if api_key is None else sha256(api_key.encode()).digest()
        self._only_loopback = only_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        path = re.sub("/{2,}", "/", scope["path"])  # the base URL of some clients ends in a slash
        scope["path"] = path.rstrip("/") if path.startswith("/v1/") else path
        named = _REQUEST_ID.fullmatch(headers.get("x-request-id", ""))
        request_id = named[0] if named else uuid.uuid4().hex
        facts: dict[str, object] = {"request_id": request_id, "status": None}
        scope[FACTS] = facts
        began_s = time.monotonic()

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                reply = MutableHeaders(scope=message)
                reply["X-Request-Id"] = request_id
                for name, value in _HEADERS.items():
                    reply.setdefault(name, value)
            await send(message)

        try:
            self._check(scope["path"], headers)
            await self._app(scope, receive, send_on)
        except ApiError as error:
            await error_response(error)(scope, receive, send_on)
        finally:
            wall_s = round(time.monotonic() - began_s, 6)
            facts |= {"wall_s": wall_s, "method": scope["method"], "path": scope["path"]}
            log.info("request", extra={"facts": facts})

    def _check(self, path: str, headers: Headers) -> None:
        name = re.sub(r":\d*\Z", "", headers.get("host", "")).lower().rstrip(".")
        if self._only_loopback and not is_loopback(name):
            message = "this server answers to names of this machine only; --api-key allows others"
            raise bad_request(message, code="host")
        if self._key is None or not f"{path}/".startswith(PRIVATE):
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        # Headers are read as Latin-1, whatever was sent.
        digest = sha256(key.strip().encode("latin-1")).digest()
        is_right = hmac.compare_digest(digest, self._key)
        if scheme.lower() != "bearer" or not is_right:
            message = "the API key is missing or wrong; send Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key")


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, headers=HEADERS.get(error.status))


def parse_json(raw: bytes) -> object:
    if raw.count(b"[") + raw.count(b"{") > MAX_BRACKETS:  # a microsecond for one
        raise bad_request(f"the body has more than {MAX_BRACKETS} brackets", code="no_json")
    try:
        text = raw.decode("utf-8")
        value = parse_unique(text, parse_constant=_refuse_constant)
        if "\\ud" in text.lower():  # the only way in; the whole value is looked through
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError as exc:
        raise bad_request("the body is not valid Unicode", code="invalid_unicode") from exc
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise bad_request(f"the body is not JSON: {exc.msg} at {where}", code="no_json") from exc
    except (ValueError, RecursionError) as exc:
        reason = str(exc).partition("; use sys.")[0]  # advice for programs in Python
        raise bad_request(f"the body is not JSON: {reason}", code="no_json") from exc
    return value


def _refuse_constant(name: str) -> Never:
    raise bad_request(f"the body is not JSON: it holds {name}", code="no_json")


class StrictRequest(Request):
    """A request whose body is read up to a bound, as strict JSON; larger ones are a 413."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        bound = self.app.state.recipe.limits.body_bytes
        too_large = ApiError(413, f"the body is larger than {bound} bytes", code="body_too_large")
        size = 0
        if int(self.headers.get("content-length", 0)) > bound:
            raise too_large
        async for piece in super().stream():
            size += len(piece)
            if size > bound:
                raise too_large
            yield piece

    async def json(self) -> object:
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


class StrictRoute(APIRoute):
    """A route whose body is read by ``StrictRequest``, before anything else looks at it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            checked = StrictRequest(request.scope, request.receive)
            if request.method == "POST":
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    message = "the body must be JSON: send Content-Type: application/json"
                    raise bad_request(message, code="content_type")
                read_s = request.app.state.recipe.queue.read_s
                try:
                    async with asyncio.timeout(read_s):
                        await checked.json()
                except TimeoutError as exc:
                    message = f"the body did not come within {read_s:g} s"
                    raise ApiError(408, message, code="body_too_slow") from exc
                except ClientDisconnect:
                    return Response(status_code=CLIENT_GONE)
            return await handle(checked)

        return strict


class PlainLines(logging.Formatter):
    """Writes each record as a line to read: a request's status, tokens and seconds."""

    def format(self, record: logging.LogRecord) -> str:
        facts: Mapping[str, object] = getattr(record, "facts", {})
        message = record.getMessage()
        if facts:
            message = "{status} {method} {path}, {wall_s:.2f} s".format_map(facts)
            if "completion_tokens" in facts:
                message += f", {facts['completion_tokens']} tokens"
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{self.formatTime(record, '%H:%M:%S')} {level}{message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """Writes each record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(), "logger": record.name,
            "message": record.getMessage(), **getattr(record, "facts", {}),
        }  # fmt: skip
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)
