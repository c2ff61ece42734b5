"""Grade an answer for the reports: a second implementation of ``grader.py``, by sets of phrases.

It shares no code with the grader and works in another way, so that an error of one shows as a
disagreement. The answer is split into words and the words into units; the facts that a unit states
and the foreign values in it are then looked up in its set of phrases (runs of words). No training
uses it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from pasta_lab.tasks.task import Task, Unit

Phrase = tuple[str, ...]

SLACK = 0.25
"""Share by which an answer may exceed the reference; at twice the length its grade is 0."""
MIN_REPEATED_WORDS = 4
"""Shorter sentences may be repeated."""

_WORD = re.compile(r"(\s*)(\w+|[^\w\s])")
_ENDS = frozenset(".!?;")
_LIST_MARKS = frozenset(".)")


class Word(NamedTuple):
    """A word or a punctuation mark of the answer.

    Attributes:
        text: As it is written.
        sentence: Index of its sentence or line in the answer.
        opens_line: Whether it is the first of a line.
        is_apart: Whether it is the first word or has white space in front of it.
    """

    text: str
    sentence: int
    opens_line: bool
    is_apart: bool


def referee_grade(task: Task, text: str) -> float:
    """Return the grade of an answer, from 0 to 1.

    Args:
        task: The task.
        text: The answer without tags.
    """
    worth = _worth(task, text)
    if not worth:
        return 0.0
    words = _read(text)
    places = [_first(words, unit.anchor) for unit in task.units]
    starts = [place for place in places if place is not None]
    if task.ordered and starts != sorted(starts):
        return 0.0
    if _says_again(words, _long_sentences(task.text)):
        return 0.0
    sections = _deal(words, starts)
    by_unit = [[] if place is None else sections[place] for place in places]
    chosen = _choices(task, by_unit)
    earned = 0.0
    for unit, sentences, choice in zip(task.units, by_unit, chosen, strict=True):
        earned += unit.weight * _share(task, unit, sentences, choice)
    return earned / sum(unit.weight for unit in task.units) * worth


def _read(text: str) -> list[Word]:
    """Read a text into words; a sentence ends at a line's end, or at its mark before a space."""
    words: list[Word] = []
    sentence = 0
    for gap, word in _WORD.findall(text):
        opens_line = not words or "\n" in gap
        if words and (opens_line or (gap and words[-1].text in _ENDS)):
            sentence += 1
        words.append(Word(word, sentence, opens_line, bool(gap) or not words))
    return words


@lru_cache(maxsize=65_536)
def _phrase(text: str) -> Phrase:
    return tuple(word.text for word in _read(text))


def _first(words: Sequence[Word], anchor: str) -> int | None:
    """Return the index of the word with which a unit begins; None: it does not occur."""
    wanted = _phrase(anchor)
    for place, word in enumerate(words):
        if word.text == wanted[0]:
            run = words[place : place + len(wanted)]
            is_whole = run[-1].sentence == word.sentence
            if is_whole and tuple(other.text for other in run) == wanted:
                return place
    return None


def _deal(words: Sequence[Word], starts: Iterable[int]) -> dict[int, list[Phrase]]:
    """Return the sentences of each unit by its first word; every word belongs to one unit."""
    ordered = sorted(starts)
    list_marks = {place for end in (*ordered, len(words)) for place in _list_mark(words, end)}
    sections: dict[int, dict[int, list[str]]] = {start: {} for start in ordered}
    for place, word in enumerate(words):
        rank = bisect_right(ordered, place)
        if rank and place not in list_marks:
            sections[ordered[rank - 1]].setdefault(word.sentence, []).append(word.text)
    return {start: list(map(tuple, section.values())) for start, section in sections.items()}


def _list_mark(words: Sequence[Word], end: int) -> tuple[int, ...]:
    """Return the indices of a ``2.`` or ``2)`` that opens a line directly before ``end``."""
    if end < 2 or not words[end - 2].opens_line:
        return ()
    number, mark = words[end - 2], words[end - 1]
    is_mark = number.text.isdigit() and mark.text in _LIST_MARKS and not mark.is_apart
    return (end - 2, end - 1) if is_mark else ()


def _phrases(sentences: Iterable[Phrase], lengths: Iterable[int]) -> set[Phrase]:
    """Return every run of words within a sentence that has one of these lengths."""
    wanted = {*lengths}
    return {
        sentence[start : start + length]
        for sentence in sentences
        for length in wanted
        for start in range(len(sentence) - length + 1)
    }


def _choices(task: Task, by_unit: Sequence[Sequence[Phrase]]) -> list[Phrase | None]:
    """Return the word of the palette that each unit chose; None: none, several, or a taken one."""
    palette = {_phrase(word) for word in task.palette}
    chosen: list[Phrase | None] = []
    for unit, sentences in zip(task.units, by_unit, strict=True):
        options = _phrases(sentences, map(len, palette)) & palette
        is_fair = len(options) == 1 and not _is_foreign(task, unit, sentences)
        chosen.append(options.pop() if is_fair else None)
    return [None if word in chosen[:rank] else word for rank, word in enumerate(chosen)]


def _share(task: Task, unit: Unit, sentences: Sequence[Phrase], choice: Phrase | None) -> float:
    """Return the share of its facts that a unit states."""
    if not sentences or _is_foreign(task, unit, sentences):
        return 0.0
    num_said = 0
    for rank, fact in enumerate(unit.facts):
        value = choice if task.palette and rank == 0 else _phrase(fact.value)
        num_said += value is not None and _is_said(value, map(_phrase, fact.cues), sentences)
    return num_said / len(unit.facts)


def _is_said(value: Phrase, cues: Iterable[Phrase], sentences: Iterable[Phrase]) -> bool:
    """Return whether a sentence has the value and, if there are cues, one of them."""
    signs = {*cues}
    for sentence in sentences:
        has = _phrases([sentence], {len(value), *map(len, signs)})
        if value in has and (not signs or not signs.isdisjoint(has)):
            return True
    return False


def _is_foreign(task: Task, unit: Unit, sentences: Sequence[Phrase]) -> bool:
    """Return whether a number or a value of the data occurs that is not the unit's own."""
    own = _sentences(unit.text)
    if _numbers(sentences) - _numbers(own):
        return True
    values = {_phrase(value) for value in task.candidates}
    lengths = {len(value) for value in values}
    return bool((_phrases(sentences, lengths) - _phrases(own, lengths)) & values)


@lru_cache(maxsize=4_096)
def _sentences(text: str) -> tuple[Phrase, ...]:
    by_sentence: dict[int, list[str]] = {}
    for word in _read(text):
        by_sentence.setdefault(word.sentence, []).append(word.text)
    return tuple(map(tuple, by_sentence.values()))


def _numbers(sentences: Iterable[Phrase]) -> set[str]:
    """Return the words with a digit, also those with letters around it."""
    return {word for sentence in sentences for word in sentence if any(map(str.isdigit, word))}


def _worth(task: Task, text: str) -> float:
    """Return the factor of the grade for the length of the answer."""
    allowed = len(task.text.split())
    excess = (len(text.split()) - allowed) / max(allowed, 1)
    return 1.0 - min(max(excess - SLACK, 0.0) / (1.0 - SLACK), 1.0)


def _says_again(words: Sequence[Word], allowed: Counter[Phrase]) -> bool:
    """Return whether a long sentence occurs more often than in the reference."""
    # A sentence that the reference lacks may occur once: it may be a paraphrase.
    counts = _counted(words)
    return any(num > 1 and num > allowed[sentence] for sentence, num in counts.items())


@lru_cache(maxsize=4_096)
def _long_sentences(text: str) -> Counter[Phrase]:
    return _counted(_read(text))


def _counted(words: Sequence[Word]) -> Counter[Phrase]:
    """Count the long sentences in small letters."""
    counts: Counter[Phrase] = Counter()
    for _, group in groupby(words, key=lambda word: word.sentence):
        sentence = list(group)
        # ``44,`` and ``1.`` count as one word each.
        if 1 + sum(word.is_apart for word in sentence[1:]) >= MIN_REPEATED_WORDS:
            counts[tuple(word.text.lower() for word in sentence)] += 1
    return counts
