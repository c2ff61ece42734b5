"""What is wanted of each document: fields of a schema, holes of a text, or answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.engines.schemas import PydanticModel, Schema, schema_of
from pasta_lm.errors import InvalidAnswerError, RequestError, UsageError
from pasta_lm.strategies import Prompt, parts
from pasta_lm.strategies.fields import Part
from pasta_lm.strategies.parts import PartsAnswer
from pasta_lm.strategies.questions import Replies, answered, ask_request

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

AnySchema = Schema | str | type[PydanticModel]
Waits = Mapping[str, Sequence[str]]
A = TypeVar("A", bound=PartsAnswer)


class Wanted(NamedTuple, Generic[A]):
    """The request of each document, and the reader of its answer."""

    request: Callable[[Prompt], Request]
    read: Callable[[Answer, Prompt], A]


def filling(
    vocabulary: Vocabulary, params: SamplingParams, schema: AnySchema | None,
    holes: Sequence[Part], after: Waits | None,
) -> Wanted[PartsAnswer]:  # fmt: skip
    """Want the fields of a schema, or holes; data are an instance of a pydantic class."""
    if (schema is None) is not bool(holes) or (holes and after):
        raise UsageError("fill needs a schema or parts, and each part has its own after")
    if schema is None:
        return Wanted(
            lambda prompt: parts.parts_request(prompt, holes, vocabulary, params),
            lambda answer, _: parts.assembled(answer, holes),
        )
    form = schema_of(schema)

    def read(answer: Answer, prompt: Prompt) -> PartsAnswer:
        filled = parts.filled(answer, form, prompt)
        return filled if isinstance(schema, str | Mapping) else instance(filled, schema)

    return Wanted(
        lambda prompt: parts.fill_request(prompt, form, vocabulary, params, after=after), read
    )


def asking(
    vocabulary: Vocabulary, params: SamplingParams, questions: Sequence[str],
    choices: Sequence[str], *, decodes: bool,
) -> Wanted[Replies]:  # fmt: skip
    """Want answers to questions."""

    def request(document: Prompt) -> Request:
        if not isinstance(document, str):
            raise RequestError("questions are about a text, not about messages")
        return ask_request(document, questions, vocabulary, params, choices, decodes=decodes)

    return Wanted(request, lambda answer, _: answered(answer, questions, choices))


def instance(answer: PartsAnswer, schema: type[PydanticModel]) -> PartsAnswer:
    data, text = answer.data, answer.text
    if answer.unfinished:
        problem = f"a limit cut {', '.join(answer.unfinished)}"
        raise InvalidAnswerError(problem, data, text, hint="raise max_tokens")
    try:
        return replace(answer, data=schema.model_validate(data))
    except Exception as exc:  # a class checks its values as it likes
        problem = f"the data is no {schema.__name__}: {exc}"
        hint = "fill the JSON schema of the class instead, and read the data"
        raise InvalidAnswerError(problem, data, text, hint=hint) from exc
