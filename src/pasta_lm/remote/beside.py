"""Read rows beside the event loop, in a thread that never holds up the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def next_beside(rows: Iterator[T]) -> T | None:
    """Return the next row, or None behind the last; the event loop goes on meanwhile.

    A source that hangs, such as a network, hangs in a daemon thread: who waits can be cancelled,
    and the process can end. One caller at a time; after a cancelled one there must be no other.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T | None] = loop.create_future()

    def settle(row: T | None, error: Exception | None) -> None:
        if found.cancelled():
            return
        if error is None:
            found.set_result(row)
        else:
            found.set_exception(error)

    def read() -> None:
        row: T | None = None
        error: Exception | None = None
        try:
            row = next(rows, None)
        except Exception as exc:
            error = exc
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, row, error)

    threading.Thread(target=read, daemon=True).start()
    return await found
