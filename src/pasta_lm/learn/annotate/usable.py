"""Answers that a model can be trained on: rules of form, which check neither facts nor quality."""

from __future__ import annotations

import re
from collections.abc import Sequence
from unicodedata import category
from unicodedata import name as name_of

from pasta_lm.learn.annotate.layout_rule import units

MIN_WORDS = 3
MAX_REPEATED_WORDS = 0.35
"""Share of an answer's words that lie in a run of eight words which stood there before."""
MAX_REPEATED_UNITS = 0.25
"""Share of an answer's sentences and lines that are the same as an earlier one."""
MAX_ECHOED = 0.9
"""Share of an answer's runs of four words that are the instruction's; an answer of less than
half the instruction's length may be a choice among what it names."""
CODE_FENCES = ("```", "~~~")
MAX_WORD_LENGTH = 60  # characters
MAX_FOREIGN_LETTERS = 0.3
"""Share of letters outside the Latin and Greek alphabets, where the instruction neither has such
letters nor names a language. A wrong language in Latin letters is not seen."""
REFUSAL_WITHIN = 300
"""Characters at the beginning in which a refusal counts; later it may be part of a text."""

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


def why_unusable(instruction: str, answer: str, *, has_ended: bool = True) -> str | None:
    """Return the first reason to leave an answer out; None if it can be used.

    ``has_ended`` says that the model ended it, and no limit cut it off.
    """
    words, prompt = _words(answer), _words(instruction)
    reasons = {
        "cut_off": not has_ended,
        "empty": len(words) < MIN_WORDS,
        "garbage": _is_garbage(answer),
        "language": _is_foreign(answer, instruction),
        "refusal": _REFUSAL.search(answer.replace("’", "'"), 0, REFUSAL_WITHIN),
        "echo": 2 * len(words) >= len(prompt) and _echoed_share(words, prompt) > MAX_ECHOED,
        "loops": repeated_words(words) > MAX_REPEATED_WORDS or _units_loop(answer),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def repeated_words(words: Sequence[str], length: int = 8) -> float:
    """Return the share of words that lie in a run of ``length`` words seen before."""
    seen: set[tuple[str, ...]] = set()
    repeated: set[int] = set()
    for begin, run in enumerate(_runs(words, length)):
        if run in seen:
            repeated.update(range(begin, begin + length))
        seen.add(run)
    return len(repeated) / len(words) if words else 0.0


def _echoed_share(answer: Sequence[str], instruction: Sequence[str]) -> float:
    own = {*_runs(answer, 4)}
    return len(own.intersection(_runs(instruction, 4))) / len(own) if own else 0.0


def _runs(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[begin : begin + length]) for begin in range(len(words) - length + 1)]


def _units_loop(answer: str) -> bool:
    texts = [answer[unit.inside : unit.end] for unit in units(answer)]
    plain = [" ".join(_words(text)) for text in texts if not text.startswith(CODE_FENCES)]
    plain = [text for text in plain if text]
    num_repeated = len(plain) - len(set(plain))
    return num_repeated >= 2 and num_repeated > MAX_REPEATED_UNITS * len(plain)


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
