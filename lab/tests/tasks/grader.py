"""A second grader by regular expressions, an oracle that shares no code with the referee."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from pasta_lab.tasks.task import Fact, Task, Unit

FREE_EXCESS, FATAL_EXCESS = 1.25, 2.0
"""Length relative to the reference from which the grade falls, and at which it is 0."""
MIN_REPEATED_WORDS = 4
"""A sentence this long that occurs more often than in the reference is a repetition."""

_NUMBER = re.compile(r"\d+")
_SPACES = re.compile(r"[ \t]+")
_NEXT_MARK = re.compile(r"\n\s*\d+[.)]\s*$")
"""The number of the next list item, which is in front of the anchor that ends the section."""
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")


def grade(task: Task, text: str) -> float:
    """Return the grade of an answer without tags, from 0 to 1."""
    text = _SPACES.sub(" ", text)
    starts = unit_starts(task, text)
    if task.ordered and not _ascend([start for start in starts if start is not None]):
        return 0.0
    sections = _sections(text, starts)
    weights = [unit.weight for unit in task.units]
    taken: set[str] = set()
    scores = [
        _score(task, unit, section, taken)
        for unit, section in zip(task.units, sections, strict=True)
    ]
    share = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
    return share * _brevity(task, text) * (0.0 if _repeats(task, text) else 1.0)


def unit_starts(task: Task, text: str) -> list[int | None]:
    """Return the first index of each unit's anchor in an answer; None: it is not there."""
    return [_find(unit.anchor, text) for unit in task.units]


def _find(anchor: str, text: str) -> int | None:
    found = re.search(rf"(?<!\w){re.escape(anchor)}(?!\w)", text)
    return found.start() if found else None


def _ascend(starts: list[int]) -> bool:
    return all(before < after for before, after in pairwise(starts))


def _sections(text: str, starts: list[int | None]) -> list[str]:
    """Cut the text at every anchor; a unit without its anchor has no section."""
    cuts = [*sorted(start for start in starts if start is not None), len(text)]
    ends = {start: end for start, end in pairwise(cuts)}
    return ["" if s is None else _NEXT_MARK.sub("", text[s : ends[s]]) for s in starts]


def _score(task: Task, unit: Unit, section: str, taken: set[str]) -> float:
    if not section or _has_foreign(task, unit, section):
        return 0.0
    sentences = [f" {sentence} " for sentence in _SENTENCE_END.split(section)]
    facts = _with_own_choice(task, unit, sentences, taken) if task.palette else unit.facts
    return sum(_says(fact, sentences) for fact in facts) / len(unit.facts)


def _with_own_choice(
    task: Task, unit: Unit, sentences: list[str], taken: set[str]
) -> tuple[Fact, ...]:
    """Return the facts with the chosen word in the first; without the first if the choice fails."""
    first, *others = unit.facts
    chosen = {word for word in task.palette if any(_find(word, s) is not None for s in sentences)}
    if len(chosen) != 1 or chosen & taken:
        return tuple(others)
    taken |= chosen
    return (Fact(chosen.pop(), first.cues), *others)


def _says(fact: Fact, sentences: list[str]) -> bool:
    return any(
        _find(fact.value, sentence) is not None
        and (not fact.cues or any(_find(cue, sentence) is not None for cue in fact.cues))
        for sentence in sentences
    )


def _has_foreign(task: Task, unit: Unit, section: str) -> bool:
    """Return whether a number or candidate occurs that is not in the unit's reference."""
    if not {*_NUMBER.findall(section)} <= {*_NUMBER.findall(unit.text)}:
        return True
    others = (word for word in task.candidates if _find(word, unit.text) is None)
    return any(_find(word, section) is not None for word in others)


def _brevity(task: Task, text: str) -> float:
    ratio = len(text.split()) / max(len(task.text.split()), 1)
    return min(1.0, max(0.0, (FATAL_EXCESS - ratio) / (FATAL_EXCESS - FREE_EXCESS)))


def _repeats(task: Task, text: str) -> bool:
    said, expected = _sentences(text), _sentences(task.text)
    return any(number > max(expected[sentence], 1) for sentence, number in said.items())


def _sentences(text: str) -> Counter[str]:
    parts = (" ".join(part.lower().split()) for part in _SENTENCE_END.split(text))
    return Counter(part for part in parts if len(part.split()) >= MIN_REPEATED_WORDS)
