"""Which failed requests are worth another try, and when.

A status that may pass is tried again, later and later, with jitter, never before ``Retry-After``.
A wrong key, model or address will not pass: it stops the run. What else is refused is the request's
own fault, and stays refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from random import Random
from typing import NamedTuple


class Fate(Enum):
    """What becomes of a request."""

    DONE = "answered"
    RETRY = "may pass"
    SLOW_DOWN = "too many at once"
    STOP = "wrong for all requests"
    REFUSE = "wrong for this request"


RETRIED = frozenset({408, 409})
"""Besides 429 and all from 500 on."""
ADVICE: Mapping[int, str] = {
    401: "the key is missing or wrong: set the environment variable that 'api_key_env' names",
    402: "the account has no credit",
    403: "the key may not use this model",
    404: "no such model or path: check 'base_url' (it ends in /v1) and 'model'",
}
OUT_OF_CREDIT = "insufficient_quota"
"""Code of a 429 that will not pass."""


def fate(status: int, error_code: str = "") -> Fate:
    """Return what an HTTP status means, with the code of the error's body if it has one."""
    if 200 <= status < 300:
        return Fate.DONE
    if status in ADVICE or error_code == OUT_OF_CREDIT:
        return Fate.STOP
    if status == 429:
        return Fate.SLOW_DOWN
    return Fate.RETRY if status in RETRIED or status >= 500 else Fate.REFUSE


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how long between; seconds."""

    max_requests: int = 8
    """In all, for one reply."""
    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    max_retry_after_s: float = 600.0
    """A server that asks for more is as good as gone."""

    def delay_s(self, num_failed: int, random: Random) -> float:
        """Return how long to wait after this many failures: between nothing and twice the last.

        Full jitter, so that requests which failed together do not come back together.
        """
        longest = min(self.max_delay_s, self.first_delay_s * 2.0 ** (num_failed - 1))
        return random.uniform(0, longest)


class RetryAfter(NamedTuple):
    """What the header of that name asks for."""

    delay_s: float


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> RetryAfter | None:
    """Read ``Retry-After``, in seconds or as a date; None if there is none that can be read.

    Args:
        headers: Names in lower case.
        now: The time, for dates.
    """
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        aware = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (aware - (now or datetime.now(UTC))).total_seconds()
    return RetryAfter(max(0.0, seconds)) if seconds == seconds else None
