"""Ctrl-C or SIGTERM while requests are in flight: once, no more are begun; twice, all stops."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
            return
        was_interrupted = True
        stop()

    for one in SIGNALS:
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(one, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for one in SIGNALS:
            with suppress(ValueError, RuntimeError, NotImplementedError):
                loop.remove_signal_handler(one)
