"""From a checked request to its reply: queue it, follow its events, give up when nobody reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from pasta_lm.engines.request import Request
from pasta_lm.errors import PastaError
from pasta_lm.serve.api_error import ApiError, bad_request, from_error, internal
from pasta_lm.serve.backends import Backend, Prompt
from pasta_lm.serve.engine_loop import EngineLoop
from pasta_lm.serve.event_stream import CLIENT_GONE, ClientGone, EventStream, until_gone
from pasta_lm.serve.guard import FACTS
from pasta_lm.serve.metrics import Metrics
from pasta_lm.serve.protocol import ChatRequest, CompletionRequest, check_model
from pasta_lm.serve.replies import DONE, Reply, sse
from pasta_lm.serve.response_stream import OWN_ERRORS, JoinedStreams, ResponseStream
from pasta_lm.serve.resuming import Recordings
from pasta_lm.serve.settings import ServeRecipe
from pasta_lm.serve.tracing import spans_from_environment

log = logging.getLogger(__name__)
NO_LOGPROBS = "this engine gives no log-probabilities"


class Service:
    """One engine, and everybody who asks it."""

    def __init__(self, backend: Backend, recipe: ServeRecipe, *, logs_prompts: bool) -> None:
        self.backend = backend
        self.recipe = recipe
        self.metrics = Metrics(backend.name)
        self.engine = EngineLoop(backend, recipe.queue, self.metrics)
        self.metrics.watch(lambda: self.engine.load)
        self.cut_off: Callable[[Scope], None] = lambda _: None
        """Closes the connection of a request, whatever waits to be sent; the server sets it."""
        self.spans = spans_from_environment(logs_prompts=logs_prompts)
        self._recordings = Recordings(recipe.queue)
        self._logs_prompts = logs_prompts

    def about(self) -> dict[str, Any]:
        """Return what ``/v1/models`` tells about the model, and the limits of a request."""
        limits = self.recipe.limits
        return {
            "strategies": list(self.backend.strategies),
            "strategy": self.recipe.strategy,
            "limits": {
                "tokens": limits.tokens,
                "default_tokens": limits.default_tokens,
                "tokens_per_thread": limits.tokens_per_thread,
                "threads": limits.threads,
                "n": limits.n,
            },
            **self.backend.facts,
        }

    async def respond(self, asked: ChatRequest | CompletionRequest, http: HttpRequest) -> Response:
        """Answer a request.

        Raises:
            ApiError: it cannot be answered.
        """
        check_model(asked.model, self.backend.name)
        requests = await self._prepare(asked, http)
        backend = self.backend
        reply = Reply(asked, requests, backend.name, backend.spell, backend.count_tokens)
        return await self.decode(reply, http)

    async def decode(self, reply: Reply, http: HttpRequest) -> Response:
        """Decode the requests of a reply, and send it as a stream or as a whole.

        Raises:
            ApiError: the engine refuses it, or fails.
        """
        source = _Source(self.engine, reply.requests)
        facts = http.scope[FACTS]
        facts["response_id"] = reply.id
        is_handed_on = False

        def end() -> None:
            source.abort()
            if reply.error in OWN_ERRORS:
                self.metrics.failed(reply.error)
            if self.spans is not None:
                facts["trace_id"] = self.spans.write(reply, source.streams, http.headers)

        try:
            await until_gone(http.receive, source.stream.started())
            if reply.asked.stream:
                is_handed_on = True
                return self._event_stream(reply, _texts(reply, source.stream), end, facts)
            await until_gone(http.receive, _collect(reply, source.stream))
            facts |= _figures(reply)
            return JSONResponse(reply.whole())
        except ClientGone:
            return Response(status_code=CLIENT_GONE)
        except ApiError as error:
            reply.error = error.code
            raise
        finally:
            if not is_handed_on:
                end()

    async def _prepare(
        self, asked: ChatRequest | CompletionRequest, http: HttpRequest
    ) -> list[Request]:
        limits = self.recipe.limits
        try:
            params = asked.params(limits)
            if params.logprobs is not None and not self.backend.has_logprobs:
                raise bad_request(NO_LOGPROBS, "logprobs", "unsupported")
            prompts = asked.prompts(limits, self.recipe.strategy)
            # A long prompt takes a while to encode; others must not wait for it.
            prepare = self.backend.prepare
            requests = [await asyncio.to_thread(prepare, prompt, params) for prompt in prompts]
            if asked.traces:
                requests = [replace(request, traces=True) for request in requests]
        except PastaError as error:
            raise from_error(error) from error
        self.note_prompts(prompts, http)
        return requests

    def note_prompts(self, prompts: Sequence[Prompt], http: HttpRequest) -> None:
        """Leave the prompts for the log, if it is to have them."""
        if self._logs_prompts:
            contents = [prompt.content for prompt in prompts]
            http.scope[FACTS]["prompt"] = contents[0] if len(contents) == 1 else contents

    def _event_stream(
        self,
        reply: Reply,
        texts: AsyncIterator[str],
        end: Callable[[], None],
        facts: dict[str, Any],
    ) -> EventStream:
        def close() -> None:
            if reply.asked.options.resumable:
                self._recordings.leave(reply.id)
            else:
                end()
            facts.update(_figures(reply))
            facts["is_complete"] = reply.is_complete

        if reply.asked.options.resumable:
            texts = self._recordings.start(reply.id, texts, end)
        return self._sent(texts, close)

    def resume(self, response_id: str, last_id: str | None, http: HttpRequest) -> EventStream:
        """Take a resumable stream up again, behind the last event that the client has.

        Raises:
            ApiError: 404, 400 or 410: there is no such stream or event, or not any more.
        """
        http.scope[FACTS]["response_id"] = response_id
        texts = self._recordings.enter(response_id, last_id)
        return self._sent(texts, lambda: self._recordings.leave(response_id))

    def _sent(self, texts: AsyncIterator[str], close: Callable[[], None]) -> EventStream:
        def slow(scope: Scope) -> None:
            self.metrics.failed("slow_reader")
            self.cut_off(scope)

        return EventStream(texts, self.recipe.queue, close=close, slow=slow)


class _Source:
    """The streams of one HTTP request's prompts: started together, given up together."""

    def __init__(self, engine: EngineLoop, requests: Sequence[Request]) -> None:
        self._engine = engine
        self.streams: list[ResponseStream] = []
        self._joined: JoinedStreams | None = None
        try:
            for request in requests:
                self.streams.append(engine.submit(request))
        except ApiError:
            self.abort()
            raise
        if len(requests) > 1:
            self._joined = JoinedStreams(self.streams)

    @property
    def stream(self) -> ResponseStream | JoinedStreams:
        """Return what there is to read."""
        return self._joined or self.streams[0]

    def abort(self) -> None:
        """Give up what is not finished."""
        for stream in self.streams:
            self._engine.abort(stream)
        if self._joined is not None:
            self._joined.close()


async def _collect(reply: Reply, stream: ResponseStream | JoinedStreams) -> None:
    while not reply.is_complete:
        reply.take(await stream.next())


async def _texts(reply: Reply, stream: ResponseStream | JoinedStreams) -> AsyncIterator[str]:
    """Yield everything that a stream says; ``[DONE]`` is always last."""
    try:
        opening = reply.first()
        if reply.asked.options.stream == "events":
            yield opening
            opening = ""
        while not reply.is_complete:
            # Clients take the first piece for the first token: it goes with the first text.
            if pieces := reply.pieces(await stream.next()):
                yield opening + pieces
                opening = ""
        yield reply.last()
    except ApiError as error:
        reply.error = error.code
        yield sse(error.body)
    except Exception:
        reply.error = "internal_error"
        log.exception("a stream failed")
        yield sse(internal("internal_error").body)
    yield DONE


def _figures(reply: Reply) -> dict[str, Any]:
    """Return what the log says about a response; never its text."""
    answers = [reply.answers[sample] for sample in sorted(reply.answers)]
    return {
        "strategy": reply.request.strategy,
        **reply.usage(),
        "finish_reasons": [answer.finish_reason for answer in answers],
        "num_threads": [len(answer.trace.threads) for answer in answers],
        "parallelism": [round(answer.trace.parallelism, 3) for answer in answers],
    }
