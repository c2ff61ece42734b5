"""Old names of verbs and flags: they work for one release, and a hint names the new one.

The command line is translated before it is parsed, so that no help text shows an old name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


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
