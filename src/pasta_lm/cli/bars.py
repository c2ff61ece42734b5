"""Show how far long work is: bars in a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Show = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much."""


@contextmanager
def bars() -> Iterator[Show]:
    """Give what shows progress; the bars vanish when the work is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    from pasta_lm.cli.terminal import console

    if not has_bars():
        yield lambda name, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    with Progress(*columns, console=console(sys.stderr), transient=True) as shown:
        rows: dict[str, Any] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in rows:
                rows[name] = shown.add_task(name, total=total)
            shown.update(rows[name], completed=done, total=total)

        yield show


def has_bars() -> bool:
    """Tell whether standard error is a terminal that may show more than lines."""
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ
