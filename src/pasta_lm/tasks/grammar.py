"""Training wordings without end: small grammars whose sentences mean what the listed ones mean.

Sixty sentences can be learned by heart; what thousands have in common is their meaning. The
grammars were written by someone who saw the training wordings alone. Source of the form: templates
and slots, as in Tracery (K. Compton et al., 2015).
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any

SLOT = re.compile(r"<(\w+)>")
SINGLE = ("all",)
SIDES = ("first", "second")
"""The two sides of a clause that decides, in the order of the fields of ``Clauses``."""


@cache
def _grammars() -> dict[str, dict[str, Any]]:
    text = files("pasta_lm.tasks").joinpath("grammar.json").read_text("utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def sides_of(name: str) -> tuple[str, ...]:
    """Return what a grammar writes: one sentence, or one for each side.

    Raises:
        KeyError: there is no such grammar.
    """
    return SIDES if SIDES[0] in _grammars()[name] else SINGLE


def sentences(name: str, random: Random) -> tuple[str, ...]:
    """Return a sentence of a grammar, or one for each of its sides.

    Args:
        name: The set of wordings that it goes on with.
        random: The source of chance.

    Raises:
        KeyError: there is no such grammar.
    """
    grammar = _grammars()[name]

    def fill(slot: re.Match[str]) -> str:
        return SLOT.sub(fill, random.choice(grammar["slots"][slot.group(1)]))

    return tuple(SLOT.sub(fill, random.choice(grammar[side])) for side in sides_of(name))
