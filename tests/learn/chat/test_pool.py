from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pasta_lm.learn.chat.pool import next_in_thread


def test_items_come_in_order_and_an_error_of_the_source_reaches_the_caller() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    async def run() -> None:
        rows, source = iter([1, 2]), broken()
        assert [await next_in_thread(rows) for _ in range(4)] == [1, 2, None, None]
        assert await next_in_thread(source) == 1
        with pytest.raises(ValueError, match="broken"):
            await next_in_thread(source)

    asyncio.run(run())


def test_a_caller_of_a_source_that_hangs_can_be_cancelled() -> None:
    go_on, over = threading.Event(), threading.Event()

    def rows() -> Iterator[int]:
        go_on.wait(60)
        yield 1

    async def run() -> None:
        waiting = asyncio.create_task(next_in_thread(rows()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        over.set()

    asyncio.run(run())
    assert over.is_set()
    assert not go_on.is_set()
    go_on.set()
