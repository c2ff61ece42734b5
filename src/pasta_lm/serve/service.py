"""From a checked request to its reply: queue it, follow its events, end it when nobody reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from pasta_lm.serve.backends import Backend
from pasta_lm.serve.engine_loop import EngineLoop
from pasta_lm.serve.guard import FACTS
from pasta_lm.serve.protocol import (
    AnyRequest,
    ApiError,
    ClientPrompt,
    bad_request,
    check_model,
    internal,
)
from pasta_lm.serve.replies import DONE, Json, Reply, sse
from pasta_lm.serve.settings import ServeRecipe
from pasta_lm.serve.streams import CLIENT_GONE, EventStream, ResponseStream, until_gone

log = logging.getLogger(__name__)


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
        names = ("tokens", "default_tokens", "tokens_per_thread", "threads", "n")
        return {
            "strategies": list(self.backend.strategies),
            "strategy": self.recipe.strategy,
            "replays": self.backend.can_replay,
            "limits": {name: getattr(self.recipe.limits, name) for name in names},
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
        client = http.client.host if http.client else ""
        stream = self.engine.submit(reply.requests, client)
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
        except ApiError as error:
            reply.error = error.code
            raise
        finally:
            if not is_handed_on:
                self._end(reply, stream)

    def _end(self, reply: Reply, stream: ResponseStream) -> None:
        self.engine.abort(stream)
        if reply.error == "slow_reader":  # the engine knows of no other error here
            self.engine.metrics.failed(reply.error)

    def _event_stream(self, reply: Reply, stream: ResponseStream, facts: Json) -> EventStream:
        def close() -> None:
            self._end(reply, stream)
            facts.update(_log_figures(reply), is_complete=reply.is_complete)

        def drop(scope: Scope) -> None:
            self.engine.metrics.failed("slow_reader")
            self.cut_off(scope)

        return EventStream(_events(reply, stream), self.recipe.queue, close=close, drop=drop)


async def _collect(reply: Reply, stream: ResponseStream) -> None:
    while not reply.is_complete:
        reply.take(await stream.next())


async def _events(reply: Reply, stream: ResponseStream) -> AsyncIterator[bytes]:
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
        reply.error = error.code
        yield sse(error.body)
    except Exception:
        reply.error = "internal_error"
        log.exception("a stream failed")
        yield sse(internal("internal_error").body)
    yield DONE


def _log_figures(reply: Reply) -> Json:
    """Return the figures of a response for the log; never its text."""
    return {
        "strategy": reply.request.strategy,
        **reply.usage(),
        "finish_reasons": [answer.finish_reason for answer in reply.finished],
        "num_threads": [len(answer.trace.threads) for answer in reply.finished],
        "parallelism": [round(answer.trace.parallelism, 3) for answer in reply.finished],
    }
