"""Draw names, words, numbers and wordings, each split from a share of its own.

One rule says to which split a word or a number belongs, so that no list has to be kept apart by
hand: words by a hash of their spelling, numbers by the sum of their last two digits. Numbers are
not dealt out by contiguous ranges: every digit must be met in every place, or a test would ask for
digits that were never seen rather than for numbers that were never seen.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from random import Random
from typing import Any, Generic, TypeVar

from pasta_lm.tasks.grammar import sentences
from pasta_lm.tasks.task import Split
from pasta_lm.tasks.words import CODAS, NUCLEI, ONSETS, WORDS

GRAMMAR_SHARE = 0.7
"""Of the wordings of training, those that a grammar writes rather than a person."""

T = TypeVar("T")

NUM_RECORDS = (2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8)
"""How many records a prompt has: drawn from these, as often as they stand here."""
NUM_HARD_RECORDS = (7, 8)

INVENTED = {Split.TRAIN: 0.6, Split.DEV: 0.2, Split.TEST: 0.2, Split.HARD: 0.2}
"""Share of words that are invented although their kind has a list.

Training has more of them: a model that knows most words by heart has little reason to copy."""

_SHARES = {Split.TRAIN: range(0, 7), Split.DEV: range(7, 8), Split.TEST: range(8, 10)}
_SUMS = {Split.TRAIN: (0, 1, 2), Split.DEV: (3,), Split.TEST: (4,)}


@dataclass(frozen=True, slots=True)
class Wordings(Generic[T]):
    """Ways to say one thing, none of which two splits share."""

    train: tuple[T, ...]
    dev: tuple[T, ...]
    test: tuple[T, ...]
    grammar: str = ""
    """What training goes on with, see ``grammar``; empty: it has the listed ones alone."""

    def of(self, split: Split) -> tuple[T, ...]:
        """Return the wordings of a split; ``hard`` has those of ``test``."""
        by_split = {Split.TRAIN: self.train, Split.DEV: self.dev, Split.TEST: self.test}
        return by_split[source_of(split)]


def source_of(split: Split) -> Split:
    """Return the split whose words, values and wordings a split uses."""
    return Split.TEST if split is Split.HARD else split


def owns_word(split: Split, word: str) -> bool:
    """Tell whether a word belongs to a split."""
    digest = hashlib.sha256(word.lower().encode()).digest()
    return digest[0] % 10 in _SHARES[source_of(split)]


def owns_value(split: Split, value: int) -> bool:
    """Tell whether a number of two digits or more belongs to a split."""
    return (value // 10 % 10 + value % 10) % 5 in _SUMS[source_of(split)]


@lru_cache(maxsize=256)
def _owned(split: Split, kind: str) -> tuple[str, ...]:
    return tuple(word for word in WORDS[kind] if owns_word(split, word))


def _written(wordings: Wordings[T], random: Random) -> T:
    """Return a sentence, or sides, of a grammar, and none that another split has."""
    (one, *_), held_out = wordings.train, _held_out(wordings)
    while True:
        found = sentences(wordings.grammar, random)
        if not _plain(found) & held_out:
            return found[0] if isinstance(one, str) else type(one)(*found)  # type: ignore


@cache
def _held_out(wordings: Wordings[Any]) -> set[str]:
    return _plain((*wordings.dev, *wordings.test))


def _plain(wordings: Iterable[Any]) -> set[str]:
    """Return sentences without what makes no other wording of them: case, marks, articles."""
    sides = [one for some in wordings for one in ((some,) if isinstance(some, str) else some)]
    words = (re.findall(r"\w+|[{}]", side.lower()) for side in sides)
    return {" ".join(word for word in found if word not in ("a", "an", "the")) for found in words}


class Draw:
    """All the chance of one task.

    Attributes:
        split: The split that everything is drawn from.
        random: The source of chance; the same seed gives the same task.
        drawn: Every name, word and number drawn so far, as it is written.
    """

    def __init__(
        self,
        split: Split,
        seed: int | str,
        *,
        most: int | None = None,
        wordings: Split | None = None,
    ) -> None:
        """Begin a task.

        Args:
            split: Where words and values come from.
            seed: The same seed draws the same.
            most: The most records that a prompt may have.
            wordings: Where wordings come from, if not from ``split``.
        """
        self.split = split
        self._most = most
        self._wordings = wordings or split
        self.random = Random(f"{split.value}/{seed}")
        self.drawn: set[str] = set()

    def count(self, low: int = 2, high: int = 8) -> int:
        """Return how many records the prompt has, between the bounds."""
        choices = NUM_HARD_RECORDS if self.split is Split.HARD else NUM_RECORDS
        high = high if self._most is None else max(low, min(high, self._most))
        fitting = [number for number in choices if low <= number <= high]
        return self.random.choice(fitting or [high])

    def wording(self, wordings: Wordings[T]) -> T:
        """Return one of the split's wordings; training draws most of its own from a grammar."""
        is_training = self.split is self._wordings is Split.TRAIN
        if is_training and wordings.grammar and self.random.random() < GRAMMAR_SHARE:
            return _written(wordings, self.random)
        return self.random.choice(wordings.of(self._wordings))

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options, which all splits share."""
        return self.random.choice(options)

    def words(self, kind: str, number: int) -> list[str]:
        """Return different words of a kind (a key of ``words.WORDS``), some of them invented.

        Invented words stand in for a share of them, and for those that the split lacks: who
        answers must copy what is there, not what it knows.
        """
        owned = _owned(self.split, kind)
        num_known = sum(self.random.random() >= INVENTED[self.split] for _ in range(number))
        known = self.random.sample(owned, min(num_known, len(owned)))
        words = [*known, *self._invent(number - len(known), taken=known)]
        self.random.shuffle(words)
        return self._keep(words)

    def word(self, kind: str) -> str:
        """Return a word of a kind."""
        return self.words(kind, 1)[0]

    def names(self, number: int) -> list[str]:
        """Return different invented names, capitalised; none begins as another does."""
        return self._keep([name.capitalize() for name in self._invent(number)])

    def invented(self, number: int) -> list[str]:
        """Return different invented words in small letters; none begins as another does."""
        return self._keep(self._invent(number))

    def values(self, number: int, low: int = 11, high: int = 99) -> list[int]:
        """Return different numbers of the split, both bounds included."""
        owned = [value for value in range(low, high + 1) if owns_value(self.split, value)]
        values = self.random.sample(owned, number)
        self._keep([str(value) for value in values])
        return values

    def value(self, low: int = 11, high: int = 99) -> int:
        """Return a number of the split, both bounds included."""
        return self.values(1, low, high)[0]

    def _invent(self, number: int, taken: Sequence[str] = ()) -> list[str]:
        found: list[str] = []
        while len(found) < number:
            word = "".join(self._syllable() for _ in range(self.random.choice((2, 2, 2, 3))))
            is_new = not any(word[:3] == other[:3].lower() for other in (*found, *taken))
            if is_new and owns_word(self.split, word):
                found.append(word)
        return found

    def _syllable(self) -> str:
        parts = (ONSETS, NUCLEI, CODAS)
        return "".join(self.random.choice(part) for part in parts)

    def _keep(self, words: list[str]) -> list[str]:
        self.drawn.update(words)
        return words
