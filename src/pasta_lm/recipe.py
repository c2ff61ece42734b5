"""A recipe's file: TOML read into dataclasses, every key checked, each mistake named."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pasta_lm.errors import UsageError

T = TypeVar("T")


def read_recipe(path: Path, kind: type[T], changes: Sequence[str] = ()) -> T:
    """Read a recipe of some stage.

    Args:
        path: A TOML file.
        kind: The dataclass that says what it may hold.
        changes: Each ``table.key=value``, in order, before anything is checked. A value is one of
            TOML, or else a text as it stands; without a value the key is left out.

    Raises:
        UsageError: it cannot be read, or something in it is unknown or wrong.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} is no recipe: {exc}") from exc
    for change in changes:
        _change(data, change)
    return _build(kind, data, "")


def _change(data: dict[str, Any], change: str) -> None:
    place, equals, text = change.partition("=")
    *tables, key = place.strip().split(".")
    if not (equals and key and all(tables)):
        raise UsageError(f"a change is table.key=value, not {change!r}")
    for depth, name in enumerate(tables, start=1):
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise UsageError(f"{'.'.join(tables[:depth])} must be a table")
    if text.strip():
        data[key] = _toml_value(text.strip())
    else:
        data.pop(key, None)


def _toml_value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    return found["value"] if len(found) == 1 else text


def _build(kind: type[T], data: Mapping[str, Any], place: str) -> T:
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise UsageError(f"unknown key {place}{key}", hint=hint)
    values = {key: _value(hints[key], value, f"{place}{key}") for key, value in data.items()}
    for name, spec in known.items():
        if name not in values and spec.default is MISSING and spec.default_factory is MISSING:
            raise UsageError(f"{place}{name} is missing")
    return kind(**values)


def _value(hint: Any, value: Any, place: str) -> Any:
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{place} must be a list")
        return tuple(_value(get_args(hint)[0], item, place) for item in value)
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if isinstance(kinds[0], type) and is_dataclass(kinds[0]):
        if not isinstance(value, Mapping):
            raise UsageError(f"{place} must be a table")
        return _build(kinds[0], value, f"{place}.")
    if float in kinds and type(value) is int:
        return float(value)
    if type(value) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise UsageError(f"{place} must be {names}, not {value!r}")
    return value
