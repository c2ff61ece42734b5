"""From a checked request to its reply: queue it, send its events, end it when nobody reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, replace
from typing import TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pasta_lm.engines.request import Request
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.language.document import NUM_BLOCK_TAGS
from pasta_lm.serve import Queue, ServeRecipe
from pasta_lm.serve.backends import Backend, ServedBackend
from pasta_lm.serve.engine_loop import EngineLoop
from pasta_lm.serve.errors import CLIENT_GONE, ApiError, Json, bad_request, internal
from pasta_lm.serve.guard import FACTS
from pasta_lm.serve.jobs import ResponseStream
from pasta_lm.serve.protocol import AnyRequest, ReplayRequest
from pasta_lm.serve.replies import DONE, ReplayReply, Reply, sse
from pasta_lm.serve.tool_calls import ClientPrompt
from pasta_lm.strategies import PASTA, SEQUENTIAL
from pasta_lm.strategies.requests import default_sampling

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_CHARACTERS_A_TOKEN = 16  # of a written answer with its tags; longer ones are not even read

# SIGTERM must not cut running streams: the engine loop ends them at its own deadline.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


def check_model(name: str | None, served: str) -> None:
    """Refuse a request for another model, with the name of the one that is served."""
    if name is not None and name != served:
        message = f"there is no model {name[:200]!r} here; this server has {served!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


class Service:
    """One engine, and all of its clients."""

    def __init__(self, backend: Backend, recipe: ServeRecipe) -> None:
        self.backend, self.recipe = backend, recipe
        self.engine = EngineLoop(backend, recipe.queue)
        if recipe.strategy not in (PASTA, *backend.strategies):
            problem = f"strategy {recipe.strategy!r} is not offered by {backend.name}"
            raise UsageError(problem, hint=f"one of {', '.join(backend.strategies)}")

    def about(self) -> Json:
        """Return the facts of the model for ``/v1/models``, and the limits of a request."""
        limits, names = asdict(self.recipe.limits), self.backend.strategies
        strategy = self.recipe.strategy if self.recipe.strategy in names else SEQUENTIAL
        bounds = ("tokens", "default_tokens", "tokens_per_thread", "threads", "n")
        return {
            "strategies": names, "strategy": strategy, "replays": self.backend.can_replay,
            "limits": {name: limits[name] for name in bounds}, **self.backend.facts,
        }  # fmt: skip

    async def respond(self, body: AnyRequest, http: HttpRequest) -> Response:
        """Answer a request; an ``ApiError`` or ``PastaError`` if it cannot be answered."""
        check_model(body.model, self.backend.name)
        may_call = bool(body.offered) and self.backend.tools.shows
        defaults = default_sampling(self.backend.sampling, copies=may_call)
        params = body.params(self.recipe.limits, defaults)
        calls = body.form_of_calls(self.backend.tools)
        if calls is not None:
            params = replace(params, structured_outputs=calls)
        prompts = body.prompts(self.recipe.limits, self.recipe.strategy)
        # A long prompt takes a while to encode; others must not wait for it.
        prepare = self.backend.prepare
        requests = [await asyncio.to_thread(prepare, prompt, params) for prompt in prompts]
        return await self._decode(Reply(body, requests, self.backend), http)

    async def replay_answer(self, body: ReplayRequest, http: HttpRequest) -> Response:
        check_model(body.model, self.backend.name)
        num, limit = len(body.response), MAX_CHARACTERS_A_TOKEN * self.recipe.limits.tokens
        if num > limit:
            message = f"the answer has {num} characters, but at most {limit} are read"
            raise bad_request(message, "response")
        completion = body.completion()
        prompt = completion.prompts(self.recipe.limits, "")[0]
        request = await asyncio.to_thread(self._prepare_replay, body, prompt)
        return await self._decode(ReplayReply(completion, [request], self.backend), http)

    def _prepare_replay(self, body: ReplayRequest, prompt: ClientPrompt) -> Request:
        backend, bounds = self.backend, self.recipe.limits
        document = body.document()
        if (num := len(document.blocks)) > bounds.blocks:
            message = f"{num} blocks, but a response has at most {bounds.blocks}"
            raise bad_request(message, "response")
        if isinstance(backend, ServedBackend):  # servers choose every token themselves
            hint = "serve the model with the local engine to replay answers"
            raise RequestError("stock servers decode no given answer", hint=hint)
        threads = min(body.pasta.max_threads or bounds.threads, bounds.threads)
        request = backend.prepare_replay(prompt, document, threads)
        forced = request.forced
        assert forced is not None
        longest = max((len(ids) + NUM_BLOCK_TAGS for ids in forced.blocks), default=0)
        for part, num, limit in (
            ("the answer", forced.num_tokens, bounds.tokens),
            ("a block", longest, bounds.tokens_per_thread),
        ):
            if num > limit:
                message = f"{part} has {num} tokens, but at most {limit} are decoded"
                raise bad_request(message, "response")
        return request

    async def _decode(self, reply: Reply, http: HttpRequest) -> Response:
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

        return EventStream(self._events(reply, stream), self.recipe.queue, close)

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

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


class EventStream(EventSourceResponse):
    """Server-sent events with pings; however they end, ``close`` is called."""

    def __init__(
        self, events: AsyncIterator[bytes], queue: Queue, close: Callable[[], None]
    ) -> None:
        super().__init__(
            events, ping=queue.ping_s, send_timeout=queue.send_s,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
        )  # fmt: skip
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except OSError:
            pass  # the connection broke, or the client reads too slowly
        finally:
            self._close()
