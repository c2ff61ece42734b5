"""Errors as OpenAI's API has them: a status, a kind, and a message for the client."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from pasta_lm.errors import ContextLengthError, DeviceMemoryError, InputError, UsageError

Json = dict[str, Any]

HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    **dict.fromkeys((408, 413), {"Connection": "close"}),  # the rest of the body is not read
    **dict.fromkeys((429, 503), {"Retry-After": "5"}),
}
KINDS = {401: "authentication_error", 500: "server_error", 503: "unavailable"}
CLIENT_GONE = 499  # nobody reads this status; it is for the log


@dataclass(eq=False)
class ApiError(Exception):
    """An HTTP status with a message for the client; no traceback and no path is ever in it."""

    status: int
    message: str
    _: KW_ONLY
    param: str | None = None
    code: str | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> Json:
        kind = KINDS.get(self.status, "invalid_request_error")
        fields = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, code=code)


def internal(code: str = "engine_error") -> ApiError:
    """Return the error for a failure of ours; the log has the cause."""
    message = "the engine failed while it decoded this response; the server's log has the cause"
    return ApiError(500, message, code=code)


def from_error(error: Exception) -> ApiError:
    if isinstance(error, ContextLengthError):
        return bad_request(error.message, "messages", "context_length_exceeded")
    if isinstance(error, InputError | UsageError):
        return bad_request(str(error).replace("\n    hint: ", "; "))
    if isinstance(error, DeviceMemoryError):
        return unavailable("the device has no memory for this request now", "out_of_memory")
    return internal()
