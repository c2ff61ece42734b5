"""Stock servers behind our API: requests are spread over them, each thread a completion there.

All calls but ``prepare`` come from the engine's own thread; the completions have one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Failed, Request, SamplingParams
from pasta_lm.errors import EndpointError, InputError, PastaError, RemoteError, RequestError
from pasta_lm.language.document import Document
from pasta_lm.serve.api_error import ApiError, bad_request, unavailable
from pasta_lm.serve.backends import Events, ModelBackend, Prompt, Threads, threads_of

if TYPE_CHECKING:
    from pasta_lm.engines.servers.completions import CompletionsEngine
    from pasta_lm.strategies.model import Pasta

STEP_S = 0.01
"""How long a step waits for tokens; new requests and those that are given up wait as long."""


class ServedBackend(ModelBackend):
    """A model that stock servers hold."""

    has_logprobs = False

    def __init__(self, model: Pasta, engine: CompletionsEngine, name: str) -> None:
        """Connect to the servers.

        Args:
            model: What makes requests; its engine is this one.
            engine: The servers.
            name: Of the model, for clients.

        Raises:
            PastaError: the servers cannot be used, see ``CompletionsEngine.in_flight``.
        """
        super().__init__(model, name)
        self._engine = engine
        self._flight = engine.in_flight()
        self._num_samples: dict[int, int] = {}  # of each unfinished request

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the position strategy of its training, and that servers decode."""
        loaded = self._engine.loaded
        return {"positions": loaded.positions, "device": loaded.device, "dtype": loaded.dtype_name}

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the request for a prompt, if servers can decode it exactly."""
        return self._engine.check_request(self.requested(prompt, params))

    def prepare_replay(
        self, prompt: Prompt, document: Document, max_threads: int | None
    ) -> Request:
        """Refuse: a server of completions chooses every token itself."""
        raise RequestError(
            "stock servers decode no given answer",
            hint="serve the model with the local engine to replay answers",
        )

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished."""
        return self._flight.has_work

    def has_room(self, request: Request) -> bool:
        """Return whether a request would run at once."""
        num_running = sum(self._num_samples.values())
        return not num_running or num_running + request.params.n <= self._engine.max_responses

    def submit(self, request: Request) -> int:
        """Begin a request and return its number."""
        number = self._flight.submit(request)
        self._num_samples[number] = request.params.n
        return number

    def step(self) -> Events:
        """Wait a moment for tokens, and return what happened."""
        events = [
            (number, Failed(told(event.error)) if isinstance(event, Failed) else event)
            for number, event in self._flight.step(STEP_S)
        ]
        running = self._flight.responses
        self._num_samples = {key: n for key, n in self._num_samples.items() if key in running}
        return events

    def abort(self, number: int) -> object:
        """Cancel all completions of a request."""
        self._num_samples.pop(number, None)
        self._flight.cancel(number)
        return None

    def threads(self) -> Mapping[int, Threads]:
        """Return the threads of each unfinished request."""
        return {number: threads_of(some) for number, some in self._flight.responses.items()}

    @property
    def cache_usage(self) -> float:
        """Return the used share of the responses that may run; caches are the servers' own."""
        return min(1.0, sum(self._num_samples.values()) / self._engine.max_responses)

    def close(self) -> None:
        """Cancel everything and disconnect."""
        self._flight.close()


def told(error: Exception) -> Exception:
    """Return what a client is told of an error, which names none of the servers behind this one."""
    if isinstance(error, RemoteError):
        return _caused(unavailable("a server behind this one failed", "backend_lost"), error)
    if isinstance(error, InputError) and not isinstance(error, EndpointError):
        return _caused(bad_request("a server behind this one refuses it", code="refused"), error)
    return error


def _caused(told: ApiError, error: PastaError) -> ApiError:
    told.__cause__ = error  # for the log
    return told


def served_backend(
    addresses: str, source: str, *, dialect: str | None = None, allow_inexact: bool = False
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
    return ServedBackend(model, engine, source)
