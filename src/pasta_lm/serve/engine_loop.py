"""The engine in a thread of its own: requests come in, their events go back to the event loop.

Three calls are for the outside: ``submit``, ``ResponseStream.next`` and ``abort``. An error in a
step ends the responses that it concerns; a thread that dies ends all, and nothing waits in silence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Literal, Protocol

from pasta_lm.engines.request import Failed, Finished, Request, SamplingParams
from pasta_lm.errors import PastaError
from pasta_lm.serve.api_error import ApiError, from_error, internal, unavailable
from pasta_lm.serve.backends import Backend, Events, Prompt
from pasta_lm.serve.response_stream import Batch, Item, ResponseStream
from pasta_lm.serve.settings import Queue
from pasta_lm.strategies import sequential

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3  # without a good one between them; then the engine is tried by itself
MAX_TRIAL_STEPS = 100  # of a request of one token
IDLE_S = 0.25  # how often an idle thread looks at its clock
STOP_S = 5.0  # for the step that runs when the server ends


class Observer(Protocol):
    """What is told of each step, in the engine's thread."""

    def stepped(self, stream: ResponseStream, batch: Batch, now_s: float) -> None:
        """Take the events of a request in one step."""

    def failed(self, code: str) -> None:
        """Take the code of an error that ended a response."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine does at the moment."""

    num_running: int = 0
    num_waiting: int = 0
    cache_usage: float = 0.0
    num_threads_running: int = 0
    num_threads_waiting: int = 0
    num_orphan_threads: int = 0  # of requests that nobody reads; must be 0


Order = tuple[Literal["submit", "abort"], ResponseStream]


class EngineLoop:
    """Runs a backend in a thread, and passes requests in and events out."""

    def __init__(self, backend: Backend, queue: Queue, observer: Observer) -> None:
        self.backend = backend
        self._load = Load()
        self._queue = queue
        self._observer = observer
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._waiting: deque[ResponseStream] = deque()
        self._running: dict[int, ResponseStream] = {}
        self._num_waiting, self._lock = 0, Lock()
        self._num_failed_steps = 0
        self._step_began_s: float | None = None
        self._drain_until_s: float | None = None
        self._stops = self._is_dead = False
        self._thread = Thread(target=self._run, name="pasta-engine", daemon=True)

    # From the event loop

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present step; whatever runs fails."""
        self._stops = True
        self._orders.put(None)
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    @property
    def is_running(self) -> bool:
        """Return whether the thread is there: after ``stop``, a step has not come back."""
        return self._thread.is_alive()

    def drain(self) -> None:
        """Refuse new requests; end those that still run when the time for it is over."""
        self._drain_until_s = time.monotonic() + self._queue.drain_s
        self._orders.put(None)

    @property
    def load(self) -> Load:
        """Return what the engine does; also while a step hangs, who waits is counted."""
        return replace(self._load, num_waiting=self._num_waiting)

    @property
    def status(self) -> str:
        """Return ``ok``, or why nothing can be asked: ``draining``, ``stalled`` or ``dead``."""
        if self._is_dead or self._stops or not self._thread.is_alive():
            return "dead"
        began_s = self._step_began_s
        if began_s is not None and time.monotonic() - began_s > self._queue.stall_s:
            return "stalled"
        return "ok" if self._drain_until_s is None else "draining"

    def submit(self, request: Request) -> ResponseStream:
        """Queue a request; its events come out of the stream.

        Raises:
            ApiError: the queue is full, the engine is dead, or the server shuts down.
        """
        status = self.status
        if status != "ok":
            raise unavailable(f"the server takes no requests: it is {status}", status)
        with self._lock:
            if self._num_waiting > self._queue.waiting:
                self._observer.failed("queue_full")
                raise unavailable(f"{self._num_waiting} requests are waiting", "queue_full")
            self._num_waiting += 1
        stream = ResponseStream(request, self._queue)
        self._orders.put(("submit", stream))
        if self._is_dead:  # it died in between, and may have looked for orders already
            stream.put(internal("engine_dead"))
        return stream

    def abort(self, stream: ResponseStream) -> None:
        """Give a request up, wherever it is; its pages are free after the present step."""
        if not stream.is_closed:
            self._orders.put(("abort", stream))

    # In the engine's thread

    def _run(self) -> None:
        try:
            while not self._stops:
                self._take_orders(waits=not self.backend.has_work)
                self._end_late()
                if self._admit():
                    self._load = self._measure()  # the first step may be long, or hang
                if self.backend.has_work:
                    self._step()
                self._load = self._measure()
            error = unavailable("the server is shutting down", "shutdown")
        except BaseException:
            log.exception("the engine's thread died")
            error = internal("engine_dead")
        self._is_dead = True
        self._fail_all(error)

    def _take_orders(self, *, waits: bool) -> None:
        with suppress(Empty):
            order = self._orders.get(block=waits, timeout=IDLE_S)
            while True:
                self._carry_out(order)
                order = self._orders.get_nowait()

    def _carry_out(self, order: Order | None) -> None:
        if order is None:
            return
        what, stream = order
        if what == "submit":
            self._waiting.append(stream)
        elif not stream.is_closed:
            self._close(stream)

    def _close(self, stream: ResponseStream) -> None:
        """Forget a stream and free what belongs to its request."""
        stream.is_closed = True
        if stream.number is None:
            with suppress(ValueError):
                self._waiting.remove(stream)
                self._leave_queue()
        else:
            self._running.pop(stream.number, None)
            try:
                self.backend.abort(stream.number)
            except Exception:  # the others must still be told
                log.exception("a request cannot be aborted")

    def _leave_queue(self) -> None:
        with self._lock:
            self._num_waiting -= 1

    def _end_late(self) -> None:
        """End what has waited or run for too long."""
        now, drain_s = time.monotonic(), self._drain_until_s
        if drain_s is not None and now > drain_s:
            self._fail_all(unavailable("the server is shutting down", "shutdown"))
        while self._waiting and now - self._waiting[0].arrived_s > self._queue.wait_s:
            self._fail(self._waiting[0], unavailable("no room for too long", "queue_wait"))
        for stream in list(self._running.values()):
            if stream.started_s is not None and now - stream.started_s > self._queue.wall_s:
                message = f"the response took longer than {self._queue.wall_s:g} s"
                self._fail(stream, unavailable(message, "wall_time"))

    def _admit(self) -> int:
        """Begin what there is room for, and return how many requests that were."""
        num_begun = 0
        while self._waiting and len(self._running) < self._queue.running:
            stream = self._waiting[0]
            if not self.backend.has_room(stream.request):
                break
            try:
                number = self.backend.submit(stream.request)
            except PastaError as error:
                self._fail(stream, from_error(error))
                continue
            except Exception:
                log.exception("a request cannot begin")
                self._fail(stream, internal())
                continue
            self._waiting.popleft()
            self._leave_queue()
            stream.number, stream.started_s = number, time.monotonic()
            self._running[number] = stream
            self._post([(stream, None)])
            num_begun += 1
        return num_begun

    def _step(self) -> None:
        self._step_began_s = time.monotonic()
        try:
            events = self.backend.step()
        except Exception:
            log.exception("a step failed")
            self._num_failed_steps += 1
            for stream in list(self._running.values()):
                self._fail(stream, internal())
            if self._num_failed_steps >= MAX_FAILED_STEPS:
                self._try_alone()
        else:
            self._num_failed_steps = 0
            self._pass_on(events)
        finally:
            self._step_began_s = None

    def _try_alone(self) -> None:
        """Decode a token of our own: requests that fail whatever runs must not end the engine.

        Raises:
            Exception: it is the engine that fails.
        """
        prompt = Prompt("a", strategy=sequential.NAME)
        number = self.backend.submit(self.backend.prepare(prompt, SamplingParams(max_tokens=1)))
        for _ in range(MAX_TRIAL_STEPS):
            for at, event in self.backend.step():
                if at == number and isinstance(event, Failed):
                    raise event.error
            if not self.backend.has_work:
                break
        self.backend.abort(number)
        self._num_failed_steps = 0

    def _pass_on(self, events: Events) -> None:
        batches: defaultdict[int, Batch] = defaultdict(list)
        for number, event in events:
            if isinstance(event, Failed):
                log.error("a response failed in a step", exc_info=event.error)
                if number in self._running:
                    told = event.error if isinstance(event.error, ApiError) else internal()
                    self._fail(self._running[number], told)
            else:
                batches[number].append(event)
        items: list[tuple[ResponseStream, Item]] = []
        now = time.monotonic()
        for number, batch in batches.items():
            stream = self._running.get(number)
            if stream is None:  # an orphan: counted in the load, and ended here
                self.backend.abort(number)
                continue
            self._observer.stepped(stream, batch, now)
            items.append((stream, batch))
            stream.num_unfinished -= sum(isinstance(event, Finished) for event in batch)
            if stream.num_unfinished <= 0:
                stream.is_closed = True
                del self._running[number]
        self._post(items)

    def _fail(self, stream: ResponseStream, error: ApiError) -> None:
        self._observer.failed(error.code or "error")
        self._close(stream)
        self._post([(stream, error)])

    def _fail_all(self, error: ApiError) -> None:
        self._take_orders(waits=False)
        for stream in [*self._running.values(), *self._waiting]:
            self._close(stream)
            self._post([(stream, error)])

    @staticmethod
    def _post(items: Sequence[tuple[ResponseStream, Item]]) -> None:
        """Hand items to the event loops of their readers."""
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[ResponseStream, Item]]]
        by_loop = defaultdict(list)
        for stream, item in items:
            by_loop[stream.loop].append((stream, item))
        for loop, some in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(_put_all, some)

    def _measure(self) -> Load:
        counts = self.backend.threads()
        orphans = [one for number, one in counts.items() if number not in self._running]
        return Load(
            num_running=len(self._running),
            cache_usage=self.backend.cache_usage,
            num_threads_running=sum(one.num_running for one in counts.values()),
            num_threads_waiting=sum(one.num_waiting for one in counts.values()),
            num_orphan_threads=sum(one.num_running + one.num_waiting for one in orphans),
        )


def _put_all(items: Sequence[tuple[ResponseStream, Item]]) -> None:
    for stream, item in items:
        stream.put(item)
