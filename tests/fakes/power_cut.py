"""A run that ends where nobody wanted it to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class PowerCutError(Exception):
    """Ends a run where nobody wanted it to end."""


def fail_after(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, calls: int) -> None:
    """Let the power fail when something is called once more than so often."""
    usual: Callable[..., Any] = getattr(place, name)
    left = iter(range(calls))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is None:
            raise PowerCutError
        return usual(*args, **kwargs)

    monkeypatch.setattr(place, name, failing)
