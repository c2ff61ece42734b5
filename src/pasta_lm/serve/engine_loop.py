"""The engine in the event loop: requests are queued, admitted, decoded step by step, and ended.

Engine calls never overlap: requests begin and end between steps. An error in a step ends the
requests that it concerns; a step that hangs ends all, and nobody waits in silence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from pasta_lm.engines.request import Failed, Finished, Request, SamplingParams
from pasta_lm.errors import DeviceMemoryError, PastaError, RequestError
from pasta_lm.interpreter.thread import ThreadState
from pasta_lm.serve import Queue
from pasta_lm.serve.backends import Backend, Events
from pasta_lm.serve.errors import ApiError, from_error, internal, unavailable
from pasta_lm.serve.jobs import Batch, Job, Load, Metrics, ResponseStream
from pasta_lm.serve.tool_calls import ClientPrompt
from pasta_lm.strategies import SEQUENTIAL

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3  # without a good one between them; then the engine is tried by itself
MAX_TRIAL_STEPS = 100  # for a request of one token
STOP_S = 5.0  # for the step that runs when the server ends
SHUTDOWN = "the server is shutting down"


class EngineLoop:
    """Runs a backend in the event loop of the server."""

    def __init__(self, backend: Backend, queue: Queue) -> None:
        self.backend, self.queue = backend, queue
        self._waiting: deque[Job] = deque()
        self._running: dict[int, Job] = {}
        self._aborted: list[int] = []  # to be aborted between two steps
        self._wakes = asyncio.Event()
        self._load: Load = {}
        self._num_failed_steps = 0
        self._state = "dead"  # not running yet
        self._is_draining = self._stops = False
        self.has_hung = False  # at its end, a step did not come back
        self._loop: asyncio.AbstractEventLoop | None = None
        self.metrics = Metrics(backend.name, lambda: self.load)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Decode while the context lasts; whatever runs at its end fails."""
        self._loop = asyncio.get_running_loop()
        async with self.backend.opened():
            self._state = "ok"
            task = asyncio.create_task(self._run())
            yield
            self._stops = True
            self._wake()
            _, left = await asyncio.wait({task}, timeout=STOP_S)
            self.has_hung = bool(left)
            task.cancel()
            self._fail_all(unavailable(SHUTDOWN, "shutdown"))

    def drain(self) -> None:
        """Refuse new requests, and end those that run at the deadline; also for signal handlers."""
        if (loop := self._loop) is not None:
            self._is_draining = True
            error = unavailable(SHUTDOWN, "shutdown")
            loop.call_soon_threadsafe(loop.call_later, self.queue.drain_s, self._fail_all, error)

    @property
    def status(self) -> str:
        """Return ``ok``, or why no request is taken: ``draining``, ``stalled`` or ``dead``."""
        if self._stops:
            return "dead"
        return "draining" if self._state == "ok" and self._is_draining else self._state

    @property
    def load(self) -> Load:
        """Return the load; requests are counted at this moment, threads after the last step."""
        num_running, num_waiting = len(self._running), len(self._waiting)
        requests = {"num_requests_running": num_running, "num_requests_waiting": num_waiting}
        return {**self._load, **requests}

    def submit(self, requests: Sequence[Request], client: str = "") -> ResponseStream:
        """Queue the requests of one stream, or refuse them as ``ApiError``: full, dead, draining.

        The samples of the stream are numbered from request to request. Clients take turns; where
        the queue is full, one that waits with fewer requests displaces the newest of another.
        """
        if self.status != "ok":
            raise unavailable(f"the server takes no requests: it is {self.status}", self.status)
        num_excess = len(self._waiting) + len(requests) - 1 - self.queue.waiting
        if num_excess > 0:
            num_ours = sum(job.client == client for job in self._waiting) + len(requests)
            most = Counter(job.client for job in self._waiting).most_common(1)
            other, num_theirs = most[0] if most else (client, 0)
            error = unavailable(f"{len(self._waiting)} requests are waiting", "queue_full")
            if num_theirs - num_excess < num_ours:
                self.metrics.failed("queue_full")
                raise error
            for job in [job for job in self._waiting if job.client == other][-num_excess:]:
                self._fail(job, error)
        stream = ResponseStream()
        first_sample = 0
        for request in requests:
            job = Job(request, stream, first_sample, request.params.n, client)
            first_sample += request.params.n
            self._set_deadline(job, self.queue.wait_s, "no room for too long", "queue_wait")
            self._waiting.append(job)
        self._wake()
        return stream

    def abort(self, stream: ResponseStream) -> None:
        """End the unfinished requests of a stream; their pages are free after the present step."""
        for job in [*self._waiting, *self._running.values()]:
            if job.stream is stream:
                self._close(job)

    def _set_deadline(self, job: Job, after_s: float, message: str, code: str) -> None:
        if job.deadline is not None:
            job.deadline.cancel()
        loop = asyncio.get_running_loop()
        job.deadline = loop.call_later(after_s, self._fail, job, unavailable(message, code))

    def _wake(self) -> None:
        self._wakes.set()
        self.backend.wake()

    def _close(self, job: Job) -> None:
        if job.deadline is not None:
            job.deadline.cancel()
        if job.number is None:
            with suppress(ValueError):
                self._waiting.remove(job)
        elif self._running.pop(job.number, None) is not None and job.num_unfinished > 0:
            self._aborted.append(job.number)
            self._wake()

    def _fail(self, job: Job, error: ApiError) -> None:
        self.metrics.failed(error.code or "error")
        self._close(job)
        job.stream.put(error)

    def _fail_all(self, error: ApiError) -> None:
        for job in [*self._running.values(), *self._waiting]:
            self._fail(job, error)

    # The loop

    async def _run(self) -> None:
        try:
            while not self._stops:
                self._wakes.clear()
                self._abort_closed()
                while job := self._next():
                    self._begin(job)
                self._measure()
                if self.backend.has_work:
                    await self._step()
                else:
                    await self._wakes.wait()
        except Exception:
            log.exception("the engine's loop died")
            self._state = "dead"
            self._fail_all(internal("engine_dead"))

    def _abort_closed(self) -> None:
        while self._aborted:
            try:
                self.backend.abort(self._aborted.pop())
            except Exception:  # the others must still be aborted
                log.exception("a request cannot be aborted")

    def _next(self) -> Job | None:
        """Return the next request, of the client with the fewest running; None: it has no room."""
        if not self._waiting or len(self._running) >= self.queue.running:
            return None
        counts = Counter(job.client for job in self._running.values())
        job = min(self._waiting, key=lambda job: counts[job.client])
        return job if self.backend.has_room(job.request) else None

    def _begin(self, job: Job) -> None:
        try:
            job.number = self.backend.submit(job.request)
        except Exception as error:
            if not isinstance(error, PastaError):
                log.exception("a request cannot begin")
            self._fail(job, from_error(error))
        else:
            self._waiting.remove(job)
            self._running[job.number] = job
            job.started_s = time.monotonic()
            message = f"the response took longer than {self.queue.wall_s:g} s"
            self._set_deadline(job, self.queue.wall_s, message, "wall_time")
            job.stream.put([])

    async def _step(self) -> None:
        try:
            events = await self._watched_step()
        except Exception as error:
            log.exception("a step failed")
            self._num_failed_steps += 1
            for job in list(self._running.values()):
                self._fail(job, _for_client(error))
            if self._num_failed_steps >= MAX_FAILED_STEPS:
                await self._try_alone()
        else:
            self._num_failed_steps = 0
            self._pass_on(events)

    async def _watched_step(self) -> Events:
        step = asyncio.ensure_future(self.backend.step())
        done, _ = await asyncio.wait({step}, timeout=self.queue.stall_s)
        if not done:
            self._state = "stalled"
            message = f"the engine did nothing for {self.queue.stall_s:g} s"
            self._fail_all(unavailable(message, "stall"))
            await asyncio.wait({step})
            self._state = "ok"
        return step.result()

    async def _try_alone(self) -> None:
        """Decode a token for a test: requests that fail whatever runs must not end the engine."""
        self._abort_closed()
        params = SamplingParams(max_tokens=1)
        prompt = ClientPrompt("a", strategy=SEQUENTIAL)
        number = self.backend.submit(self.backend.prepare(prompt, params))
        for _ in range(MAX_TRIAL_STEPS):
            for at, event in await self.backend.step():
                if at == number and isinstance(event, Failed):
                    raise event.error
            if not self.backend.has_work:
                break
        self.backend.abort(number)
        self._num_failed_steps = 0

    def _pass_on(self, events: Events) -> None:
        batches: defaultdict[int, Batch] = defaultdict(list)
        for number, event in events:
            if not isinstance(event, Failed):
                batches[number].append(event)
                continue
            log.error("a response failed in a step", exc_info=event.error)
            if job := self._running.get(number):
                self._fail(job, _for_client(event.error))
        now_s = time.monotonic()
        for number, batch in batches.items():
            if job := self._running.get(number):
                self.metrics.stepped(job, batch, now_s)
                first = job.first_sample
                job.stream.put([replace(event, sample=event.sample + first) for event in batch])
                job.num_unfinished -= sum(isinstance(event, Finished) for event in batch)
                if job.num_unfinished <= 0:
                    self._close(job)
            else:
                self._aborted.append(number)

    def _measure(self) -> None:
        threads = self.backend.threads()
        num_threads = sum(map(len, threads.values()))
        num_running = sum(states.count(ThreadState.RUNNING) for states in threads.values())
        orphans = threads.keys() - self._running.keys()
        self._load = {
            "kv_cache_usage_perc": self.backend.cache_usage,
            "num_threads_running": num_running,
            "num_threads_waiting": num_threads - num_running,
            "num_orphan_threads": sum(len(threads[number]) for number in orphans),
        }


def _for_client(error: Exception) -> ApiError:
    # Such as a form that grows too complex, or a card that is full.
    if isinstance(error, RequestError | DeviceMemoryError):
        return from_error(error)
    return error if isinstance(error, ApiError) else internal()
