"""Parse untrusted request bodies: size limit, UTF-8, strict JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, Never

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from pasta_lm.serve.api_error import ApiError, bad_request
from pasta_lm.serve.streams import CLIENT_GONE


def parse_json(raw: bytes) -> Any:
    """Return the value of a body.

    Raises:
        ApiError: it is no JSON, or holds NaN, infinity or half a surrogate pair.
    """
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\ud" in text.lower():  # the only way in; the whole value is looked through
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError as exc:
        raise bad_request("the body is not valid Unicode", code="invalid_unicode") from exc
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise bad_request(f"the body is not JSON: {exc.msg} at {where}", code="no_json") from exc
    except (ValueError, RecursionError) as exc:
        message = "the body is not JSON: a number or the nesting is too large"
        raise bad_request(message, code="no_json") from exc
    return value


def _refuse_constant(name: str) -> Never:
    raise bad_request(f"the body is not JSON: it holds {name}", code="no_json")


class StrictRequest(Request):
    """A request whose body is read up to a bound."""

    async def body(self) -> bytes:
        """Return the body.

        Raises:
            ApiError: 413, it is too large.
        """
        if not hasattr(self, "_body"):
            bound = self.app.state.recipe.limits.body_bytes
            parts, size = [], 0
            async for part in self.stream():
                size += len(part)
                if size > bound:
                    message = f"the body is larger than {bound} bytes"
                    raise ApiError(413, message, code="body_too_large")
                parts.append(part)
            self._body = b"".join(parts)
        return self._body

    async def json(self) -> Any:
        """Return the body as JSON."""
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


class StrictRoute(APIRoute):
    """A route whose body is read by ``StrictRequest``, before anything else looks at it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler behind the check of the body."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            checked = StrictRequest(request.scope, request.receive)
            if request.method == "POST":
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    message = "the body must be JSON: send Content-Type: application/json"
                    raise bad_request(message, code="content_type")
                try:
                    await checked.json()
                except ClientDisconnect:
                    return Response(status_code=CLIENT_GONE)
            return await handle(checked)

        return strict
