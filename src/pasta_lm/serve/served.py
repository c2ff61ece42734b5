"""Stock servers behind the API: requests are spread over them, each thread a completion there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Failed, Request, SamplingParams, StreamEvent
from pasta_lm.errors import EndpointError, InputError, RemoteError, RequestError
from pasta_lm.language.document import Document
from pasta_lm.serve.api_error import bad_request, unavailable
from pasta_lm.serve.backends import Events, ModelBackend, Prompt, Threads, count_threads

if TYPE_CHECKING:
    from pasta_lm.engines.response import Response
    from pasta_lm.engines.servers.cluster import Cluster
    from pasta_lm.engines.servers.completions import CompletionsEngine
    from pasta_lm.strategies.model import Pasta


class ServedBackend(ModelBackend):
    """A model that stock servers hold; each request is a task of the server's event loop."""

    has_logprobs = can_replay = False

    def __init__(self, model: Pasta, engine: CompletionsEngine, name: str) -> None:
        super().__init__(model, name)
        self._engine = engine
        self._cluster: Cluster | None = None
        self._numbers = count()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._requests: dict[int, Request] = {}
        self._responses: dict[int, dict[int, Response]] = {}  # of requests, by sample
        self._items: asyncio.Queue[tuple[int, StreamEvent | Failed] | None] = asyncio.Queue()

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the request for a prompt, if servers can decode it exactly."""
        return self._engine.check_request(self.request(prompt, params))

    def prepare_replay(
        self, prompt: Prompt, document: Document, max_threads: int | None
    ) -> Request:
        """Refuse: a server of completions chooses every token itself."""
        raise RequestError(
            "stock servers decode no given answer",
            hint="serve the model with the local engine to replay answers",
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect to the servers; cancel what is unfinished at the end."""
        async with self._engine.opened() as self._cluster:
            yield
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished, or an event is not read."""
        return bool(self._tasks) or not self._items.empty()

    def has_room(self, request: Request) -> bool:
        """Return whether a request would run at once."""
        num_running = sum(running.params.n for running in self._requests.values())
        return not num_running or num_running + request.params.n <= self._engine.max_responses

    def submit(self, request: Request) -> int:
        """Begin a request and return its number."""
        number = next(self._numbers)
        self._requests[number] = request
        self._tasks[number] = asyncio.get_running_loop().create_task(self._decode(number, request))
        self._tasks[number].add_done_callback(lambda _: self._forget(number))
        return number

    async def _decode(self, number: int, request: Request) -> None:
        assert self._cluster is not None, "the backend is not open"
        responses = self._responses.setdefault(number, {})

        def begin(response: Response) -> None:
            responses[response.sample] = response

        def put(event: StreamEvent) -> None:
            self._items.put_nowait((number, event))

        try:
            await self._engine.decode(self._cluster, request, put, begin)
        except Exception as error:
            self._items.put_nowait((number, Failed(_public_error(error))))

    def _forget(self, number: int) -> None:
        self._tasks.pop(number, None)
        self._requests.pop(number, None)
        self._responses.pop(number, None)
        self.wake()

    async def step(self) -> Events:
        """Wait for events, and return all that have come."""
        items = [await self._items.get()]
        while not self._items.empty():
            items.append(self._items.get_nowait())
        return [item for item in items if item is not None]

    def wake(self) -> None:
        """End a step that waits."""
        self._items.put_nowait(None)

    def abort(self, number: int) -> None:
        """Cancel all completions of a request."""
        if number in self._tasks:
            self._tasks[number].cancel()

    def threads(self) -> Mapping[int, Threads]:
        """Return the threads of each unfinished request."""
        responses = self._responses.items()
        return {number: count_threads(samples.values()) for number, samples in responses}

    @property
    def cache_usage(self) -> float:
        """Return the used share of the responses that may run; caches are the servers' own."""
        num_running = sum(running.params.n for running in self._requests.values())
        return min(1.0, num_running / self._engine.max_responses)


def _public_error(error: Exception) -> Exception:
    """Return an error for clients, which names no server behind this one; the log has its cause."""
    public = error
    if isinstance(error, RemoteError):
        public = unavailable("a server behind this one failed", "backend_lost")
    elif isinstance(error, InputError) and not isinstance(error, EndpointError):
        public = bad_request("a server behind this one refuses it", code="refused")
    if public is not error:
        public.__cause__ = error
    return public


def served_backend(
    addresses: str,
    source: str,
    name: str,
    *,
    dialect: str | None = None,
    allow_inexact: bool = False,
) -> ServedBackend:
    """Return the backend in front of servers; arguments and errors of ``Pasta.from_servers``.

    A model that was trained for what servers cannot compute is refused here, not at each request.
    """
    from pasta_lm.engines.servers.completions import CompletionsEngine
    from pasta_lm.strategies.model import Pasta

    model = Pasta.from_servers(addresses, source, dialect=dialect, allow_inexact=allow_inexact)
    engine: object = model.engine
    assert isinstance(engine, CompletionsEngine)
    if model.has_tag_pieces:
        engine.check_request(model.request("any"))
    return ServedBackend(model, engine, name)
