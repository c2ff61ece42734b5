"""Holes in given text, and the fields of a JSON schema as such holes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from pasta_lm.engines.request import StructuredOutputs
from pasta_lm.engines.schemas import Schema
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.placement import num_common
from pasta_lm.journal import unique_object

MAX_FIELDS, MAX_DEPTH, MAX_FLOAT = 4096, 32, 1.7976931348623157e308
DECODER = json.JSONDecoder(
    parse_float=lambda text: max(-MAX_FLOAT, min(float(text), MAX_FLOAT)),
    object_pairs_hook=unique_object,
)
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
    words: str = ""  # its title and description, in a comment in front of its keys

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
        comment = f"// {self.words}\n" if self.words else ""
        if not before:
            return f"{comment}{{{opened}"
        separator = f",\n{comment}" if comment else ", "
        return "}" * (len(before) - num_same - 1) + separator + opened


def mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def definitions_of(schema: Schema) -> dict[str, object]:
    return {
        f"#/{place}/{name.replace('~', '~0').replace('/', '~1')}": part
        for place in ("$defs", "definitions")
        for name, part in mapping(schema.get(place)).items()
    }


def resolved(part: Schema, definitions: Mapping[str, object]) -> Schema:
    """Return a schema with what it refers to, whose title is the name of a class."""
    name = str(part.get("$ref", ""))
    return {**mapping(definitions.get(name)), **({"title": ""} if name else {}), **part}


def words_of(key: str, part: Schema) -> str:
    """Return title and description in a line; a title that only repeats the key is left out."""
    title, description = (str(part.get(name) or "") for name in ("title", "description"))
    is_new = re.sub(r"[\W_]", "", title).casefold() != re.sub(r"[\W_]", "", key).casefold()
    words = ": ".join(" ".join(text.split()) for text in (title * is_new, description) if text)
    return words.encode(errors="backslashreplace").decode()


def fields_of(schema: Schema) -> list[Part]:
    """Return the fields of a schema of an object; objects with fixed keys inside it are opened.

    Lists, maps, values with alternatives and objects with rules over several keys are one field
    each. A UsageError if the schema itself is no object that can be opened.
    """
    definitions = definitions_of(schema)
    kept = {key: schema[key] for key in KEPT & schema.keys()}
    references = re.findall(r'"\$(?:dynamic)?ref": "([^"]*)', json.dumps(schema), re.IGNORECASE)
    if strange := [name for name in references if not name.startswith(REFERENCES)]:
        reason = f"it refers to {strange[0]!r}, not to one of {' or '.join(REFERENCES)}"
        raise _no_parts(reason, is_defined=False)

    def below(path: tuple[str, ...], part: Schema, opened: tuple[str, ...]) -> Iterator[Part]:
        name = str(part.get("$ref", ""))
        whole = mapping(definitions.get(name, part))
        reason, is_defined = _why_whole(whole), not name or name in definitions
        if name and (beside := sorted(part.keys() - NOTES - {"$ref"})):
            reason = f"{beside[0]} stands beside $ref"
        elif not is_defined:
            reason = f"it refers to {name!r}, which is not there"
        if reason and not path:
            raise _no_parts(reason, is_defined=is_defined)
        if reason or (name and name in opened) or len(path) > MAX_DEPTH:
            words = words_of(path[-1], resolved(part, definitions))
            yield Part(name=".".join(path), schema={**part, **kept}, path=path, words=words)
            return
        for key, value in whole["properties"].items():
            yield from below((*path, key), mapping(value), (*opened, name))  # true: anything

    fields = list(islice(below((), schema, ()), MAX_FIELDS + 1))  # references may open more
    names = Counter(field.name for field in fields)
    for index, field in enumerate(fields):
        if names[field.name] > 1:
            quoted = (json.dumps(key) if "." in key else key for key in field.path)
            fields[index] = replace(field, name=".".join(quoted))
    return fields


def _why_whole(schema: Schema) -> str | None:
    """Return the reason to decode a value as a whole; None: it is an object of fields."""
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
