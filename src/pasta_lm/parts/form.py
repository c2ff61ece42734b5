"""A schema as a prompt shows it: its keys and types in the form of TypeScript, with its words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pasta_lm.engines.schemas import Schema
from pasta_lm.parts.fields import MAX_DEPTH, MAX_FIELDS, definitions_of, mapping, resolved, words_of

MAX_MEMBERS = 100  # of an enum
ANY = "any"  # also what stands too deep, or behind too many others


class SchemaForm:
    """Keys, types and members of a schema, and above a key its title and description."""

    def __init__(self, schema: Schema) -> None:
        self._definitions, self._num_left = definitions_of(schema), MAX_FIELDS
        words = words_of("", schema)
        self.has_words = bool(schema.get("description"))  # the title of a class is its name
        text = (f"{words}\n" if words else "") + self._form(schema, ())
        self.text = text.encode(errors="backslashreplace").decode()

    def _form(self, part: Schema, opened: tuple[str, ...], depth: int = 0) -> str:
        """Return the type of a value; a reference inside itself is its name."""
        whole, name = resolved(part, self._definitions), str(part.get("$ref", ""))
        self._num_left -= 1
        if name in opened or depth > MAX_DEPTH or self._num_left < 0:
            return name.rpartition("/")[2] or ANY
        opened = (*opened, name) if name else opened
        members = whole.get("enum", [whole["const"]] if "const" in whole else None)
        if isinstance(members, list):
            shown = [json.dumps(each, ensure_ascii=False) for each in members[:MAX_MEMBERS]]
            return " | ".join(shown + ["…"] * (len(members) > MAX_MEMBERS))
        for key in ("anyOf", "oneOf"):
            if isinstance(cases := whole.get(key), list):
                return " | ".join(self._form(mapping(case), opened, depth + 1) for case in cases)
        if properties := mapping(whole.get("properties")):
            return self._object(properties, opened, depth)
        if isinstance(items := whole.get("items"), Mapping):
            item = self._form(items, opened, depth + 1)
            return f"({item})[]" if " | " in item else f"{item}[]"
        kinds = whole.get("type", ANY)
        names = map(str, kinds if isinstance(kinds, list) else [kinds])
        return " | ".join(str(whole.get("format", n)) if n == "string" else n for n in names)

    def _object(self, properties: Schema, opened: tuple[str, ...], depth: int) -> str:
        """Return an object in a line, or with a line for each key where one has words."""
        lines = list[str]()
        for key, value in properties.items():
            part = mapping(value)
            words = words_of(key, resolved(part, self._definitions))
            self.has_words |= bool(words)
            name = key if re.fullmatch(r"\w+", key) else json.dumps(key, ensure_ascii=False)
            form = f"{name}: {self._form(part, opened, depth + 1)}"
            lines.append(f"// {words}\n{form}" if words else form)
        if not any("\n" in line for line in lines):
            return f"{{{', '.join(lines)}}}"
        inner = ",\n".join(lines).replace("\n", "\n  ")
        return f"{{\n  {inner}\n}}"
