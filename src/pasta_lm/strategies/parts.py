"""Parts that the caller declares, decoded at the same time by any model, taught or not.

The fields of a JSON schema, or questions about one document. The prompt is computed once; each part
is a thread that sees the prompt and its own beginning, and nothing of the others: its tokens are
those of a sequential request for it alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from pasta_lm.engines.request import (
    Answer,
    Expansion,
    Request,
    SamplingParams,
    Start,
    StructuredOutputs,
)
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language.tags import bounded_topic
from pasta_lm.strategies import Prompt

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

NAME = "parts"
Schema = Mapping[str, Any]
REFERENCE = "#/$defs/"
NOTES = {"$comment", "$defs", "$id", "$schema", "default", "description", "examples", "title"}
OPENED = NOTES | {"additionalProperties", "properties", "required", "type"}
"""Keys of an object whose fields may be decoded apart: others bind fields to one another."""


class PydanticModel(Protocol):
    """A class of pydantic, which need not be installed."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...
    @classmethod
    def model_validate(cls, obj: object) -> Self: ...


class Field(NamedTuple):
    """A value of an object with fixed keys, decoded as one part."""

    path: tuple[str, ...]
    schema: Schema

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def lead(self) -> str:
        """Return the given text in front of the value: the keys that lead to it."""
        return "".join(f"{{{json.dumps(key, ensure_ascii=False)}: " for key in self.path).rstrip()


def fields_of(schema: Schema) -> list[Field]:
    """Return the fields of a schema of an object; objects with fixed keys inside it are opened.

    Lists, maps, values with alternatives and objects with rules over several keys are one field
    each. A UsageError if the schema itself is no object that can be opened.
    """
    definitions = schema.get("$defs") or {}

    def resolved(part: Schema) -> Schema:
        name = str(part.get("$ref", "")).removeprefix(REFERENCE)
        whole: Schema = definitions.get(name, part)
        return whole

    def below(path: tuple[str, ...], part: Schema, opened: tuple[str, ...]) -> Iterator[Field]:
        whole, name = resolved(part), str(part.get("$ref", ""))
        properties = whole.get("properties")
        is_plain = whole.keys() <= OPENED and (whole is part or part.keys() <= NOTES | {"$ref"})
        is_plain &= {*whole.get("required", ())} <= {*(properties or ())}
        is_object = is_plain and whole.get("type", "object") == "object"
        if not (properties and is_object) or name in opened:
            defined = {"$defs": definitions} if definitions else {}
            yield Field(path, {**part, **defined})
            return
        for key, value in properties.items():
            value = value if isinstance(value, Mapping) else {}  # true: anything
            yield from below((*path, key), value, (*opened, name) if name else opened)

    fields = list(below((), schema, ()))
    if fields[0].path == ():
        raise UsageError(
            "the schema is no object of properties without rules over several, so it has no parts",
            hint="decode it sequentially, as structured outputs",
        )
    return fields


def fill_request(
    prompt: Prompt, schema: Schema, vocabulary: Vocabulary, params: SamplingParams
) -> Request:
    """Return the request that decodes the fields of a schema; ``max_tokens`` is of the values."""
    starts = [
        Start(
            prefix=tuple(vocabulary.encode_text(field.lead)),
            topic=bounded_topic(field.name) or "field",
            structured_outputs=StructuredOutputs(json=field.schema, is_inside=True),
        )
        for field in fields_of(schema)
    ]
    return _request(vocabulary.encode_prompt(prompt), starts, params)


def ask_request(
    document: str, questions: Sequence[str], vocabulary: Vocabulary, params: SamplingParams
) -> Request:
    """Return the request that answers questions about a document, each behind it alone."""
    if not questions:
        raise UsageError("there are no questions")
    texts = [f"{document}\n\n{question}" for question in questions]
    prompts = [
        vocabulary.encode_prompt([{"role": "user", "content": text}])
        if vocabulary.has_chat_template
        else vocabulary.encode_prompt(f"{text}\n\n")
        for text in texts
    ]
    columns = zip(*(ids[:-1] for ids in prompts), strict=False)  # each feeds a token of its own
    num_shared = len([*takewhile(lambda ids: len({*ids}) == 1, columns)])
    if num_shared == 0:
        raise UsageError("the document is empty")
    names = [bounded_topic(question) or "question" for question in questions]
    starts = [
        Start(prefix=tuple(ids[num_shared:]), topic=name)
        for ids, name in zip(prompts, names, strict=True)
    ]
    return _request(prompts[0][:num_shared], starts, params)


def _request(prompt: Sequence[int], starts: Sequence[Start], params: SamplingParams) -> Request:
    if len(starts) > params.max_blocks:
        raise UsageError(
            f"{len(starts)} parts, but at most {params.max_blocks} are decoded in one answer",
            hint="raise max_blocks, or ask for fewer at a time",
        )
    num_given = sum(len(start.prefix) for start in starts)
    structures = tuple(start.structured_outputs for start in starts if start.structured_outputs)
    return Request(
        prompt=prompt,
        params=replace(params, max_tokens=params.max_tokens + num_given),
        positions=PositionStrategy.CONTINUE,
        forks=False,
        expansion=Expansion(starts=lambda _: starts, max_main_tokens=0, structures=structures),
        strategy=NAME,
    )


@dataclass(frozen=True, slots=True)
class PartsAnswer:
    """The values or texts of all parts."""

    data: Any  # an object, or an instance of the pydantic model; of questions their answers
    text: str  # the object as JSON; of questions their answers, one paragraph each
    unfinished: tuple[str, ...]  # the parts that a limit cut: not in ``data``, or as far as they go
    trace: Trace


def filled(answer: Answer, schema: Schema) -> PartsAnswer:
    """Return the object whose fields an answer decoded."""
    data: dict[str, Any] = {}
    unfinished: list[str] = []
    for field, text in zip(fields_of(schema), _texts(answer), strict=False):
        value, is_whole = _value(text)
        if not is_whole:
            unfinished.append(field.name)
            continue
        place = data
        for key in field.path[:-1]:
            place = place.setdefault(key, {})
        place[field.path[-1]] = value
    text = json.dumps(data, ensure_ascii=False)
    return PartsAnswer(data, text, tuple(unfinished), answer.trace)


def answered(answer: Answer, questions: Sequence[str]) -> PartsAnswer:
    """Return the answers to questions about a document."""
    texts = [text.strip() for text in _texts(answer)]
    reasons = [thread.finish_reason for thread in answer.trace.threads[1:]]
    pairs = zip(questions, reasons, strict=False)
    cut = [question for question, reason in pairs if reason == FinishReason.LENGTH]
    return PartsAnswer(texts, "\n\n".join(texts), tuple(cut), answer.trace)


def _texts(answer: Answer) -> list[str]:
    return [block.plain_text for block in answer.document.blocks]


def _value(text: str) -> tuple[Any, bool]:
    """Read the JSON value at the beginning of a text; the second is false if it was cut."""
    stripped = text.lstrip()
    try:
        value, end = json.JSONDecoder().raw_decode(stripped)
    except ValueError:
        return None, False
    return value, len(stripped) > end  # what follows a value ends it: a number could go on
