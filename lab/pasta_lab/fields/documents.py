"""Documents with known fields, drawn from ``kinds.txt``: a text, a schema and the true values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any, NamedTuple

SILENCE = 0.25  # the share of optional fields of which the text says nothing
FIRST_DAY, NUM_DAYS = date(2025, 1, 1), 700
LONG_ARRAYS = "order"
"""A kind whose last field is a list of 6 to 20 texts: parts cannot divide it."""
TASK = (
    "Read the text and give its facts as one JSON object on one line. Numbers stand without units, "
    "dates as YYYY-MM-DD; null stands for what the text does not say."
)


class FieldForm(NamedTuple):
    """A field of a kind: how its values are drawn and told."""

    path: tuple[str, ...]
    type: str
    values: tuple[str, ...]  # or the least and the greatest number
    is_optional: bool
    sentences: tuple[str, ...]  # of a truth value: if true, if false

    @property
    def schema(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "text": {"type": "string"},
            "enum": {"enum": [*self.values]},
            "int": {"type": "integer"},
            "date": {"type": "string", "format": "date"},
            "bool": {"type": "boolean"},
            "list": {"type": "array", "items": {"type": "string"}},
        }.get(self.type, {"type": "number"})
        return {"anyOf": [value, {"type": "null"}]} if self.is_optional else value

    @property
    def shown(self) -> str:
        """Return the type as the prompt names it."""
        names = {"text": "string", "int": "integer", "bool": "boolean", "list": "string[]"}
        shown = names.get(self.type, "date" if self.type == "date" else "number")
        shown = " | ".join(f'"{value}"' for value in self.values) if self.type == "enum" else shown
        return shown + " | null" * self.is_optional

    def draw(self, random: Random) -> tuple[Any, str]:
        """Draw a value and the sentence that tells it."""
        if self.is_optional and random.random() < SILENCE:
            return None, ""
        if self.type == "bool":
            value = random.random() < 0.5
            return value, self.sentences[not value]
        if self.type == "list":
            drawn = random.sample(self.values, random.randint(6, 20))
            return drawn, self.sentences[0].format(", ".join(drawn))
        value, told = self._value(random)
        return value, self.sentences[0].format(told)

    def _value(self, random: Random) -> tuple[Any, str]:
        if self.type == "date":
            day = FIRST_DAY + timedelta(days=random.randrange(NUM_DAYS))
            is_long = random.random() < 0.5
            return day.isoformat(), f"{day.day} {day:%B %Y}" if is_long else day.isoformat()
        if self.type in ("text", "enum"):
            value = random.choice(self.values)
            return value, value
        low, high = map(int, self.values)
        if self.type == "int":
            number = random.randint(low, high)
            return number, str(number)
        digits = int(self.type.removeprefix("num"))
        decimal = round(random.uniform(low, high), digits)
        return decimal, f"{decimal:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Document:
    """A prompt, the schema of its answer, and the true values by the path of their field."""

    name: str
    prompt: str
    schema: Mapping[str, Any]
    values: Mapping[tuple[str, ...], Any]

    def right(self, data: object) -> list[bool]:
        """Return for each field whether an object has its value, after the schema's type."""
        return [_same(value, _at(data, path)) for path, value in self.values.items()]


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, bool) or isinstance(other, bool) or not isinstance(value, int | float):
        return type(value) is type(other) and bool(value == other)
    return isinstance(other, int | float) and value == other


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data.get(key, ...) if isinstance(data, dict) else ...
    return data


@cache
def kinds() -> Mapping[str, tuple[FieldForm, ...]]:
    """Return the forms of the fields of each kind, in the order of its schema."""
    pools: dict[str, str] = {}
    read: dict[str, list[FieldForm]] = {}
    for line in (files(__package__) / "kinds.txt").read_text("utf-8").splitlines():
        if line.startswith("@"):
            name, _, values = line.partition(": ")
            pools[name] = values
        elif "|" in line and not line.startswith("#"):
            key, kind, values, sentence = map(str.strip, line.split("|"))
            is_range = ".." in values
            drawn = values.split("..") if is_range else pools.get(values, values).split("; ")
            told = tuple(sentence.split("; ") if kind == "bool" else [sentence])
            path = tuple(key.split("."))
            form = FieldForm(path, kind.rstrip("?"), tuple(drawn), kind.endswith("?"), told)
            read[list(read)[-1]].append(form)
        elif line.startswith("# ") and " " not in line[2:]:
            read[line[2:]] = []
    return {name: tuple(forms) for name, forms in read.items()}


def document(kind: str, num_fields: int, seed: int) -> Document:
    """Draw a document with so many fields of a kind; its sentences stand in any order."""
    random = Random(f"{kind} {num_fields} {seed}")
    forms = kinds()[kind]
    kept = sorted(random.sample(range(len(forms)), num_fields))
    drawn = {forms[place]: forms[place].draw(random) for place in kept}
    sentences = [sentence for _, sentence in drawn.values() if sentence]
    random.shuffle(sentences)
    text = " ".join(sentences) or "There is nothing to say."
    prompt = f"{TASK}\n\nText: {text}\n\nForm: {_shown([*drawn])}"
    values = {form.path: value for form, (value, _) in drawn.items()}
    return Document(f"{kind}-{num_fields}-{seed}", prompt, _object([*drawn]), values)


def documents(num: int, seed: int = 0) -> Iterator[Document]:
    """Yield documents of the six kinds in turn, with 4 to 30 fields."""
    names = [name for name in kinds() if name != LONG_ARRAYS]
    for place in range(num):
        num_fields = 4 + place * 7 % 27  # 7 and 27 have no common factor: all numbers in turn
        yield document(names[place % len(names)], num_fields, seed + place)


def _nested(forms: list[FieldForm]) -> dict[str, FieldForm | dict[str, FieldForm]]:
    nested: dict[str, FieldForm | dict[str, FieldForm]] = {}
    for form in forms:
        if len(form.path) == 1:
            nested[form.path[0]] = form
        else:
            place = nested.setdefault(form.path[0], {})
            assert isinstance(place, dict)
            place[form.path[1]] = form
    return nested


def _object(forms: list[FieldForm]) -> dict[str, Any]:
    properties = {
        key: value.schema if isinstance(value, FieldForm) else _closed(
            {name: form.schema for name, form in value.items()}
        )
        for key, value in _nested(forms).items()
    }  # fmt: skip
    return _closed(properties)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    required = [*properties]
    closed = {"additionalProperties": False, "required": required}
    return {"type": "object", "properties": properties, **closed}


def _shown(forms: list[FieldForm]) -> str:
    def shown(value: FieldForm | dict[str, FieldForm]) -> str:
        if isinstance(value, FieldForm):
            return value.shown
        return "{" + ", ".join(f"{key}: {form.shown}" for key, form in value.items()) + "}"

    return "{" + ", ".join(f"{key}: {shown(value)}" for key, value in _nested(forms).items()) + "}"
