"""What a task is: a prompt, the units of its answer, what each must say and which it needs.

Everything that is known about a task is known by construction: the generator that wrote the prompt
also wrote the answer, unit by unit, with the units whose text each one cannot do without.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Split(StrEnum):
    """Which share of the words, values and wordings a task is drawn from."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"
    HARD = "hard"
    """Words, values and wordings of ``test``; more records than the usual prompt has."""


class Dependence(StrEnum):
    """How the units of a family's answers depend on one another."""

    FREE = "free"
    """No unit needs another: all of them can be written at the same time."""
    SYNC = "sync"
    """Free units, and then text that needs what was written in them."""
    CHAIN = "chain"
    """Each unit needs the one before."""
    SHORT = "short"
    """Units too short, or too few, for a fork to pay."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a unit must say.

    Attributes:
        value: Words that must stand in the unit, whole.
        cues: One of these must stand in the same sentence or line; none: the value is enough.
    """

    value: str
    cues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """One part of an answer: what a block may hold.

    Attributes:
        text: What the answer says, white space at the ends excluded.
        anchor: The word or words by which a reader knows where the unit begins.
        topic: What a promise of this unit says: at most three words.
        facts: What must be said, at least one.
        needs: Indices of earlier units whose *written text* this one cannot do without. What it
            can read in the prompt, or in an earlier topic, it does not need.
        fork: Whether a thread of its own pays: it is long enough and others can run beside it.
        before: White space, or text of the answer, between the unit before and this one.
        weight: Its share of the grade, relative to the other units.
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
        id: Stable: family, split and seed.
        family: The name of its family.
        split: Where its words, values and wordings come from.
        prompt: What the model is asked.
        units: The parts of the reference answer in reading order, at least one.
        records: The part of the prompt that holds the data, as it stands there.
        candidates: Every word of the prompt's data that a unit could get wrong.
        preface: What the answer says before its first unit, white space after it included.
        ordered: Whether units out of order make the answer wrong.
        dependence: How the units depend on one another.
        pair: Id that the two tasks of a minimal pair share; None: the task has no twin.
        palette: Words of which every unit must say one, as its own first fact, and no two the same.
        drawn: What was drawn at random (names, words, numbers): masked when templates are compared.
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
        """Return the same task with more words that a unit could get wrong."""
        return replace(self, candidates=self.candidates.union(words))

    def with_palette(self, words: Iterable[str]) -> Task:
        """Return the same task with words to choose from, each at most once."""
        return replace(self, palette=frozenset(words))

    @property
    def text(self) -> str:
        """Return the reference answer as a reader gets it: preface, units and what is between."""
        return self.preface + self.body

    @property
    def body(self) -> str:
        """Return the reference answer without its preface."""
        parts = [unit.before + unit.text for unit in self.units]
        return "".join(parts)[len(self.units[0].before) :]

    @property
    def allows_gain(self) -> bool:
        """Tell whether anything of the answer can be written in parallel."""
        return sum(unit.fork for unit in self.units) > 1
