"""The data classes of a task: its prompt, the units of its answer, their facts and dependencies.

All of it is known by construction: the generator that writes the prompt also writes the answer,
unit by unit, and records for each unit the earlier units whose text it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Split(StrEnum):
    """Share of the words, values and wordings that a task is drawn from."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"
    HARD = "hard"
    """Words, values and wordings of ``test``, in prompts with more records."""

    @property
    def source(self) -> Split:
        """Return the split that owns the words, values and wordings: of ``hard`` it is ``test``."""
        return Split.TEST if self is Split.HARD else self


class Dependence(StrEnum):
    """How the units of a family's answers depend on one another."""

    FREE = "free"
    """No unit needs another: all of them can be written at the same time."""
    SYNC = "sync"
    """Free units, followed by text that needs what they say."""
    CHAIN = "chain"
    """Each unit needs the one before it."""
    SHORT = "short"
    """The units are too short, or too few, for a fork to pay."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a unit must say.

    Attributes:
        value: Whole words that must occur in the unit.
        cues: One of these must occur in the same sentence or line; empty: the value is enough.
    """

    value: str
    cues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """One part of an answer, the smallest that a block can hold.

    Attributes:
        text: The text, without white space at its ends.
        anchor: The words that mark where the unit begins.
        topic: The topic of a promise of this unit: at most three words.
        facts: The facts that it must state, at least one.
        needs: Indices of earlier units whose *written text* is needed to write this one. What
            stands in the prompt or in an earlier topic is not a need.
        fork: Whether a thread of its own pays: it is long enough and others can run beside it.
        before: The text between the previous unit and this one, mostly white space.
        weight: Its weight in the grade, relative to the other units.
    """

    text: str
    anchor: str
    topic: str
    facts: tuple[Fact, ...]
    needs: frozenset[int] = frozenset()
    fork: bool = True
    before: str = "\n"
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt whose answer and dependencies are known.

    Attributes:
        id: Family, split and seed; stable.
        family: The name of its family.
        split: The split that its words, values and wordings come from.
        prompt: The prompt.
        units: The parts of the reference answer in reading order, at least one.
        records: The part of the prompt that holds the data.
        candidates: Every word of the prompt's data that a wrong answer could put into a unit.
        dependence: How the units depend on one another.
        preface: The text of the answer before its first unit, with the white space after it.
        ordered: Whether an answer with its units in another order is wrong.
        pair: Id shared by the two tasks of a minimal pair; None: the task is in no pair.
        palette: Words from which every unit must choose one, as its first fact, each a
            different one.
        drawn: The names, words and numbers drawn at random, as they are written.
    """

    id: str
    family: str
    split: Split
    prompt: str
    units: tuple[Unit, ...]
    records: str
    candidates: frozenset[str]
    dependence: Dependence
    preface: str = ""
    ordered: bool = False
    pair: str | None = None
    palette: frozenset[str] = frozenset()
    drawn: frozenset[str] = field(default_factory=frozenset)

    def with_candidates(self, words: Iterable[str]) -> Task:
        return replace(self, candidates=self.candidates.union(words))

    def with_palette(self, words: Iterable[str]) -> Task:
        return replace(self, palette=frozenset(words))

    @property
    def text(self) -> str:
        """Return the reference answer: preface, units and the text between them."""
        return self.preface + self.body

    @property
    def body(self) -> str:
        """Return the reference answer without its preface."""
        parts = [unit.before + unit.text for unit in self.units]
        return "".join(parts)[len(self.units[0].before) :]
