"""Parts that the caller declares, decoded at the same time by any model, taught or not.

The fields of a JSON schema, holes in given text, or questions about one document. The prompt is
computed once; each part is a thread whose tokens are those of a sequential request for what it
sees: the prompt, its own lead, and leads and texts of the parts that it waits for (``after``).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

from pasta_lm.engines.request import (
    Answer,
    Expansion,
    Request,
    SamplingParams,
    Start,
    StructuredOutputs,
)
from pasta_lm.engines.schemas import Schema as Schema
from pasta_lm.engines.schemas import checked_schema
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.placement import num_common
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language.tags import bounded_topic
from pasta_lm.strategies import Prompt

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

NAME = "parts"
MAX_REST = 16  # tokens of text that stands behind a finished part inside the same token
MAX_FIELDS, MAX_DEPTH, MAX_FLOAT = 4096, 32, 1.7976931348623157e308
DECODER = json.JSONDecoder(parse_float=lambda text: max(-MAX_FLOAT, min(float(text), MAX_FLOAT)))
Texts = Iterable[tuple[str, bool]]  # of parts, each with whether it ended by itself
REFERENCES = ("#/$defs/", "#/definitions/")
KEPT = {"$defs", "$schema", "definitions", "x-guidance"}  # in the schema of each field
NOTES = KEPT | {"$comment", "$id", "default", "description", "examples", "title"}
SMALLEST = 'the smallest schema: {"properties": {"name": {"type": "string"}}}'
OPENED = NOTES | {"additionalProperties", "properties", "required", "type"}
"""Keys of an object whose fields may be decoded apart: others bind fields to one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A hole in given text. Something must end it; end-of-text always does."""

    name: str
    lead: str = ""  # the given text in front of it, behind the part before
    stop: str | tuple[str, ...] = ()
    schema: Schema | None = None  # of a JSON value
    regex: str | None = None
    max_tokens: int | None = None
    end_of_text: bool = False  # nothing else ends it
    after: tuple[str, ...] = ()
    """Parts that it waits for: it sees their leads and finished texts, and what they waited for."""
    path: tuple[str, ...] = ()  # of a value in an object: its keys, which are its lead

    def structure(self) -> StructuredOutputs | None:
        """Return the form of its text; a UsageError for a part without an end."""
        has_form = self.schema is not None or self.regex is not None
        if not (has_form or self.stop or self.max_tokens or self.end_of_text):
            hint = "give it stop, schema, regex, max_tokens or end_of_text=True"
            raise UsageError(f"nothing ends part {self.name!r}", hint=hint)
        if not has_form:
            return None
        regex, is_inside = self.regex, self.regex is None
        if regex is not None and self.stop:  # digits, say, end where the comma stands
            regex = f"(?:{regex})(?:{'|'.join(map(re.escape, self.stops))})"
        return StructuredOutputs(json=self.schema, regex=regex, is_inside=is_inside)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    def read(self, text: str) -> tuple[object, int | None]:
        """Return its value in what was decoded, and where that ends; None: it is cut."""
        if self.schema is None:
            places = (text.find(stop) for stop in self.stops)
            end = min((place for place in places if place >= 0), default=len(text))
            return text[:end], end
        try:
            return DECODER.raw_decode(text, len(text) - len(text.lstrip()))
        except ValueError:
            return None, None

    def lead_behind(self, before: tuple[str, ...]) -> str:
        """Return its lead behind the value with these keys in the same object; (): the first."""
        if not self.path:
            return self.lead
        num_same = num_common(self.path, before)
        keys = (json.dumps(key, ensure_ascii=False) for key in self.path[num_same:])
        opened = " {".join(f"{key}:" for key in keys)
        return "}" * (len(before) - num_same - 1) + (", " if before else "{") + opened


def _mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def fields_of(schema: Schema) -> list[Part]:
    """Return the fields of a schema of an object; objects with fixed keys inside it are opened.

    Lists, maps, values with alternatives and objects with rules over several keys are one field
    each. A UsageError if the schema itself is no object that can be opened.
    """
    definitions = {
        f"#/{place}/{name.replace('~', '~0').replace('/', '~1')}": part
        for place in ("$defs", "definitions")
        for name, part in _mapping(schema.get(place)).items()
    }
    kept = {key: schema[key] for key in KEPT & schema.keys()}
    references = re.findall(r'"\$(?:dynamic)?ref": "([^"]*)', json.dumps(schema), re.IGNORECASE)
    if strange := [name for name in references if not name.startswith(REFERENCES)]:
        reason = f"it refers to {strange[0]!r}, not to one of {' or '.join(REFERENCES)}"
        raise _no_parts(reason, is_defined=False)

    def below(path: tuple[str, ...], part: Schema, opened: tuple[str, ...]) -> Iterator[Part]:
        name = str(part.get("$ref", ""))
        whole = _mapping(definitions.get(name, part))
        reason, is_defined = _why_whole(whole), not name or name in definitions
        if name and (beside := sorted(part.keys() - NOTES - {"$ref"})):
            reason = f"{beside[0]} stands beside $ref"
        elif not is_defined:
            reason = f"it refers to {name!r}, which is not there"
        if reason and not path:
            raise _no_parts(reason, is_defined=is_defined)
        if reason or (name and name in opened) or len(path) > MAX_DEPTH:
            yield Part(name=".".join(path), schema={**part, **kept}, path=path)
            return
        for key, value in whole["properties"].items():
            yield from below((*path, key), _mapping(value), (*opened, name))  # true: anything

    fields = list(islice(below((), schema, ()), MAX_FIELDS + 1))  # references may open more
    names = Counter(field.name for field in fields)
    for index, field in enumerate(fields):
        if names[field.name] > 1:
            quoted = (json.dumps(key) if "." in key else key for key in field.path)
            fields[index] = replace(field, name=".".join(quoted))
    return fields


def _why_whole(schema: Schema) -> str | None:
    """Return why a value is decoded as a whole; None: it is an object of fields."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if (kind := schema.get("type", "object")) != "object":
        return f"its type is {kind!r}, not 'object'"
    if properties is None:
        return "it has no properties"
    if rules := sorted(schema.keys() - OPENED):
        return f"{rules[0]} is a rule over the whole of it"
    if not (properties and isinstance(properties, Mapping)):
        return f"its properties are {properties!r}"
    if not isinstance(required, list) or any(key not in [*properties] for key in required):
        return f"required has {required!r}, and not all are properties"
    for key, value in properties.items():
        if not (value is True or isinstance(value, Mapping)):
            is_what = "forbidden" if value is False else f"{value!r}, which is no schema"
            return f"the property {key!r} is {is_what}"
    return None


def _no_parts(reason: str, *, is_defined: bool) -> UsageError:
    hint = SMALLEST if is_defined else f"put the definition under {REFERENCES[0]}"
    reason = f"the schema is no object of fields ({reason}), so it has no parts"
    return UsageError(reason, hint=hint)


def check_fields(schema: Schema, after: Mapping[str, Sequence[str]]) -> None:
    """Refuse (``UsageError``) fields that cannot be decoded, before a model is loaded."""
    fields = _waiting(schema, after)
    _waits(fields)
    for field in fields:
        try:
            checked_schema(field.schema or {})
        except UsageError as exc:
            raise UsageError(f"field {field.name}: {exc.message}", hint=exc.hint) from exc


def fill_request(
    prompt: Prompt, schema: Schema, vocabulary: Vocabulary, params: SamplingParams, *,
    after: Mapping[str, Sequence[str]] | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Request:  # fmt: skip
    """Return the request that decodes the fields of a schema; ``max_tokens`` is of the values.

    ``after`` has the names of fields that a field waits for; an object stands for all its fields.
    """
    parts = _waiting(schema, after or {})
    return parts_request(prompt, parts, vocabulary, params, chat_template_kwargs)


def _waiting(schema: Schema, after: Mapping[str, Sequence[str]]) -> list[Part]:
    fields, waits = fields_of(schema), dict[int, list[str]]()
    for name, others in after.items():
        for index in _named(name, fields):
            waits.setdefault(index, []).extend(others)
    return [replace(field, after=tuple(waits.get(i, ()))) for i, field in enumerate(fields)]


def _named(name: str, parts: Sequence[Part]) -> list[int]:
    indices = [i for i, part in enumerate(parts) if f"{part.name}.".startswith(f"{name}.")]
    if not indices:
        names = ", ".join(part.name for part in parts)
        raise UsageError(f"no part is named {name!r}", hint=f"one of {names}")
    return indices


def _waits(parts: Sequence[Part]) -> list[list[int]]:
    names = [part.name for part in parts]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two parts have the name {doubled[0]!r}", hint="give each its own")
    direct = [{i for name in part.after for i in _named(name, parts)} for part in parts]
    whole: dict[int, set[int]] = {}
    try:
        for index in TopologicalSorter(dict(enumerate(direct))).static_order():
            whole[index] = direct[index].union(*(whole[other] for other in direct[index]))
    except CycleError as exc:
        circle = " after ".join(names[index] for index in reversed(exc.args[1]))
        raise UsageError(f"parts wait for each other: {circle}") from exc
    return [sorted(whole[index]) for index in range(len(parts))]


Seen = list[tuple[str, int]]
"""What a part sees behind the prompt: given texts, each with the part whose text stands behind."""


def parts_request(
    prompt: Prompt, parts: Sequence[Part], vocabulary: Vocabulary, params: SamplingParams,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Request:  # fmt: skip
    """Return the request that decodes the holes of a text; ``max_tokens`` is of all together."""
    structures, waits = [part.structure() for part in parts], _waits(parts)
    ids = tuple(vocabulary.encode_prompt(prompt, chat_template_kwargs=chat_template_kwargs))
    all_seen = [_seen(parts, [*after, number]) for number, after in enumerate(waits)]
    starts = []
    for part, wanted, seen, after in zip(parts, structures, all_seen, waits, strict=True):
        lead = tuple(vocabulary.encode_text(seen[0][0]))
        others = [all_seen[other] for other in after]
        start = Start(  # without given text the last token of the prompt is fed again
            prefix=() if after else lead or ids[-1:],
            num_seen=None if after or lead else len(ids) - 1,
            topic=bounded_topic(part.name) or "part", structured_outputs=wanted,
            stop=(*params.stop, *part.stops), max_tokens=part.max_tokens, after=tuple(after),
            behind=partial(_behind, parts, seen, vocabulary) if after else None,
            max_fed=_max_fed(seen, others, vocabulary, params) if after else 0,
        )  # fmt: skip
        starts.append(start)
    return _request(ids, starts, params)


def _seen(parts: Sequence[Part], indices: Sequence[int]) -> Seen:
    seen, path = Seen(), tuple[str, ...]()
    for index in indices:
        seen.append((parts[index].lead_behind(path), index))
        path = parts[index].path
    return seen


def _behind(
    parts: Sequence[Part], seen: Seen, vocabulary: Vocabulary, decoded: Sequence[Sequence[int]]
) -> list[int]:
    """Return the ids of what a part sees, with the tokens that the parts before it decoded.

    A token that goes on behind the end of its part is encoded anew, with the given text.
    """
    ids, rest = list[int](), ""
    for (lead, index), tokens in zip(seen, (*decoded, ()), strict=True):
        ids += vocabulary.encode_text(rest + lead)
        text = vocabulary.text(tokens)
        text = text[: parts[index].read(text)[1]]
        beginnings = ((n, vocabulary.text(tokens[:n])) for n in range(len(tokens), -1, -1))
        num_kept, kept = next(pair for pair in beginnings if text.startswith(pair[1]))
        ids += tokens[:num_kept]
        rest = text[len(kept) :]
    return ids


def _max_fed(
    seen: Seen, others: Sequence[Seen], vocabulary: Vocabulary, params: SamplingParams
) -> int:
    """Return how many tokens at most a part feeds that no part before it has fed."""
    left = seen[max(num_common(seen, other) for other in others) :]
    num_given = sum(len(vocabulary.encode_text(text)) + MAX_REST for text, _ in left)
    return num_given + (params.max_tokens if len(left) > 1 else 0)


def ask_request(
    document: str, questions: Sequence[str], vocabulary: Vocabulary, params: SamplingParams
) -> Request:
    if not questions:
        raise UsageError("there are no questions")
    texts = [f"{document}\n\n{question}" for question in questions]
    prompts = [
        vocabulary.encode_prompt([{"role": "user", "content": text}])
        if vocabulary.has_chat_template
        else vocabulary.encode_prompt(f"{text}\n\n")
        for text in texts
    ]
    num_shared = min(num_common(ids[:-1], prompts[0][:-1]) for ids in prompts)  # each feeds a token
    if num_shared == 0:
        raise UsageError("the document is empty")
    leads, topics = (ids[num_shared:] for ids in prompts), map(bounded_topic, questions)
    starts = [
        Start(prefix=tuple(lead), topic=topic or "?", stop=params.stop)
        for lead, topic in zip(leads, topics, strict=True)
    ]
    return _request(prompts[0][:num_shared], starts, params)


def _request(prompt: Sequence[int], starts: Sequence[Start], params: SamplingParams) -> Request:
    if len(starts) > params.max_blocks:
        raise UsageError(
            f"{len(starts)} parts, but at most {params.max_blocks} are decoded in one answer",
            hint="ask for fewer at a time, or raise max_blocks (limits.blocks of a server)",
        )
    return Request(
        prompt=prompt, params=params, positions=PositionStrategy.CONTINUE, forks=False,
        expansion=Expansion(starts=lambda _: starts, max_main_tokens=0, known=tuple(starts)),
        strategy=NAME,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartsAnswer:
    """The values or texts of all parts."""

    data: Any  # an object, or an instance of the pydantic model; of questions their answers
    text: str  # the object as JSON; given text with its holes filled; of questions their answers
    unfinished: tuple[str, ...]  # the parts that a limit cut: not in ``data``, or as far as they go
    answer: Answer  # all that was decoded, with its log-probabilities

    @property
    def trace(self) -> Trace:
        return self.answer.trace


def filled(answer: Answer, schema: Schema) -> PartsAnswer:
    data, cut = object_of(fields_of(schema), chain(_texts(answer), repeat(("", False))))
    return PartsAnswer(data, as_json(data), cut, answer)


def object_of(parts: Sequence[Part], texts: Texts) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the values of parts by name or by their keys, and the names of unfinished ones."""
    data, unfinished = dict[str, Any](), list[str]()
    for part, (text, has_ended) in zip(parts, texts, strict=False):
        value, end = part.read(text)
        if part.schema is not None:  # digits could go on, unless something stands behind them
            has_ended = end is not None and (has_ended or bool(text[end:].strip()))
        unfinished += [] if has_ended else [part.name]
        if has_ended or part.schema is None:
            place, (*outer, last) = data, part.path or (part.name,)
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = value
    return data, tuple(unfinished)


def as_json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False).encode(errors="backslashreplace").decode()


def assembled(answer: Answer, parts: Sequence[Part]) -> PartsAnswer:
    texts = _texts(answer)
    data, unfinished = object_of(parts, texts)
    pairs = zip(parts, texts, strict=True)
    whole = "".join(part.lead + text[: part.read(text)[1]] for part, (text, _) in pairs)
    return PartsAnswer(data, whole, unfinished, answer)


def answered(answer: Answer, questions: Sequence[str]) -> PartsAnswer:
    pairs = _texts(answer)
    texts = [text.strip() for text, _ in pairs]
    cut = [name for name, (_, has_ended) in zip(questions, pairs, strict=True) if not has_ended]
    return PartsAnswer(texts, "\n\n".join(texts), tuple(cut), answer)


def _texts(answer: Answer) -> list[tuple[str, bool]]:
    texts = [block.plain_text for block in answer.document.blocks]
    ends = [thread.finish_reason == FinishReason.STOP for thread in answer.trace.threads[1:]]
    return [*zip(texts, ends, strict=True)]
