"""Written answers: ``/v1/check`` finds their faults, ``/v1/replay`` decodes them as they are.

A replay is queued, limited, streamed and cancelled like every other request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pasta_lm.engines.request import Answer, Request
from pasta_lm.errors import RequestError
from pasta_lm.interpreter import speed
from pasta_lm.language.check import Diagnostic, check
from pasta_lm.language.document import NUM_BLOCK_TAGS, Document, parse
from pasta_lm.language.events import Text
from pasta_lm.serve.backends import Backend, ServedBackend
from pasta_lm.serve.protocol import (
    STRICT,
    AnyRequest,
    ApiError,
    ChatCompletionRequest,
    ClientPrompt,
    CompletionRequest,
    Ids,
    Messages,
    PastaOptions,
    Positive,
    bad_request,
    check_model,
)
from pasta_lm.serve.replies import Json, Reply
from pasta_lm.serve.service import Service
from pasta_lm.view.run_data import run_data

Rows = list[dict[str, str | int]]

MAX_CHARACTERS_A_TOKEN = 16  # of a written answer with its tags; longer ones are not even read
MAX_DIAGNOSTICS = 100  # in one reply


class CheckRequest(BaseModel):
    """An answer with its tags; in the form ``plain`` it has none, and all of it is text."""

    model_config = STRICT
    model: str | None = None
    response: Annotated[str, Field(min_length=1)]
    form: Literal["written", "annotator", "plain"] = "written"

    def diagnostics(self) -> list[Diagnostic]:
        return [] if self.form == "plain" else check(self.response, self.form)

    def document(self) -> Document:
        """Return the answer, which has no errors."""
        if self.form == "plain":
            return Document((Text(self.response),))
        return parse(self.response, self.form)


class ReplayOptions(BaseModel):
    """How a written answer is decoded."""

    model_config = STRICT
    positions: Literal["predict", "continue", "oracle", "rotate"] | None = None
    max_threads: Positive | None = None
    trace: bool = False


class ReplayRequest(CheckRequest):
    """An answer with its tags, and the prompt in front of it: messages, or a text or token ids."""

    model_config = ConfigDict(
        **STRICT,
        json_schema_extra={"oneOf": [{"required": [name]} for name in ("messages", "prompt")]},
    )
    messages: Messages | None = None
    prompt: str | Ids | None = None
    stream: bool | None = None
    pasta: ReplayOptions = Field(default_factory=ReplayOptions)

    @model_validator(mode="after")
    def _has_one_prompt(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or prompt")
        return self

    def completion(self) -> AnyRequest:
        """Return the request for a new answer to the same prompt, in the same form of reply."""
        own = self.pasta
        options = PastaOptions(stream="events", positions=own.positions, trace=own.trace)
        if self.messages is not None:
            return ChatCompletionRequest(messages=self.messages, stream=self.stream, pasta=options)
        assert self.prompt is not None
        return CompletionRequest(prompt=self.prompt, stream=self.stream, pasta=options)


class ReplayReply(Reply):
    """The reply to a replay of one answer."""

    def __init__(
        self, body: AnyRequest, request: Request, backend: Backend, diagnostics: Rows
    ) -> None:
        super().__init__(body, [request], backend)
        self.id = f"replay-{secrets.token_hex(16)}"
        self._diagnostics = diagnostics

    def figures(self, answer: Answer) -> Json:
        return super().figures(answer) | {
            "strategy": answer.trace.strategy,
            "positions": answer.trace.positions,
            "max_threads": self.request.params.max_threads,
            "finish_reason": answer.finish_reason,
            "text": answer.text,
            "program": answer.program,
            "diagnostics": self._diagnostics,
            "sequential_tokens": self.backend.count_tokens(answer.text),
            "run": run_data(answer.trace, "replayed", answer.document.annotator_form()),
        }

    def whole(self) -> Json:
        (answer,) = self.finished
        return {
            "id": self.id,
            "object": "replay",
            "created": self.created,
            "model": self.backend.name,
            "kind": answer.trace.kind.value,
            "usage": self.usage(),
            **self.figures(answer),
        }


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/v1/check")
    async def check_answer(body: CheckRequest) -> dict[str, Any]:
        _refuse(body, service)
        return await asyncio.to_thread(_checked, body, service.backend)

    @router.post("/v1/replay")
    async def replay_answer(body: ReplayRequest, request: HttpRequest) -> Response:
        _refuse(body, service)
        completion = body.completion()
        (prompt,) = completion.prompts(service.recipe.limits, "")
        service.log_prompts([prompt], request)
        reply = await asyncio.to_thread(_prepare, service, body, completion, prompt)
        return await service.decode(reply, request)


def _refuse(body: CheckRequest, service: Service) -> None:
    check_model(body.model, service.backend.name)
    limit = MAX_CHARACTERS_A_TOKEN * service.recipe.limits.tokens
    if len(body.response) > limit:
        message = f"the answer has {len(body.response)} characters, but at most {limit} are read"
        raise bad_request(message, "response")


def _checked(body: CheckRequest, backend: Backend) -> Json:
    diagnostics = body.diagnostics()
    checked: Json = {"valid": True, "diagnostics": _rows(diagnostics), "text": None, "cost": None}
    if any(diagnostic.severity == "error" for diagnostic in diagnostics):
        return {**checked, "valid": False}
    document, count = body.document(), backend.count_tokens
    path = speed.document_critical_path(document, count)
    texts = [item.text for item in document.items if isinstance(item, Text)]
    num_content = sum(map(count, [*texts, *(block.plain_text for block in document.blocks)]))
    parallelism = speed.parallelism(num_content, path, is_parallel=bool(document.blocks))
    cost = {  # of an answer all of whose threads decode at once
        "critical_path_tokens": path,
        "sequential_tokens": count(document.plain_text),
        "num_content_tokens": num_content,
        "parallelism": round(parallelism, 4),
        "theoretical_speedup": round(speed.document_speedup(document, count), 4),
    }
    return {**checked, "text": document.plain_text, "cost": cost}


def _prepare(
    service: Service, body: ReplayRequest, completion: AnyRequest, prompt: ClientPrompt
) -> ReplayReply:
    """Return the reply to a replay: it decodes all of the answer, or nothing."""
    backend, bounds = service.backend, service.recipe.limits
    diagnostics = body.diagnostics()
    rows = _rows(diagnostics)
    for error in diagnostics:
        if error.severity == "error":
            message = f"line {error.line}, column {error.column}: {error.message}; {error.hint}"
            raise ApiError(400, message, param="response", code=error.code, diagnostics=rows)
    document = body.document()
    if (num := len(document.blocks)) > bounds.blocks:
        raise bad_request(f"{num} blocks, but a response has at most {bounds.blocks}", "response")
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
    return ReplayReply(completion, request, backend, rows)


def _rows(diagnostics: Sequence[Diagnostic]) -> Rows:
    """Return the first diagnostics; the first error is among them, however many warnings are."""
    errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
    shown = list(diagnostics[:MAX_DIAGNOSTICS])
    if errors and errors[0] not in shown:
        shown[-1] = errors[0]
    return [diagnostic.to_row() for diagnostic in shown]
