"""Tables and JSON on standard output; old names of verbs and flags, with a hint."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import typer

MISSING = "-"
"""Printed where there is no figure."""
GAP = "  "


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: Collection[int] = (0,)
) -> None:
    """Print a table, each row one line, however wide; see ``table_lines``."""
    for line in table_lines(header, rows, text_columns=text_columns):
        typer.echo(line)


def table_lines(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: Collection[int] = (0,)
) -> list[str]:
    """Return the lines of a table; every column is as wide as its widest cell.

    A row with fewer cells than the header ends with a note ("not run: …"), which may run on over
    the columns that follow.

    Args:
        header: The titles of the columns; the first is often empty.
        rows: The cells.
        text_columns: Columns that are aligned to the left; numbers are aligned to the right.
    """
    whole = [header, *rows]
    widths = [
        max(len(row[column]) for row in whole if len(row) == len(header) or column < len(row) - 1)
        for column in range(len(header))
    ]
    return [_line(row, widths, text_columns) for row in whole]


def _line(row: Sequence[str], widths: Sequence[int], text_columns: Collection[int]) -> str:
    cells = [
        cell.ljust(width) if column in text_columns else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=False))
    ]
    if len(row) < len(widths):
        cells[-1] = row[-1]
    return GAP.join(cells).rstrip()


def print_facts(*sections: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns, with an empty line between sections."""
    listed = [list(section) for section in sections]
    width = max(len(name) for section in listed for name, _ in section)
    for index, section in enumerate(listed):
        if index:
            typer.echo()
        for name, value in section:
            typer.echo(f"{name:<{width}}{GAP}{value}")


def print_json(found: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    typer.echo(json.dumps(found, ensure_ascii=False))


def print_figures(
    found: dict[str, Any], as_tables: Callable[[dict[str, Any]], None], *, as_json: bool
) -> None:
    """Print the figures of a verb: one JSON object, or its tables."""
    show = print_json if as_json else as_tables
    show(found)


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """Return a figure as a cell."""
    return MISSING if value is None else f"{value:.{digits}f}{unit}"


def interval(figure: Mapping[str, Any] | None, digits: int = 3) -> str:
    """Return a figure with ``mean``, ``low`` and ``high`` as a cell."""
    if figure is None:
        return MISSING
    mean, low, high = (number(figure[key], digits) for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


class Renamed(NamedTuple):
    """A verb or a flag with another name."""

    old: str
    """A verb ("evaluate programs"), or a flag ("--rounds") of the verb ``of``."""
    new: str
    """The new name; "--set key" makes the flag's value a key of the recipe."""
    of: str = ""
    """The verb of a flag, by its new name."""


def _settings(verb: str, *keys: str) -> tuple[Renamed, ...]:
    """Return the flags of a verb that became keys of its recipe; ``key=true`` is a switch."""
    return tuple(
        Renamed(
            f"--{key.partition('=')[0].replace('.', '-').replace('_', '-')}", f"--set {key}", verb
        )
        for key in keys
    )


RENAMED: Final[tuple[Renamed, ...]] = (
    Renamed("evaluate programs", "evaluate export"),
    Renamed("--html", "--page", of="evaluate frontier"),
    *_settings("evaluate tasks", "draft", "bounds=true", "wordings", "max_tokens", "threads"),
    *_settings("evaluate tasks", "baseline_records", "workers", "positions", "dtype", "device"),
    *_settings("evaluate alpaca", "instructions", "baseline", "reference", "difficulty", "gamed"),
    *_settings("evaluate alpaca", "num_timed", "max_tokens", "pool_tokens", "dtype", "device"),
    *_settings("evaluate alpaca", "judge.model", "judge.url", "judge.key_env"),
    *_settings("evaluate alpaca", "judge.input_price", "judge.output_price"),
    Renamed("--template", "--set judge.template", of="evaluate alpaca"),
)


class Translated(NamedTuple):
    """A command line with new names only."""

    arguments: list[str]
    hints: list[str]
    """A sentence for each old name that was used."""


def translate(arguments: Sequence[str]) -> Translated:
    """Replace the old names on a command line; what follows ``--`` is left alone."""
    kept, hints = list(arguments), list[str]()
    for one in RENAMED:
        if not one.of and _is_verb(kept, one.old):
            kept[: len(one.old.split())] = one.new.split()
        elif not (one.of and _is_verb(kept, one.of) and _replace_flag(kept, one)):
            continue
        verb = f" of `pasta {one.of}`" if one.of else ""
        hints.append(f"{one.old!r}{verb} is now called {one.new!r}; the old name will go")
    return Translated(kept, hints)


def _is_verb(arguments: Sequence[str], verb: str) -> bool:
    words = verb.split()
    return list(arguments[: len(words)]) == words


def _replace_flag(arguments: list[str], renamed: Renamed) -> bool:
    """Replace a flag, also in the form ``--flag=value``; return whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    places = [i for i in range(end) if arguments[i].partition("=")[0] == renamed.old]
    for place in reversed(places):
        _, equals, value = arguments[place].partition("=")
        flag, _, key = renamed.new.partition(" ")
        if not key:
            arguments[place] = flag + equals + value
        elif "=" in key:
            arguments[place : place + 1] = [flag, key]
        elif equals:
            arguments[place : place + 1] = [flag, f"{key}={value}"]
        elif place + 1 < end:
            arguments[place : place + 2] = [flag, f"{key}={arguments[place + 1]}"]
    return bool(places)
