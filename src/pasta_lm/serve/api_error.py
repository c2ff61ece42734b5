"""Errors for clients, in the shape of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pasta_lm.errors import InputError, PastaError, UsageError

RETRY_AFTER_S = 5


class ApiError(Exception):
    """An HTTP status with a message for the client; no traceback and no path is ever in it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        diagnostics: Sequence[Mapping[str, str | int]] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.diagnostics = diagnostics  # of a text that breaks the grammar, as `pasta check` has

    @property
    def body(self) -> dict[str, Any]:
        """Return the JSON object of the error."""
        fields: dict[str, Any] = {"type": self.kind, "param": self.param, "code": self.code}
        if self.diagnostics is not None:
            fields["diagnostics"] = self.diagnostics
        return {"error": {"message": self.message, **fields}}

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that go with the status."""
        if self.status in (429, 503):
            return {"Retry-After": str(RETRY_AFTER_S)}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a request that is wrong."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str) -> ApiError:
    """Return the error for a request that may work later."""
    return ApiError(503, message, kind="unavailable", code=code)


def internal(code: str = "engine_error") -> ApiError:
    """Return the error for a failure of ours; the log has the cause."""
    message = "the engine failed while it decoded this response; the server's log has the cause"
    return ApiError(500, message, kind="server_error", code=code)


def from_error(error: Exception) -> ApiError:
    """Return the error for clients of an error of the package."""
    if isinstance(error, InputError | UsageError):
        return bad_request(str(error).replace("\n    hint: ", "; "))
    return internal("engine_error" if isinstance(error, PastaError) else "internal_error")
