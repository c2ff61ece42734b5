"""Checks that recipes of both stages ask for: each names the key and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence

from pasta_lm.errors import UsageError


def one_of(place: str, **given: object) -> None:
    """Refuse a table unless exactly one of some keys is given.

    Raises:
        UsageError: none is, or several are.
    """
    if sum(value is not None for value in given.values()) != 1:
        raise UsageError(f"[{place}] needs exactly one of {' and '.join(given)}")


def choice(place: str, value: str, options: Sequence[str]) -> None:
    """Refuse a word that is none of the options.

    Raises:
        UsageError: it is not; the options are named.
    """
    if value not in options:
        raise UsageError(f"{place} is {value!r}", hint=f"one of {', '.join(options)}")


def above_0(place: str, value: float | None) -> None:
    """Refuse a number that is not above 0; None is not given.

    Raises:
        UsageError: it is not.
    """
    if value is not None and value <= 0:
        raise UsageError(f"{place} must be above 0")


def refuse_ignored(place: str, is_ignored: object, reason: str) -> None:
    """Refuse a key that another one makes meaningless.

    Raises:
        UsageError: the key is given in vain.
    """
    if is_ignored:
        raise UsageError(f"{place} would be ignored: {reason}", hint="leave it out")
