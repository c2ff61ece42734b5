"""Decide which of its own answers a model can be trained on.

The rules look at form alone: facts are not checked, and neither is whether an answer is good.
Every reason against an answer has a name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from unicodedata import category
from unicodedata import name as name_of

from pasta_lm.journal import Row
from pasta_lm.learn.annotate.marks import units

USABLE = "usable"

MIN_WORDS = 3
LOOP_WORDS = 8
MAX_REPEATED_WORDS = 0.35
"""Share of an answer's words that lie in a run of eight words which stood there before."""
MAX_REPEATED_UNITS = 0.25
"""Share of an answer's sentences and lines that are the same as an earlier one."""
ECHO_WORDS = 4
MAX_ECHOED = 0.9
"""Share of an answer's runs of four words that are the instruction's; an answer of less than
half the instruction's length may be a choice among what it names."""
CODE_FENCES = ("```", "~~~")
MAX_WORD_LENGTH = 60  # characters
MAX_FOREIGN_LETTERS = 0.3
"""Share of letters outside the Latin and Greek alphabets, where the instruction neither has such
letters nor names a language. A wrong language in Latin letters is not seen."""

_URL = re.compile(r"\w+://\S+|\S+\.\S+")
_LANGUAGE = re.compile(
    r"\b(?:[Tt]ranslat\w+|languages?|alphabets?|[A-Z]\w+(?:ese|[ei]an|ic|ish)|Hindi|Hebrew|Thai)\b"
)
_REFUSAL = re.compile(
    r"\bas an? (?:\w+[ -]){0,3}(?:AI|chatbot|language model)\b"
    r"|\bI(?:'m| am) (?:just |only |merely )?an? (?:AI|chatbot|language model|digital assistant)\b"
    r"|\bI(?:'m| am) (?:sorry|afraid)\b[^.!?\n]{0,60}\b(?:can(?:'|no)t|unable to|not able to) "
    r"(?:assist|help|provide|fulfil|answer|generate|create|write|give|offer|translate)"
    r"|\bI(?:'m| am) (?:not equipped|not able|unable) to (?:assist|help|provide|fulfil|answer)"
    r"|\bI (?:do not|don't) have the (?:ability|capability|capacity)\b"
    r"|\bI can(?:'|no)t (?:assist|help you with|provide|fulfil|generate)\b",
    re.IGNORECASE,
)
REFUSAL_WITHIN = 300
"""Characters at the beginning in which a refusal counts; later it may be part of a text."""


class Unusable(StrEnum):
    """Why an answer is left out; the first that holds, in this order."""

    CUT_OFF = "cut_off"
    EMPTY = "empty"
    GARBAGE = "garbage"
    LANGUAGE = "language"
    REFUSAL = "refusal"
    ECHO = "echo"
    LOOPS = "loops"


def usable_answers(
    rows: Iterable[Row], instructions: Mapping[str, str]
) -> tuple[list[Row], Counter[str]]:
    """Return the answers that pass the rules, and how many did or failed for which reason."""
    kept, reasons = [], Counter[str]()
    for row in rows:
        why = why_unusable(instructions[row["id"]], row["answer"], has_ended=row["ended"])
        reasons[why or USABLE] += 1
        if why is None:
            kept.append(row)
    return kept, reasons


def why_unusable(instruction: str, answer: str, *, has_ended: bool = True) -> Unusable | None:
    """Return the reason to leave an answer out; None if it can be used.

    Args:
        instruction: The instruction that was answered.
        answer: The model's whole answer.
        has_ended: Whether the model ended it, and no limit cut it off.
    """
    words = _words(answer)
    if not has_ended:
        return Unusable.CUT_OFF
    if len(words) < MIN_WORDS:
        return Unusable.EMPTY
    if _is_garbage(answer):
        return Unusable.GARBAGE
    if _is_foreign(answer, instruction):
        return Unusable.LANGUAGE
    if _REFUSAL.search(answer.replace("’", "'"), 0, REFUSAL_WITHIN):
        return Unusable.REFUSAL
    prompt = _words(instruction)
    if 2 * len(words) >= len(prompt) and _echoed_share(words, prompt) > MAX_ECHOED:
        return Unusable.ECHO
    if repeated_words(words) > MAX_REPEATED_WORDS or _units_loop(answer):
        return Unusable.LOOPS
    return None


def repeated_words(words: Sequence[str], length: int = LOOP_WORDS) -> float:
    """Return the share of words that lie in a run of ``length`` words seen before."""
    seen: set[tuple[str, ...]] = set()
    repeated: set[int] = set()
    for begin in range(len(words) - length + 1):
        gram = tuple(words[begin : begin + length])
        if gram in seen:
            repeated.update(range(begin, begin + length))
        seen.add(gram)
    return len(repeated) / len(words) if words else 0.0


def _units_loop(answer: str) -> bool:
    texts = [answer[unit.inside : unit.end] for unit in units(answer)]
    plain = [" ".join(_words(text)) for text in texts if not text.startswith(CODE_FENCES)]
    plain = [text for text in plain if text]
    num_repeated = len(plain) - len(set(plain))
    return num_repeated >= 2 and num_repeated > MAX_REPEATED_UNITS * len(plain)


def _echoed_share(answer: Sequence[str], instruction: Sequence[str]) -> float:
    own, prompt = (
        {tuple(text[begin : begin + ECHO_WORDS]) for begin in range(len(text) - ECHO_WORDS + 1)}
        for text in (answer, instruction)
    )
    return len(own & prompt) / len(own) if own else 0.0


def _is_garbage(answer: str) -> bool:
    has_broken_characters = any(
        char == "\N{REPLACEMENT CHARACTER}" or (category(char) == "Cc" and char not in "\n\t\r")
        for char in answer
    )
    longest = max((len(word) for word in re.findall(r"\w+", _URL.sub(" ", answer))), default=0)
    return has_broken_characters or longest > MAX_WORD_LENGTH


def _is_foreign(answer: str, instruction: str) -> bool:
    is_wanted = _LANGUAGE.search(instruction) or _foreign_share(instruction) > 0
    return not is_wanted and _foreign_share(answer) > MAX_FOREIGN_LETTERS


def _foreign_share(text: str) -> float:
    letters = [char for char in text if char.isalpha()]
    foreign = [char for char in letters if not name_of(char, "").startswith(("LATIN", "GREEK"))]
    return len(foreign) / len(letters) if letters else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
