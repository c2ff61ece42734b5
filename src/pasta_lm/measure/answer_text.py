"""Measures of an answer's text that need no model: repetition, items asked for and given."""

from __future__ import annotations

import re
from collections.abc import Sequence

WORD = re.compile(r"\w+")
GRAM = 4  # words in a row that count as repeated
_NAMES = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
NUMBERS = dict(zip(_NAMES.split("|"), range(2, 13), strict=True)) | {"fifteen": 15, "twenty": 20}
MAX_ITEMS = 30
ITEMS = (
    "tips|ways|ideas|reasons|examples|facts|steps|questions|names|things|items|books|novels|"
    "movies|films|songs|benefits|advantages|disadvantages|drawbacks|pros|cons|recipes|"
    "suggestions|points|titles|headlines|slogans|taglines|jokes|riddles|quotes|activities|"
    "strategies|methods|techniques|exercises|countries|cities|places|animals|foods|dishes|"
    "meals|rules|principles|factors|features|topics|synonyms|antonyms|adjectives|verbs|nouns|"
    "rhymes|haikus|poems|emails|messages|captions|tweets|hashtags|puns|bullets|options|"
    "alternatives|differences|similarities|types|kinds|inventions|hobbies|games|gifts|snacks|"
    "skills|risks|goals|habits|mistakes|myths"
)
UNITS = "words|sentences|lines|verses|paragraphs|pages|minutes|hours|days|weeks"
"""What a number may count instead: "two paragraphs about tips" asks for no two tips."""
ASKED = re.compile(
    rf"\b({'|'.join(NUMBERS)}|\d{{1,2}})\s+(?:(?!{UNITS})[\w'’-]+\s+){{0,2}}?(?:{ITEMS})\b",
    re.IGNORECASE,
)
"""A number, at most two words, and a noun of things that are listed."""
NUMBERED = re.compile(r"^(\s*)(?:\*\*)?\(?\d{1,3}[.):]\s*(?=\S)")
BULLET = re.compile(r"^(\s*)[-*+•–]\s+(?=\S)")
BOLD = re.compile(r"^()(?:\*\*|#+\s)")
SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")


def repetition(text: str) -> float:
    """Return the share of a text's 4-grams of words that occurred before; case does not count."""
    words = _words(text)
    grams = [tuple(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)]
    return (len(grams) - len(set(grams))) / max(len(grams), 1)


def _words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def items_asked(prompt: str) -> int | None:
    """Return how many items a prompt asks for, as in "five tips"; None if it does not say.

    A prompt that names several numbers of things is left out: they may belong together.
    """
    numbers = ASKED.findall(prompt)
    if len(numbers) != 1:
        return None
    value = NUMBERS.get(numbers[0].lower()) or int(numbers[0])
    return value if 2 <= value <= MAX_ITEMS else None


def items_given(text: str) -> int:
    """Return how many different items an answer lists.

    The first of these of which there are two or more: numbered lines, bullets, lines that begin
    in bold or are headings, lines; else sentences. Of nested lists the outermost counts, and lines
    that end in a colon introduce others.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    for marker in (NUMBERED, BULLET, BOLD):
        items = _outermost(lines, marker)
        if len(items) > 1:
            return len(set(items))
    rest = {_item(line) for line in lines if not line.rstrip().endswith(":")}
    return len(rest) if len(rest) > 1 else len(SENTENCE_END.findall(text))


def _outermost(lines: Sequence[str], marker: re.Pattern[str]) -> list[tuple[str, ...]]:
    marked = [(len(match[1]), line) for line in lines if (match := marker.match(line))]
    smallest = min((indent for indent, _ in marked), default=0)
    return [_item(line) for indent, line in marked if indent == smallest]


def _item(line: str) -> tuple[str, ...]:
    return tuple(_words(NUMBERED.sub("", BULLET.sub("", line))))


def coverage(prompt_items: int, text: str) -> float:
    """Return the share of the items asked for that an answer gives; more than enough is 1."""
    return min(items_given(text), prompt_items) / prompt_items
