"""Write the items of an answer: their marks, the label sentence in front of them, and sums.

Which items can run in parallel never depends on their marks, so that an annotator that reads the
marks can be compared with a model that reads the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pasta_lm.tasks.draw import Draw
from pasta_lm.tasks.wordings import wordings

ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth")

FREE_LABEL, CHAIN_LABEL = "Each stands alone.", "Each builds on the last."
"""First sentence of an answer whose prompt has a deciding clause: how the answer reads the clause.

About one token in 250 depends on that clause, and it decides tokens that come late: the first
number of an item. A small model did not learn to decide without this sentence (``docs/log.md``).
The graders do not ask for it.
"""


class Format(StrEnum):
    """How the items of an answer are marked."""

    DOTS = "1."
    PARENTHESES = "1)"
    ORDINALS = "First,"
    BOLD = "bold"
    ROWS = "table row"
    SENTENCES = "plain"


def draw_format(draw: Draw) -> tuple[Format, str]:
    """Return a format and the sentence that asks for it."""
    form = draw.choice(tuple(Format))
    return form, draw.wording(wordings("formats", form.name.lower()))


def item(form: Format, index: int, name: str, body: str) -> str:
    """Return an item of the answer.

    Args:
        form: How it is marked.
        index: Its index, from 0; at most 7 with ordinals.
        name: The name of its record.
        body: The sentences about it; they do not begin with the name.
    """
    match form:
        case Format.DOTS:
            return f"{index + 1}. {name}: {body}"
        case Format.PARENTHESES:
            return f"{index + 1}) {name}: {body}"
        case Format.ORDINALS:
            return f"{ORDINALS[index]}, {name}: {body}"
        case Format.BOLD:
            return f"**{name}**: {body}"
        case Format.ROWS:
            return f"| {name} | {body} |"
        case Format.SENTENCES:
            return f"For {name}: {body}"


def separator(form: Format) -> str:
    """Return the white space between two items."""
    return " " if form is Format.SENTENCES else "\n"


def added(start: int, value: int) -> str:
    """Return the steps of ``start + value``, each written ``a + b = c``.

    The tens are added before the ones: each step changes few digits, so that a small model can
    learn it and adds unseen numbers by steps that it has seen.
    """
    tens, ones = value // 10 * 10, value % 10
    parts = [part for part in (tens, ones) if part]
    steps = []
    for part in parts or [0]:
        steps.append(f"{start} + {part} = {start + part}")
        start += part
    return ", ".join(steps)


def summed(values: Iterable[int]) -> str:
    """Return the steps that add numbers one after the other, from the first on."""
    first, *others = values
    steps = []
    total = first
    for value in others:
        steps.append(added(total, value))
        total += value
    return ", ".join(steps)
