"""Routes of the server: a request is queued, its events are sent, and it ends when nobody reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, replace
from typing import Annotated, Literal, Self, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pasta_lm.engines.request import Request
from pasta_lm.errors import UsageError
from pasta_lm.language.check import check
from pasta_lm.language.document import NUM_BLOCK_TAGS, Document, parse
from pasta_lm.language.events import Text
from pasta_lm.serve import Queue, ServeRecipe, protocol
from pasta_lm.serve.backends import Backend
from pasta_lm.serve.engine_loop import EngineLoop
from pasta_lm.serve.errors import CLIENT_GONE, ApiError, Json, bad_request
from pasta_lm.serve.fields import STRICT, FewKeys, PastaOptions, Positive, with_few_keys
from pasta_lm.serve.guard import FACTS
from pasta_lm.serve.protocol import AnyRequest, ChatCompletionRequest, CompletionRequest
from pasta_lm.serve.replies import Reply
from pasta_lm.serve.tool_calls import ClientPrompt
from pasta_lm.strategies import PASTA, SEQUENTIAL
from pasta_lm.strategies.requests import default_sampling
from pasta_lm.view.page import page_of
from pasta_lm.view.run_data import run_data

T = TypeVar("T")
MAX_CHARACTERS_A_TOKEN = 16  # a written answer, tags included, that is longer is not even read


class ReplayOptions(BaseModel):
    """How a written answer is decoded."""

    model_config = STRICT
    positions: Literal["predict", "continue", "oracle"] | None = None
    max_threads: Positive | None = None
    trace: bool = False


class ReplayRequest(BaseModel):
    """An answer, and the prompt in front of it: messages, or a text or token ids.

    An answer in the form ``plain`` has no tags: all of it is text.
    """

    model_config = ConfigDict(
        **STRICT,
        json_schema_extra={"oneOf": [{"required": [name]} for name in ("messages", "prompt")]},
    )
    _has_few_keys = model_validator(mode="before")(with_few_keys)
    model: str | None = None
    response: Annotated[str, Field(min_length=1)]
    form: Literal["written", "annotator", "plain"] = "written"
    messages: protocol.Messages | None = None
    prompt: str | protocol.Ids | None = None
    stream: bool | None = None
    pasta: Annotated[ReplayOptions, FewKeys] = Field(default_factory=ReplayOptions)

    @model_validator(mode="after")
    def _has_one_prompt(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or prompt")
        return self

    def document(self) -> Document:
        if self.form == "plain":
            return Document((Text(self.response),))
        for fault in check(self.response, self.form):
            if fault.severity == "error":
                message = f"line {fault.line}, column {fault.column}: {fault.message}; {fault.hint}"
                raise bad_request(message, "response", fault.code)
        return parse(self.response, self.form)

    def completion(self) -> AnyRequest:
        """Return the request for a new answer to the same prompt, in the same form of reply."""
        shared = self.pasta.model_dump(include={"positions", "trace"})
        options = PastaOptions(stream="events", **shared)
        if self.messages is not None:
            return ChatCompletionRequest(messages=self.messages, stream=self.stream, pasta=options)
        assert self.prompt is not None
        return CompletionRequest(prompt=self.prompt, stream=self.stream, pasta=options)


def check_model(name: str | None, served: str) -> None:
    if name is not None and name != served:
        message = f"there is no model {name[:200]!r} here; this server has {served!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


class Service:
    """One engine, and all of its clients."""

    def __init__(self, backend: Backend, recipe: ServeRecipe, number: str = "unknown") -> None:
        self.backend, self.recipe = backend, recipe
        self.engine = EngineLoop(backend, recipe.queue)
        self._number, self._started = number, int(time.time())
        if recipe.strategy not in (PASTA, *backend.strategies):
            problem = f"strategy {recipe.strategy!r} is not offered by {backend.name}"
            raise UsageError(problem, hint=f"one of {', '.join(backend.strategies)}")

    async def models(self) -> Json:
        limits, names = asdict(self.recipe.limits), self.backend.strategies
        strategy = self.recipe.strategy if self.recipe.strategy in names else SEQUENTIAL
        bounds = ("tokens", "default_tokens", "tokens_per_thread", "threads", "n")
        facts = {
            "version": self._number, "strategies": names, "strategy": strategy,
            "replays": self.backend.can_replay,
            "limits": {name: limits[name] for name in bounds}, **self.backend.facts,
        }  # fmt: skip
        return {"object": "list", "data": [{**await self.model(self.backend.name), "pasta": facts}]}

    async def model(self, model_id: str) -> Json:
        name = self.backend.name
        check_model(model_id, name)
        return {"id": name, "object": "model", "created": self._started, "owned_by": "pasta-lm"}

    async def page(self) -> str:
        return page_of([])

    async def health(self) -> JSONResponse:
        status = self.engine.status
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    async def metrics(self) -> Response:
        return Response(self.engine.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def version(self) -> dict[str, str]:
        return {"version": self._number}

    async def chat_completions(self, body: ChatCompletionRequest, request: HttpRequest) -> Response:
        return await self._respond(body, request)

    async def completions(self, body: CompletionRequest, request: HttpRequest) -> Response:
        return await self._respond(body, request)

    async def _respond(self, body: AnyRequest, http: HttpRequest) -> Response:
        check_model(body.model, self.backend.name)
        may_call = bool(body.offered) and self.backend.tools.shows
        defaults = default_sampling(self.backend.sampling, copies=may_call)
        params = body.params(self.recipe.limits, defaults)
        if (calls := body.form_of_calls(self.backend.tools)) is not None:
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
        threads = min(body.pasta.max_threads or bounds.threads, bounds.threads)
        request = backend.prepare_replay(prompt, document, threads)
        forced = request.forced
        assert forced is not None
        longest = max((len(ids) + NUM_BLOCK_TAGS for ids in forced.blocks), default=0)
        for kind, num, limit in (
            ("the answer", forced.num_tokens, bounds.tokens),
            ("a block", longest, bounds.tokens_per_thread),
        ):
            if num > limit:
                message = f"{kind} has {num} tokens, but at most {limit} are decoded"
                raise bad_request(message, "response")
        return request

    async def _decode(self, reply: Reply, http: HttpRequest) -> Response:
        facts = http.scope[FACTS]
        facts["response_id"] = reply.id
        batches = self.engine.submit(reply.requests, http.client.host if http.client else "")

        def close() -> None:
            self.engine.abort(batches)
            facts.update(reply.log_facts(), is_complete=reply.is_complete)

        is_handed_on = False
        try:
            await until_gone(http.receive, batches.next())  # a refusal is a status, not an event
            if reply.body.stream:
                is_handed_on = True
                return EventStream(reply.stream(batches), self.recipe.queue, close)
            whole = await until_gone(http.receive, reply.whole(batches))
            facts |= reply.log_facts()
            return JSONResponse(whole)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        finally:
            if not is_handed_on:
                self.engine.abort(batches)


class ReplayReply(Reply):
    """The reply to a replay of one answer."""

    def figures(self, sample: int) -> Json:
        answer = self.answers[sample]
        return super().figures(sample) | {
            "strategy": answer.trace.strategy, "positions": answer.trace.positions,
            "max_threads": self.request.params.max_threads, "finish_reason": answer.finish_reason,
            "text": answer.text, "program": answer.program,
            "sequential_tokens": self.backend.count_tokens(answer.text),
            "run": run_data(answer.trace, "replayed"),
        }  # fmt: skip

    def _whole(self) -> Json:
        kind = self.answers[0].trace.kind.value
        return {
            **self._head("replay"), "object": "replay", "kind": kind,
            "usage": self._usage(), **self.figures(0),
        }  # fmt: skip


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
