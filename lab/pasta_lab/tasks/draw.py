"""Draw names, words, numbers and wordings of a split from a seed."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from random import Random
from typing import Any, TypeVar

from pasta_lab.tasks.task import Split

GRAMMAR_SHARE = 0.7
"""Share of the training wordings that the grammar writes; the others are listed."""

T = TypeVar("T")

NUM_RECORDS = (2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8)
"""Number of records of a prompt: one of these, all equally likely."""
NUM_HARD_RECORDS = (7, 8)

INVENTED = {Split.TRAIN: 0.6, Split.DEV: 0.2, Split.TEST: 0.2, Split.HARD: 0.2}
"""Share of words that are invented although their kind has a list.

It is larger in training: a model that knows most words by heart has little reason to copy."""

_SHARES = {Split.TRAIN: range(0, 7), Split.DEV: range(7, 8), Split.TEST: range(8, 10)}
_SUMS = {Split.TRAIN: (0, 1, 2), Split.DEV: (3,), Split.TEST: (4,)}


def owns_word(split: Split, word: str) -> bool:
    """Return whether a word belongs to a split."""
    digest = hashlib.sha256(word.lower().encode()).digest()
    return digest[0] % 10 in _SHARES[split.source]


def owns_value(split: Split, value: int) -> bool:
    """Return whether a number of two digits or more belongs to a split."""
    return (value // 10 % 10 + value % 10) % 5 in _SUMS[split.source]


@lru_cache(maxsize=256)
def _owned(split: Split, kind: str) -> tuple[str, ...]:
    return tuple(word for word in word_lists()[kind] if owns_word(split, word))


class Draw:
    """The random choices of one task.

    Attributes:
        split: The split that everything is drawn from.
        random: The random generator; the same seed gives the same task.
        drawn: Every name, word and number drawn so far, as it is written.
    """

    def __init__(self, split: Split, seed: int | str, *, wordings: Split | None = None) -> None:
        self.split = split
        self._wordings = wordings or split
        self.random = Random(f"{split.value}/{seed}")
        self.drawn: set[str] = set()

    def count(self, low: int = 2, high: int = 8) -> int:
        """Return how many records the prompt has, between the bounds."""
        choices = NUM_HARD_RECORDS if self.split is Split.HARD else NUM_RECORDS
        fitting = [number for number in choices if low <= number <= high]
        return self.random.choice(fitting or [high])

    def wording(self, wordings: Wordings, side: int = 0) -> str:
        """Return a sentence of the split; training draws most of its own from a grammar."""
        is_training = self.split is self._wordings is Split.TRAIN
        if is_training and wordings.grammar and self.random.random() < GRAMMAR_SHARE:
            return wordings.write(self.random)[side]
        return self.random.choice(wordings.of(self._wordings))[side]

    def choice(self, options: Sequence[T]) -> T:
        """Return one of some options that all splits share."""
        return self.random.choice(options)

    def words(self, kind: str, number: int) -> list[str]:
        """Return different words of a kind (a key of ``word_lists()``), some of them invented.

        A share is invented, and so are words that the split lacks: the answer must copy words of
        the prompt rather than recall known ones.
        """
        owned = _owned(self.split, kind)
        num_known = sum(self.random.random() >= INVENTED[self.split] for _ in range(number))
        known = self.random.sample(owned, min(num_known, len(owned)))
        words = [*known, *self._invent(number - len(known), taken=known)]
        self.random.shuffle(words)
        return self._keep(words)

    def names(self, number: int) -> list[str]:
        """Return different invented names, capitalised; no two begin with the same letters."""
        return self._keep([name.capitalize() for name in self._invent(number)])

    def values(self, number: int, low: int = 11, high: int = 99) -> list[int]:
        """Return different numbers of the split, both bounds included."""
        owned = [value for value in range(low, high + 1) if owns_value(self.split, value)]
        values = self.random.sample(owned, number)
        self._keep([str(value) for value in values])
        return values

    def _invent(self, number: int, taken: Sequence[str] = ()) -> list[str]:
        words: list[str] = []
        while len(words) < number:
            word = "".join(self._syllable() for _ in range(self.random.choice((2, 2, 2, 3))))
            is_new = not any(word[:3] == other[:3].lower() for other in (*words, *taken))
            if is_new and owns_word(self.split, word):
                words.append(word)
        return words

    def _syllable(self) -> str:
        return "".join(self.random.choice(part) for part in syllable_parts())

    def _keep(self, words: list[str]) -> list[str]:
        self.drawn.update(words)
        return words


Wording = tuple[str, ...]
"""One sentence, or both sides of a minimal pair: first the free side, then the dependent one."""

_SLOT = re.compile(r"<(\w+)>")
_WORD = re.compile(r"\w+|[{}]")
_ARTICLES = frozenset({"a", "an", "the"})


@dataclass(frozen=True, slots=True)
class Grammar:
    """Templates of each side of a wording, and the phrases that fill their slots."""

    sides: tuple[Sequence[str], ...]
    slots: Mapping[str, Sequence[str]]

    def write(self, random: Random) -> Wording:
        """Return a wording drawn by chance."""

        def fill(slot: re.Match[str]) -> str:
            return _SLOT.sub(fill, random.choice(self.slots[slot[1]]))

        return tuple(_SLOT.sub(fill, random.choice(templates)) for templates in self.sides)


@dataclass(frozen=True)
class Wordings:
    """Ways to say one thing; no two splits share any.

    Attributes:
        train: The listed ones of training.
        dev: Those of development.
        test: Those of the tests.
        grammar: Writes further ones for training; None: training has the listed ones alone.
    """

    train: tuple[Wording, ...]
    dev: tuple[Wording, ...]
    test: tuple[Wording, ...]
    grammar: Grammar | None = None

    def of(self, split: Split) -> tuple[Wording, ...]:
        """Return the listed wordings of a split; ``hard`` has those of ``test``."""
        return {Split.TRAIN: self.train, Split.DEV: self.dev, Split.TEST: self.test}[split.source]

    def write(self, random: Random) -> Wording:
        """Return a wording of the grammar that no other split has."""
        if self.grammar is None:
            raise ValueError("these wordings have no grammar")
        while True:
            wording = self.grammar.write(random)
            if not _normalised([wording]) & self._held_out:
                return wording

    @cached_property
    def _held_out(self) -> set[str]:
        return _normalised((*self.dev, *self.test))


def _normalised(wordings: Iterable[Wording]) -> set[str]:
    """Return the sentences without case, punctuation and articles, which make no new wording."""
    words = (_WORD.findall(sentence.lower()) for wording in wordings for sentence in wording)
    return {" ".join(word for word in sentence if word not in _ARTICLES) for sentence in words}


@cache
def read_data(name: str) -> dict[str, Any]:
    """Return what a file of the ``data`` folder says; ``name`` is without its ending."""
    text = files("pasta_lab.tasks").joinpath("data", f"{name}.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def wordings(file: str, place: str) -> Wordings:
    """Return the wordings of one place in the prompts of a family.

    Raises:
        KeyError: there is no such table.
    """
    table = read_data(file)[place]
    if "all" in table:  # of families that nothing is trained on
        everywhere = _listed(table["all"])
        return Wordings(everywhere, everywhere, everywhere)
    grammar = table["grammar"]
    sides = [grammar[key] for key in ("all", "first", "second") if key in grammar]
    train, dev, test = (_listed(table[split]) for split in ("train", "dev", "test"))
    return Wordings(train, dev, test, Grammar(tuple(sides), grammar["slots"]))


def _listed(options: Iterable[str | list[str]]) -> tuple[Wording, ...]:
    return tuple((option,) if isinstance(option, str) else tuple(option) for option in options)


@cache
def word_lists() -> dict[str, tuple[str, ...]]:
    return {kind: tuple(words.split()) for kind, words in read_data("words")["words"].items()}


@cache
def syllable_parts() -> tuple[tuple[str, ...], ...]:
    """Return the onsets, nuclei and codas of the syllables of invented words."""
    parts = read_data("words")["syllables"]
    return tuple(tuple(parts[name]) for name in ("onsets", "nuclei", "codas"))
