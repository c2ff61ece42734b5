"""Ctrl-C while requests are in flight: once, no more are begun; twice, everything stops."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at a first interrupt; a second one raises ``KeyboardInterrupt`` at once.

    Outside the main thread, and where the system cannot, nothing is changed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    was_interrupted = False

    def interrupt() -> None:
        nonlocal was_interrupted
        if was_interrupted:
            task.cancel()
        was_interrupted = True
        stop()

    with suppress(ValueError, RuntimeError, NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
