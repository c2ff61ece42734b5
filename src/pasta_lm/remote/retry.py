"""Which failed requests are retried, and after which delay.

Temporary failures are retried with growing random delays, never before ``Retry-After``. A wrong
key, model or address ends the run. Any other refusal concerns this one request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from math import isnan
from random import Random


class Fate(Enum):
    """What an HTTP status means for a request."""

    DONE = "answered"
    RETRY = "temporary failure"
    SLOW_DOWN = "too many requests at once"
    STOP = "wrong for all requests"
    REFUSE = "wrong for this request"


ADVICE: Mapping[int, str] = {
    401: "the key is missing or wrong: set the environment variable that 'api_key_env' names",
    402: "the account has no credit",
    403: "the key may not use this model",
    404: "no such model or path: check 'base_url' (it ends in /v1) and 'model'",
}
OUT_OF_CREDIT = "insufficient_quota"
"""Error code of a 429 that is permanent."""


def fate(status: int, error_code: str = "") -> Fate:
    """Return what an HTTP status means, given the code in the body of the error, if any."""
    if 200 <= status < 300:
        return Fate.DONE
    if status in ADVICE or error_code == OUT_OF_CREDIT:
        return Fate.STOP
    if status == 429:
        return Fate.SLOW_DOWN
    return Fate.RETRY if status in (408, 409) or status >= 500 else Fate.REFUSE


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of requests for one reply, and the delays between them in seconds."""

    max_requests: int = 8
    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    max_retry_after_s: float = 600.0
    """If a server asks for a longer delay, the request fails."""

    def delay_s(
        self, num_failed: int, random: Random, *, first_delay_s: float | None = None
    ) -> float:
        """Return a random delay between 0 and a bound that doubles with each failure.

        Full jitter: requests that failed together are not retried together.

        Args:
            num_failed: Failures of the same request.
            random: Source of randomness.
            first_delay_s: Replaces the policy's first delay if it is smaller.
        """
        first_s = min(self.first_delay_s, first_delay_s or self.first_delay_s)
        return random.uniform(0, min(self.max_delay_s, first_s * 2.0 ** (num_failed - 1)))


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that ``Retry-After`` asks for; None if it is absent or unreadable."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        aware = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (aware - (now or datetime.now(UTC))).total_seconds()
    return None if isnan(seconds) else max(0.0, seconds)
