"""Wordings of prompts and word lists, read from the TOML files in ``data``.

A wording is one sentence, or a pair of sentences: the two sides of a minimal pair. The listed
wordings of a place are split by hand. Training goes on beyond its list with a grammar (templates
whose slots are filled with phrases, as in Tracery by K. Compton et al., 2015), because sixty
sentences can be learned by heart. Whoever wrote the grammars saw the training wordings alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from random import Random
from typing import Any

from pasta_lm.tasks.task import Split

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
        """Return a wording of the grammar that no other split has.

        Raises:
            ValueError: there is no grammar.
        """
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
    return {" ".join(word for word in found if word not in _ARTICLES) for found in words}


@cache
def read_data(name: str) -> dict[str, Any]:
    """Return what a file of the ``data`` folder says; ``name`` is without its ending."""
    text = files("pasta_lm.tasks").joinpath("data", f"{name}.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def wordings(file: str, place: str) -> Wordings:
    """Return the wordings of one place in the prompts of a family.

    Args:
        file: The file of the ``data`` folder, without its ending.
        place: The table of the file, such as ``openings`` or ``clauses``.

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
    return tuple((one,) if isinstance(one, str) else tuple(one) for one in options)


@cache
def word_lists() -> dict[str, tuple[str, ...]]:
    """Return everyday words by kind."""
    return {kind: tuple(words.split()) for kind, words in read_data("words")["words"].items()}


@cache
def syllable_parts() -> tuple[tuple[str, ...], ...]:
    """Return the onsets, nuclei and codas of the syllables of invented words."""
    parts = read_data("words")["syllables"]
    return tuple(tuple(parts[name]) for name in ("onsets", "nuclei", "codas"))
