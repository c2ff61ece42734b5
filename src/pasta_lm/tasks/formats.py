"""The format ladder: the same content as a list, in bold, as table rows or as plain sentences.

What may run in parallel never depends on the format, so a rule that reads the marks is measured
against a model that reads the meaning.
"""

from __future__ import annotations

from enum import StrEnum

from pasta_lm.tasks.draw import Draw, Wordings
from pasta_lm.tasks.more_wordings import more_sentences

ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth")


class Format(StrEnum):
    """How the items of an answer are marked."""

    DOTS = "1."
    PARENTHESES = "1)"
    ORDINALS = "First,"
    BOLD = "bold"
    ROWS = "table row"
    SENTENCES = "plain"


REQUESTS: dict[Format, Wordings[str]] = {
    Format.DOTS: Wordings(
        train=(
            "Write a numbered list (1. 2. 3.).",
            "Number the items 1., 2., 3. and so on.",
            "Answer as a list numbered 1. 2. 3.",
            *more_sentences("format 1."),
        ),
        grammar="format 1.",
        dev=("Give a list with the numbers 1. 2. 3.",),
        test=("Number the list 1., 2., 3.", "The answer is a numbered list: 1. 2. 3."),
    ),
    Format.PARENTHESES: Wordings(
        train=(
            "Write a numbered list with brackets: 1) 2) 3).",
            "Number the items 1), 2), 3) and so on.",
            "Answer as a list numbered 1) 2) 3).",
            *more_sentences("format 1)"),
        ),
        grammar="format 1)",
        dev=("Give a list with the numbers 1) 2) 3).",),
        test=("Number the list 1), 2), 3).", "The answer is a numbered list: 1) 2) 3)."),
    ),
    Format.ORDINALS: Wordings(
        train=(
            "Begin the items with First, Second, Third.",
            "Start each item with First, Second, Third and so on.",
            "Count with words: First, Second, Third.",
            *more_sentences("format First,"),
        ),
        grammar="format First,",
        dev=("Open the items with the words First, Second, Third.",),
        test=("The items start with First, Second, Third.", "Count in words: First, Second."),
    ),
    Format.BOLD: Wordings(
        train=(
            "Begin each item with its name in bold.",
            "Put the name in bold at the start of each item.",
            "Every item starts with a bold name.",
            *more_sentences("format bold"),
        ),
        grammar="format bold",
        dev=("Open each item with the name in bold.",),
        test=("Each item begins with a bold name.", "Start every item with the name in bold."),
    ),
    Format.ROWS: Wordings(
        train=(
            "Write each item as a table row with | at both ends.",
            "Answer in table rows: | name | text |.",
            "Use table rows, name first: | name | text |.",
            *more_sentences("format table row"),
        ),
        grammar="format table row",
        dev=("Give table rows: | name | text |.",),
        test=("Write table rows | name | text |.", "Each item is a table row: | name | text |."),
    ),
    Format.SENTENCES: Wordings(
        train=(
            "Write plain sentences in one paragraph.",
            "Use plain sentences, no list.",
            "Answer in running text without any list marks.",
            *more_sentences("format plain"),
        ),
        grammar="format plain",
        dev=("Give plain sentences without a list.",),
        test=("Write running text, no list.", "Use one paragraph of plain sentences."),
    ),
}  # fmt: skip


def draw_format(draw: Draw) -> tuple[Format, str]:
    """Return a format and the sentence that asks for it."""
    form = draw.choice(tuple(Format))
    return form, draw.wording(REQUESTS[form])


def item(form: Format, index: int, name: str, body: str) -> str:
    """Return an item of the answer.

    Args:
        form: How it is marked.
        index: Its place, from 0; at most 7 with ordinals.
        name: What the item is about.
        body: What is said of it: whole sentences that do not begin with the name.
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
    """Return what stands between two items."""
    return " " if form is Format.SENTENCES else "\n"
