"""Read TOML recipes into dataclasses, and refuse wrong ones.

A recipe's shape is a frozen dataclass of the standard library. pydantic validates it; only this
file imports pydantic. Knows nothing of what the keys mean.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pasta_lm.errors import UsageError

T = TypeVar("T")


def read_recipe(path: Path | None, kind: type[T], changes: Sequence[str] = ()) -> T:
    """Read a TOML file into the dataclass of a recipe; None: an empty recipe.

    Types are strict, except that an integer is accepted for a float. Each change is
    ``table.key=value``, applied in order before validation. A value is TOML, or else a text as it
    stands; an empty value removes the key. Every mistake is a ``UsageError`` that names the key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig")) if path else {}
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"not valid TOML: {exc}"
        hint = "check the path; a clone of the repository has recipes in runs/"
        raise UsageError(f"the recipe {path} cannot be read: {reason}", hint=hint) from exc
    for change in changes:
        _apply(data, change)
    return validated(kind, data)


def without_passwords(text: str) -> str:
    """Return a text whose URLs have neither user nor password, for files and messages."""
    return re.sub(r"//[^/?#\s\"',]*@", "//", text)


def toml_of(data: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    lines = [f"# {line}".rstrip() for line in comments]

    def write(table: Mapping[str, Any], path: str) -> None:
        keys = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
        if path and (keys or not table):
            lines.extend(("", f"[{path}]"))
        for key, value in keys.items():
            text = json.dumps(value, ensure_ascii=False).replace("Infinity", "inf")
            lines.append(f"{key} = {without_passwords(text)}")
        for key, value in table.items():
            if isinstance(value, Mapping):
                write(value, f"{path}.{key}".lstrip("."))

    write(data, "")
    return "\n".join(lines).lstrip("\n") + "\n"


def check_one_of(table: str, **values: object) -> None:
    if sum(value is not None for value in values.values()) != 1:
        raise UsageError(f"[{table}] needs exactly one of {' and '.join(values)}")


def check_choice(key: str, value: str, options: Sequence[str]) -> None:
    if value not in options:
        raise UsageError(f"{key} is {value!r}", hint=f"one of {', '.join(options)}")


def check_positive(table: str, config: object, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        if value is not None and not value > 0:
            raise UsageError(f"{table}.{key} must be above 0")


def check_not_ignored(key: str, is_ignored: object, reason: str) -> None:
    if is_ignored:
        raise UsageError(f"{key} would be ignored: {reason}", hint="leave it out")


def _apply(data: dict[str, Any], change: str) -> None:
    path, equals, text = change.partition("=")
    *tables, key = path.strip().split(".")
    if not (equals and key and all(tables)):
        raise UsageError(f"a change is table.key=value, not {change!r}")
    for depth, name in enumerate(tables, start=1):
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise UsageError(f"{'.'.join(tables[:depth])} must be a table")
    try:
        result = tomllib.loads(f"value = {text}")
    except ValueError:
        result = {}
    # A text with a line break can give several keys: then it is no single value.
    data[key] = result["value"] if len(result) == 1 else text.strip()
    if not text.strip():
        del data[key]


def validated(kind: type[T], data: Mapping[str, Any]) -> T:
    try:
        from pydantic import TypeAdapter, ValidationError
    except ImportError as exc:
        install = "pip install 'pydantic>=2.9'"
        raise UsageError("recipes need pydantic, which is not installed", hint=install) from exc
    _check_keys(kind, data, "")
    try:
        # As JSON: from Python objects, strict pydantic makes no dataclass of a mapping.
        return TypeAdapter(kind).validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as exc:
        mistakes = exc.errors()
    mistake = mistakes[0]
    path, value = _path(data, mistake["loc"]), mistake["input"]
    if mistake["type"] == "missing":
        raise UsageError(f"{path} is missing")
    if mistake["type"] == "literal_error":
        options = mistake["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        raise UsageError(f"{path} is {value!r}", hint=f"one of {options}")
    same = [other["msg"] for other in mistakes if _path(data, other["loc"]) == path]
    kinds = " or ".join(text.removeprefix("Input should be ") for text in same)
    raise UsageError(f"{path} must be {kinds}, not {value!r}")


def _path(data: object, loc: Sequence[int | str]) -> str:
    keys: list[str] = []  # pydantic adds the members of unions
    for key in loc:
        if isinstance(data, Mapping):
            keys.append(str(key))
            data = data.get(key)
        elif isinstance(data, list) and isinstance(key, int):
            data = data[key]
    return ".".join(keys)


def _check_keys(hint: object, data: object, path: str) -> None:
    for entry in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if is_dataclass(entry) and isinstance(data, Mapping):
            known = get_type_hints(entry)
            for key in (key for key in data if key not in known):
                close = get_close_matches(key, known, n=1)
                meant = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
                raise UsageError(f"unknown key {path}{key}", hint=meant)
            for key, value in data.items():
                _check_keys(known[key], value, f"{path}{key}.")
        elif get_origin(entry) is tuple and isinstance(data, list):
            for item in data:
                _check_keys(get_args(entry)[0], item, path)
