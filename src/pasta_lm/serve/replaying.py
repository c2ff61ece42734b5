"""A given answer, its tags written by hand: check it, and decode it with forced tokens.

``POST /v1/check`` finds its faults and reads from its structure what it would cost; ``POST
/v1/replay`` decodes it in the engine, queued, limited and cancelled like every other request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pasta_lm.engines.request import Answer, Request
from pasta_lm.errors import PastaError
from pasta_lm.interpreter import speed
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language.check import Diagnostic, check
from pasta_lm.language.document import NUM_BLOCK_TAGS, Document, parse
from pasta_lm.language.events import Text
from pasta_lm.serve.api_error import ApiError, bad_request, from_error
from pasta_lm.serve.backends import Backend
from pasta_lm.serve.body import StrictRoute
from pasta_lm.serve.protocol import (
    STRICT,
    ChatRequest,
    CompletionRequest,
    Message,
    PastaOptions,
    check_model,
)
from pasta_lm.serve.replies import Json, Reply
from pasta_lm.serve.service import Service
from pasta_lm.serve.settings import Bounds
from pasta_lm.view.run_data import run_data

MAX_CHARACTERS_A_TOKEN = 16  # of a given answer, tags and all; longer ones are not even read
MAX_DIAGNOSTICS = 100  # told at a time
NAME = "replayed"  # of the run, until whoever shows it calls it something else


class CheckRequest(BaseModel):
    """An answer with its tags."""

    model_config = STRICT
    model: str | None = None
    response: Annotated[str, Field(min_length=1)]
    form: Literal["written", "annotator"] = "written"


class ReplayOptions(BaseModel):
    """How a given answer is decoded."""

    model_config = STRICT
    positions: Literal["predict", "continue", "oracle", "rotate"] | None = None
    max_threads: Annotated[int, Field(ge=1)] | None = None
    trace: bool = False


class ReplayRequest(CheckRequest):
    """An answer with its tags, and the prompt in front of it: messages, or a text or token ids."""

    model_config = ConfigDict(
        **STRICT,
        json_schema_extra={"oneOf": [{"required": [one]} for one in ("messages", "prompt")]},
    )
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    prompt: str | list[int] | None = None
    stream: bool | None = None
    pasta: ReplayOptions | None = None

    @model_validator(mode="after")
    def _has_one_prompt(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or prompt")
        return self

    @property
    def options(self) -> ReplayOptions:
        """Return our own options."""
        return self.pasta or ReplayOptions()

    def as_asked(self) -> ChatRequest | CompletionRequest:
        """Return the request for a new answer to the same prompt, in the same form of reply."""
        options = PastaOptions(
            stream="events", positions=self.options.positions, trace=self.options.trace
        )
        if self.messages is not None:
            return ChatRequest(messages=self.messages, stream=self.stream, pasta=options)
        assert self.prompt is not None
        return CompletionRequest(prompt=self.prompt, stream=self.stream, pasta=options)


class DiagnosticRow(BaseModel):
    """One fault of the given text; lines and columns count from 1, in characters."""

    code: str
    severity: Literal["error", "warning"]
    line: int
    column: int
    message: str
    hint: str


class Cost(BaseModel):
    """What the structure costs if all its threads decode at once; nothing was decoded."""

    critical_path_tokens: int
    sequential_tokens: int
    num_content_tokens: int
    parallelism: float
    theoretical_speedup: float


class Checked(BaseModel):
    """What ``pasta check --format json`` says, with the plain text and the cost of a valid text."""

    valid: bool
    diagnostics: list[DiagnosticRow]
    text: str | None = None
    cost: Cost | None = None


class Replayed(BaseModel):
    """A replayed answer with its figures and its run as the page shows it."""

    id: str
    object: Literal["replay"] = "replay"
    created: int
    model: str
    kind: Kind
    strategy: str
    positions: str
    max_threads: int | None
    finish_reason: str
    text: str
    program: str
    diagnostics: list[DiagnosticRow]  # warnings
    threads: list[dict[str, Any]]
    usage: dict[str, int]
    critical_path_tokens: int
    sequential_tokens: int  # the answer's tokens when it is decoded without tags
    forward_passes: int
    parallelism: float
    theoretical_speedup: float
    tokens_per_s: float | None
    wall_s: float
    run: dict[str, Any]
    trace: dict[str, Any] | None = None


class Fault(BaseModel):
    """An error; of a text that breaks the grammar, the code of the first fault, and all of them."""

    message: str
    type: str
    param: str | None
    code: str | None
    diagnostics: list[DiagnosticRow] | None = None


class Refused(BaseModel):
    """The body of a refusal."""

    error: Fault


@dataclass(slots=True, kw_only=True)
class ReplayReply(Reply):
    """The reply to a replay: a stream of events like every other, or one object."""

    diagnostics: Sequence[Diagnostic]

    def whole(self) -> Json:
        """Return the object of a replayed answer."""
        answer = self.answers[0]
        replayed = Replayed(
            id=self.id,
            kind=answer.trace.kind,
            created=self.created,
            model=self.model,
            usage=self.usage(),
            **self._figures(answer),
        )
        return replayed.model_dump(exclude=None if replayed.trace else {"trace"})

    def _figures(self, answer: Answer) -> Json:
        trace = answer.trace
        return {
            **Reply._figures(self, answer),  # ``super()`` does not know a class with slots
            "strategy": trace.strategy,
            "positions": trace.positions,
            "max_threads": self.request.params.max_threads,
            "finish_reason": answer.finish_reason,
            "text": answer.text,
            "program": answer.program,
            "diagnostics": _rows(self.diagnostics),
            "sequential_tokens": self.count_tokens(answer.text),
            "run": run_data(trace, NAME, answer.document.annotator_form(), spell=self.spell),
        }


def routes(service: Service) -> APIRouter:
    """Return the routes for given answers."""
    router = APIRouter(route_class=StrictRoute)
    refused: dict[int | str, dict[str, Any]] = {400: {"model": Refused}}

    @router.post("/v1/check", responses=refused)
    async def check_answer(asked: CheckRequest) -> Checked:
        check_model(asked.model, service.backend.name)
        _refuse_size(asked, service.recipe.limits)
        return await asyncio.to_thread(checked, asked, service.backend)

    @router.post("/v1/replay", response_model=Replayed, responses=refused)
    async def replay_answer(asked: ReplayRequest, request: HttpRequest) -> Response:
        return await replay(service, asked, request)

    return router


def checked(asked: CheckRequest, backend: Backend) -> Checked:
    """Return the faults of a text and, if it is valid, what it would cost."""
    diagnostics = check(asked.response, asked.form)
    rows = [DiagnosticRow.model_validate(row) for row in _rows(diagnostics)]
    if any(one.severity == "error" for one in diagnostics):
        return Checked(valid=False, diagnostics=rows)
    document = parse(asked.response, asked.form)
    cost = _cost(document, backend)
    return Checked(valid=True, diagnostics=rows, text=document.plain_text, cost=cost)


def _cost(document: Document, backend: Backend) -> Cost:
    count = backend.count_tokens
    num_sequential = count(document.plain_text)
    path = speed.document_critical_path(document, count)
    texts = [one.text for one in document.items if isinstance(one, Text)]
    num_content = sum(map(count, [*texts, *(block.plain_text for block in document.blocks)]))
    return Cost(
        critical_path_tokens=path,
        sequential_tokens=num_sequential,
        num_content_tokens=num_content,
        parallelism=round(
            speed.parallelism(num_content, path, is_parallel=bool(document.blocks)), 4
        ),
        theoretical_speedup=round(
            speed.speedup_over_text(num_sequential, path, is_parallel=bool(document.blocks)), 4
        ),
    )


async def replay(service: Service, asked: ReplayRequest, http: HttpRequest) -> Response:
    """Decode a given answer.

    Raises:
        ApiError: its text is invalid, it exceeds a limit, or it cannot be decoded.
    """
    backend, bounds = service.backend, service.recipe.limits
    check_model(asked.model, backend.name)
    _refuse_size(asked, bounds)
    as_asked = asked.as_asked()
    prompts = as_asked.prompts(bounds, service.recipe.strategy)
    service.note_prompts(prompts, http)
    threads = min(asked.options.max_threads or bounds.threads, bounds.threads)

    def prepare() -> ReplayReply:
        diagnostics = check(asked.response, asked.form)
        _refuse_faults(diagnostics)
        document = parse(asked.response, asked.form)
        _refuse_blocks(document, bounds)
        request = backend.prepare_replay(prompts[0], document, threads)
        _refuse_length(request, bounds)
        return ReplayReply(
            as_asked,
            [replace(request, traces=as_asked.traces)],
            backend.name,
            backend.spell,
            backend.count_tokens,
            id=f"replay-{secrets.token_hex(16)}",
            diagnostics=diagnostics,
        )

    try:
        reply = await asyncio.to_thread(prepare)
    except PastaError as error:
        raise from_error(error) from error
    return await service.decode(reply, http)


def _rows(diagnostics: Sequence[Diagnostic]) -> list[dict[str, str | int]]:
    """Return what is told of faults: the first error is among them, however many warnings are."""
    errors = [one for one in diagnostics if one.severity == "error"]
    told = diagnostics[:MAX_DIAGNOSTICS]
    if errors and errors[0] not in told:
        told = [*told[:-1], errors[0]]
    return [one.to_row() for one in told]


def _refuse_size(asked: CheckRequest, bounds: Bounds) -> None:
    num, most = len(asked.response), MAX_CHARACTERS_A_TOKEN * bounds.tokens
    if num > most:
        message = f"the answer has {num} characters, but at most {most} are read"
        raise bad_request(message, "response")


def _refuse_faults(diagnostics: Sequence[Diagnostic]) -> None:
    errors = [one for one in diagnostics if one.severity == "error"]
    if errors:
        first = errors[0]
        place = f"line {first.line}, column {first.column}"
        raise ApiError(
            400,
            f"{place}: {first.message}; {first.hint}",
            param="response",
            code=first.code,
            diagnostics=_rows(diagnostics),
        )


def _refuse_blocks(document: Document, bounds: Bounds) -> None:
    if len(document.blocks) > bounds.blocks:
        num = len(document.blocks)
        raise bad_request(f"{num} blocks, but a response has at most {bounds.blocks}", "response")


def _refuse_length(request: Request, bounds: Bounds) -> None:
    """Refuse what a limit would cut: a replay decodes the whole answer, or nothing."""
    forced = request.forced
    assert forced is not None
    longest = max((len(ids) + NUM_BLOCK_TAGS for ids in forced.blocks), default=0)
    for what, num, most in (
        ("the answer", forced.num_tokens, bounds.tokens),
        ("a block", longest, bounds.tokens_per_thread),
    ):
        if num > most:
            raise bad_request(
                f"{what} has {num} tokens, but at most {most} are decoded", "response"
            )
