"""From a checked request to its reply: queue it, send its events, end it when nobody reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pasta_lm.serve.backends import Backend
from pasta_lm.serve.engine_loop import EngineLoop
from pasta_lm.serve.guard import FACTS
from pasta_lm.serve.jobs import ResponseStream
from pasta_lm.serve.protocol import (
    CLIENT_GONE,
    AnyRequest,
    ApiError,
    ClientPrompt,
    bad_request,
    check_model,
    internal,
)
from pasta_lm.serve.replies import DONE, Json, Reply, sse
from pasta_lm.serve.settings import Queue, ServeRecipe

log = logging.getLogger(__name__)
T = TypeVar("T")

# SIGTERM must not cut running streams: the engine loop ends them at its own deadline.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


class Service:
    """One engine, and all of its clients."""

    def __init__(self, backend: Backend, recipe: ServeRecipe, *, logs_prompts: bool) -> None:
        self.backend, self.recipe = backend, recipe
        self.engine = EngineLoop(backend, recipe.queue)
        self.cut_off: Callable[[Scope], None] = lambda _: None
        """Closes the connection of a request with all that waits to be sent; the server sets it."""
        self._logs_prompts = logs_prompts

    def about(self) -> Json:
        """Return the facts of the model for ``/v1/models``, and the limits of a request."""
        limits = asdict(self.recipe.limits)
        names = ("tokens", "default_tokens", "tokens_per_thread", "threads", "n")
        return {
            "strategies": self.backend.strategies,
            "strategy": self.recipe.strategy,
            "replays": self.backend.can_replay,
            "limits": {name: limits[name] for name in names},
            **self.backend.facts,
        }

    async def respond(self, body: AnyRequest, http: HttpRequest) -> Response:
        """Answer a request; an ``ApiError`` or ``PastaError`` if it cannot be answered."""
        check_model(body.model, self.backend.name)
        params = body.params(self.recipe.limits)
        if params.logprobs is not None and not self.backend.has_logprobs:
            message = "this engine gives no log-probabilities"
            raise bad_request(message, "logprobs", "unsupported")
        prompts = body.prompts(self.recipe.limits, self.recipe.strategy)
        # A long prompt takes a while to encode; others must not wait for it.
        prepare = self.backend.prepare
        requests = [await asyncio.to_thread(prepare, prompt, params) for prompt in prompts]
        self.log_prompts(prompts, http)
        return await self.decode(Reply(body, requests, self.backend), http)

    def log_prompts(self, prompts: Sequence[ClientPrompt], http: HttpRequest) -> None:
        """Leave the prompts for the log, if it is to have them."""
        if self._logs_prompts:
            contents = [prompt.content for prompt in prompts]
            http.scope[FACTS]["prompt"] = contents[0] if len(contents) == 1 else contents

    async def decode(self, reply: Reply, http: HttpRequest) -> Response:
        """Decode the requests of a reply, and send it as a stream or as a whole."""
        facts = http.scope[FACTS]
        facts["response_id"] = reply.id
        stream = self.engine.submit(reply.requests, http.client.host if http.client else "")
        is_handed_on = False
        try:
            await until_gone(http.receive, stream.next())  # a refusal is a status, not an event
            if reply.body.stream:
                is_handed_on = True
                return self._event_stream(reply, stream, facts)
            await until_gone(http.receive, _collect(reply, stream))
            facts |= _log_figures(reply)
            return JSONResponse(reply.whole())
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        finally:
            if not is_handed_on:
                self.engine.abort(stream)

    def _event_stream(self, reply: Reply, stream: ResponseStream, facts: Json) -> EventStream:
        def close() -> None:
            self.engine.abort(stream)
            facts.update(_log_figures(reply), is_complete=reply.is_complete)

        def drop(scope: Scope) -> None:
            self.engine.metrics.failed("slow_reader")
            self.cut_off(scope)

        return EventStream(self._events(reply, stream), self.recipe.queue, close=close, drop=drop)

    async def _events(self, reply: Reply, stream: ResponseStream) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a reply; ``[DONE]`` is always last."""
        try:
            opening = reply.first()
            if reply.body.options.stream == "events":
                yield opening
                opening = b""
            while not reply.is_complete:
                # Clients take the first piece for the first token: it goes with the first text.
                if pieces := reply.pieces(await stream.next()):
                    yield opening + pieces
                    opening = b""
            if last := reply.last():
                yield last
        except ApiError as error:
            if error.code == "slow_reader":  # the engine has counted all other errors
                self.engine.metrics.failed(error.code)
            yield sse(error.body)
        except Exception:
            log.exception("a stream failed")
            yield sse(internal("internal_error").body)
        yield DONE


async def _collect(reply: Reply, stream: ResponseStream) -> None:
    while not reply.is_complete:
        reply.take(await stream.next())


def _log_figures(reply: Reply) -> Json:
    return {  # never its text
        "strategy": reply.request.strategy,
        **reply.usage(),
        "finish_reasons": [answer.finish_reason for answer in reply.finished],
        "num_threads": [len(answer.trace.threads) for answer in reply.finished],
        "parallelism": [round(answer.trace.parallelism, 3) for answer in reply.finished],
    }


async def until_gone(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Await a coroutine; cancel it and raise ``ClientDisconnect`` if the client disconnects."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(EventSourceResponse):
    """Server-sent events with pings; drops slow readers, and always calls ``close``."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        queue: Queue,
        *,
        close: Callable[[], None],
        drop: Callable[[Scope], None],
    ) -> None:
        """Send encoded events, whole ones at a time; ``drop`` closes a slow reader's connection."""
        super().__init__(
            events,
            ping=queue.ping_s,
            send_timeout=queue.send_s,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
        )
        self._close, self._drop = close, drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        try:
            await super().__call__(scope, receive, send)
        except TimeoutError:
            self._drop(scope)
            await asyncio.sleep(0)  # the connection learns that it is closed
        except OSError:
            pass  # the connection broke
        finally:
            self._close()
