"""A run that ends where nobody wanted it to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class PowerCutError(Exception):
    """Ends a run where nobody wanted it to end."""


@contextmanager
def power_cut_after(place: Any, name: str, calls: int) -> Iterator[None]:
    """Hold the run inside to its end by a power cut, when something is called once more."""
    usual: Callable[..., Any] = getattr(place, name)
    left = iter(range(calls))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is None:
            raise PowerCutError
        return usual(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, failing)
        with pytest.raises(PowerCutError):
            yield
