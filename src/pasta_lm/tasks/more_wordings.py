"""Further training wordings, kept as data: what is learned should be the meaning, not a sentence.

They were written by someone who saw the training wordings alone, never those of another split.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TypeVar

T = TypeVar("T")


@cache
def _sets() -> dict[str, list[str | list[str]]]:
    text = files("pasta_lm.tasks").joinpath("wordings.json").read_text("utf-8")
    found: dict[str, list[str | list[str]]] = json.loads(text)
    return found


def more_sentences(name: str) -> tuple[str, ...]:
    """Return the further sentences of a set.

    Raises:
        KeyError: there is no such set.
    """
    return tuple(one for one in _sets()[name] if isinstance(one, str))


def more_clauses(name: str, make: Callable[..., T]) -> tuple[T, ...]:
    """Return the further clauses of a set, each made from its sides in the order of the file.

    Raises:
        KeyError: there is no such set.
    """
    return tuple(make(*one) for one in _sets()[name] if not isinstance(one, str))
