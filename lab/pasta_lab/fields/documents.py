"""Documents with known fields, drawn from ``kinds.txt``: a text, a schema and the true values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any, NamedTuple

from pasta_lm.parts.values import is_same

SILENCE = 0.25  # the share of optional fields of which the text says nothing
FIRST_DAY, NUM_DAYS = date(2025, 1, 1), 700
LONG_ARRAYS = "order"  # a kind whose last field is a list of 6 to 20 texts
TASK = (
    "Read the text and give its facts as one JSON object on one line. Numbers stand without units, "
    "dates as YYYY-MM-DD; null stands for what the text does not say."
)
TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("string", {"type": "string"}),
    "int": ("integer", {"type": "integer"}),
    "num": ("number", {"type": "number"}),
    "bool": ("boolean", {"type": "boolean"}),
    "date": ("date", {"type": "string", "format": "date"}),
    "list": ("string[]", {"type": "array", "items": {"type": "string"}}),
}  # of ``kinds.txt``: their names in a prompt, and their schemas


class FieldForm(NamedTuple):
    """A field of a kind: how its values are drawn and told."""

    path: tuple[str, ...]
    type: str
    values: tuple[str, ...]  # or the least and the greatest number
    is_optional: bool
    sentences: tuple[str, ...]  # of a truth value: if true, if false

    @property
    def shown(self) -> str:
        """Return the type as the prompt names it."""
        values = " | ".join(f'"{value}"' for value in self.values)
        return (
            values if self.type == "enum" else TYPES[self.type.rstrip("12")][0]
        ) + " | null" * self.is_optional

    @property
    def schema(self) -> dict[str, Any]:
        value = (
            {"enum": [*self.values]} if self.type == "enum" else TYPES[self.type.rstrip("12")][1]
        )
        return {"anyOf": [value, {"type": "null"}]} if self.is_optional else value

    def draw(self, random: Random) -> tuple[Any, str]:
        """Draw a value and the sentence that tells it."""
        if self.is_optional and random.random() < SILENCE:
            return None, ""
        if self.type == "bool":
            value = random.random() < 0.5
            return value, self.sentences[not value]
        value, told = self._value(random)
        return value, self.sentences[0].format(told)

    def _value(self, random: Random) -> tuple[Any, str]:
        if self.type == "list":
            drawn = random.sample(self.values, random.randint(6, 20))
            return drawn, ", ".join(drawn)
        if self.type == "date":
            day = FIRST_DAY + timedelta(days=random.randrange(NUM_DAYS))
            is_long = random.random() < 0.5
            return day.isoformat(), f"{day.day} {day:%B %Y}" if is_long else day.isoformat()
        if self.type in ("text", "enum"):
            return (value := random.choice(self.values)), value
        low, high = map(int, self.values)
        if self.type == "int":
            return (number := random.randint(low, high)), str(number)
        digits = int(self.type.removeprefix("num"))
        return (decimal := round(random.uniform(low, high), digits)), f"{decimal:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Document:
    """A prompt, the schema of its answer, and the true values by the path of their field."""

    name: str
    prompt: str
    schema: Mapping[str, Any]
    values: Mapping[tuple[str, ...], Any]

    def num_right(self, data: object, *, nulls: bool | None = None) -> int:
        """Return how many fields of an object have their value, after the schema's type.

        ``nulls``: only those that the text does not give (True), or that it gives (False).
        """
        some = ((k, v) for k, v in self.values.items() if nulls is None or (v is None) is nulls)
        return sum(_is_at(path, value, data) for path, value in some)


def _is_at(path: tuple[str, ...], value: Any, data: Any) -> bool:
    for key in path:
        data = data.get(key, ...) if isinstance(data, dict) else ...
    return is_same(value, data)


@cache
def kinds() -> Mapping[str, tuple[FieldForm, ...]]:
    """Return the forms of the fields of each kind, in the order of its schema."""
    pools, read = dict[str, str](), dict[str, tuple[FieldForm, ...]]()
    for line in (files(__package__) / "kinds.txt").read_text("utf-8").splitlines():
        if line.startswith("@"):
            name, _, drawn_from = line.partition(": ")
            pools[name] = drawn_from
        elif "|" in line:
            key, kind, values, sentence = map(str.strip, line.split("|"))
            drawn = values.split("..") if ".." in values else pools.get(values, values).split("; ")
            told = sentence.split("; ") if kind == "bool" else [sentence]
            is_optional, path = kind.endswith("?"), tuple(key.split("."))
            form = FieldForm(path, kind.rstrip("?"), tuple(drawn), is_optional, tuple(told))
            read[[*read][-1]] += (form,)
        elif line.startswith("# ") and " " not in line[2:]:
            read[line[2:]] = ()
    return read


def document(name: str) -> Document:
    """Draw the document of a name, kind-fields-seed; its sentences stand in any order."""
    kind, num_fields, seed = name.split("-")
    random, forms = Random(f"{kind} {num_fields} {seed}"), kinds()[kind]
    kept = [forms[place] for place in sorted(random.sample(range(len(forms)), int(num_fields)))]
    drawn = [(form, *form.draw(random)) for form in kept]
    sentences = [sentence for *_, sentence in drawn if sentence]
    random.shuffle(sentences)
    text = " ".join(sentences) or "There is nothing to say."
    schema, shown = _object({form.path: form for form in kept})
    values = {form.path: value for form, value, _ in drawn}
    return Document(name, f"{TASK}\n\nText: {text}\n\nForm: {shown}", schema, values)


def _object(forms: Mapping[tuple[str, ...], FieldForm]) -> tuple[dict[str, Any], str]:
    """Return the schema of an object with these fields, and how a prompt shows it."""
    properties, shown = dict[str, Any](), list[str]()
    for key in dict.fromkeys(path[0] for path in forms):
        inner = {path[1:]: form for path, form in forms.items() if path[0] == key}
        whole = inner.get(())
        properties[key], told = (whole.schema, whole.shown) if whole else _object(inner)
        shown.append(f"{key}: {told}")
    closed = {"additionalProperties": False, "required": [*properties]}
    return {"type": "object", "properties": properties, **closed}, "{" + ", ".join(shown) + "}"


def names(num: int, seed: int = 0) -> list[str]:
    """Return names of documents of the six kinds in turn, with 4 to 30 fields."""
    own = [kind for kind in kinds() if kind != LONG_ARRAYS]
    # 7 and 27 have no common factor: all numbers of fields in turn.
    return [f"{own[i % len(own)]}-{4 + i * 7 % 27}-{seed + i}" for i in range(num)]
