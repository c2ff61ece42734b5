"""What is wanted of each document: the fields of a schema, holes of a text, or answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.engines import Prompt
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.engines.schemas import PydanticModel, Schema, schema_of
from pasta_lm.errors import InputError, InvalidAnswerError, UsageError
from pasta_lm.parts import declared as parts
from pasta_lm.parts.declared import PartsAnswer
from pasta_lm.parts.fields import Part
from pasta_lm.parts.questions import answered, ask_request, check_choices

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

AnySchema = Schema | str | type[PydanticModel]
Waits = Mapping[str, Sequence[str]]


class Wanted(NamedTuple):
    """The request of each prompt, and the reader of the answer to it."""

    request: Callable[[Prompt], Request]
    read: Callable[[Answer, Prompt], PartsAnswer]


def filling(
    vocabulary: Vocabulary, params: SamplingParams, schema: AnySchema | None,
    holes: Sequence[Part] = (), after: Waits | None = None,
) -> Wanted:  # fmt: skip
    if (schema is None) is not bool(holes) or (holes and after):
        raise UsageError("fill needs a schema or parts, and each part has its own after")
    if schema is None:
        return Wanted(
            lambda prompt: parts.parts_request(prompt, holes, vocabulary, params),
            lambda answer, _: parts.assembled(answer, holes, vocabulary),
        )
    form = schema_of(schema)

    def read(answer: Answer, prompt: Prompt) -> PartsAnswer:
        filled = parts.filled(answer, form, prompt, vocabulary)
        return filled if isinstance(schema, str | Mapping) else instance(filled, schema)

    return Wanted(
        lambda prompt: parts.fill_request(prompt, form, vocabulary, params, after=after), read
    )


def asking(
    vocabulary: Vocabulary, params: SamplingParams, questions: Sequence[str],
    choices: Sequence[str] = (), *, decodes: bool = False,
) -> Wanted:  # fmt: skip
    if choices:
        check_choices(choices, params)
    return Wanted(
        partial(
            ask_request, questions=questions, vocabulary=vocabulary, params=params,
            choices=choices, decodes=decodes,
        ),
        lambda answer, _: answered(answer, questions, vocabulary, choices, decodes=decodes),
    )  # fmt: skip


def below(prompt: str | None, document: Prompt) -> Prompt:
    """Return a document with a prompt above its text."""
    if prompt is not None and not isinstance(document, str):
        raise InputError("it has messages, so no prompt can stand above its text")
    return document if prompt is None else f"{prompt}\n\n{document}"


def instance(answer: PartsAnswer, schema: type[PydanticModel]) -> PartsAnswer:
    data, text = answer.data, answer.text
    if answer.unfinished:
        problem = f"unfinished, cut or unreadable: {', '.join(answer.unfinished)}"
        raise InvalidAnswerError(problem, data, text, hint="raise max_tokens")
    try:
        return replace(answer, data=schema.model_validate(data))
    except Exception as exc:  # a class checks its values as it likes
        problem = f"the data is no {schema.__name__}: {exc}"
        hint = "fill the JSON schema of the class instead, and read the data"
        raise InvalidAnswerError(problem, data, text, hint=hint) from exc
