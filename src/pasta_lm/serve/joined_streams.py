"""The responses to several prompts as one; numbers of samples go on from prompt to prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pasta_lm.engines.request import Finished
from pasta_lm.serve.api_error import ApiError
from pasta_lm.serve.response_stream import Batch, ResponseStream


class JoinedStreams:
    """Reads several streams at once, for one reader."""

    def __init__(self, streams: Sequence[ResponseStream]) -> None:
        # One step is held beyond what the streams keep, so that a slow reader slows these down.
        self._steps: asyncio.Queue[Batch | ApiError] = asyncio.Queue(maxsize=1)
        self._begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Future[None]] = []
        first_sample = 0
        for stream in streams:
            self._tasks.append(asyncio.ensure_future(self._read(stream, first_sample)))
            first_sample += stream.request.params.n

    async def started(self) -> None:
        """Wait until one of the requests runs.

        Raises:
            ApiError: one was refused before.
        """
        await self._begins

    async def next(self) -> Batch:
        """Return the events of one request in the next step that had some.

        Raises:
            ApiError: a response failed.
        """
        step = await self._steps.get()
        if isinstance(step, ApiError):
            raise step
        return step

    def close(self) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()

    async def _read(self, stream: ResponseStream, first_sample: int) -> None:
        num_left = stream.request.params.n
        try:
            await stream.started()
            if not self._begins.done():
                self._begins.set_result(None)
            while num_left:
                batch = await stream.next()
                num_left -= sum(isinstance(event, Finished) for event in batch)
                await self._steps.put(
                    [replace(event, sample=event.sample + first_sample) for event in batch]
                )
        except ApiError as error:
            if self._begins.done():
                await self._steps.put(error)
            else:
                self._begins.set_exception(error)
