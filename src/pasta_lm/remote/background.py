"""Run a coroutine beside the caller, in an event loop of its own, and yield what it hands out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


def yielded_beside(run: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> Iterator[T]:
    """Yield what a coroutine hands to the function that it is given; raise its error.

    The coroutine goes on while the caller does something else, also where the caller has an event
    loop itself. Closing the iterator cancels it and waits until it has ended.
    """
    items: SimpleQueue[tuple[T] | _End] = SimpleQueue()
    began: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def main() -> None:
        began.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        await run(lambda item: items.put((item,)))

    def work() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            pass
        except BaseException as exc:
            error = exc
        began.cancel()  # no loop: nobody must wait for it
        items.put(_End(error))

    worker = Thread(target=work, daemon=True)
    worker.start()
    try:
        while not isinstance(item := items.get(), _End):
            yield item[0]
        if item.error is not None:
            raise item.error
    finally:
        with suppress(RuntimeError, CancelledError):  # the loop has ended, or never began
            loop, task = began.result()
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)
        worker.join()


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, which stopped the others."""
    first = errors.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
