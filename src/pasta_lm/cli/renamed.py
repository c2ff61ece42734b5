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
    of: str = ""
    """The verb of a flag, by its new name."""


RENAMED: Final[tuple[Renamed, ...]] = ()


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
    for place in places:
        _, equals, value = arguments[place].partition("=")
        arguments[place] = renamed.new + equals + value
    return bool(places)
