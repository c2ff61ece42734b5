"""A judge without opinions: how likely frozen models find an answer, with guards of the text.

Likelihood alone rewards repetition, brevity and blandness. So nothing is gained beyond the
baseline's own answer, and what lacks or repeats parts of it loses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from statistics import fmean
from typing import NamedTuple, Protocol

from pasta_lm.errors import RequestError
from pasta_lm.learn.judge.answer_text import WORD, items_asked, items_given, repetition
from pasta_lm.learn.judge.judge import Comparison, Verdict, verdict_of

REPETITION_WEIGHT = 10.0
"""Nats per token that an answer loses by each share of repeated 4-grams beyond the baseline's.

A repeated passage is read with nearly no nats, so it lowers the mean by its share of 2 to 3."""
MISSING_WEIGHT = 5.0
"""By the share of the items asked for that is missing and is in the baseline's answer."""
SHORTNESS_WEIGHT = 5.0
"""By the share of the baseline's words that is missing, after the tolerance."""
MIN_LENGTH = 0.9
"""Share of the baseline's words; a longer answer is not short."""
SCALE = 0.25
"""Difference in nats per token at which the better answer wins with probability 0.73."""


class Reader(Protocol):
    """A model that reads, such as ``judging.local.ReadingModel``."""

    def answer_nats(self, prompt: str, answer: str) -> Sequence[float]:
        """Return -log p of each token of an answer behind its prompt; a ``RequestError`` if not."""
        ...


class Guards(NamedTuple):
    """What an answer loses to the guards, in nats per token, each at least 0."""

    repetition: float
    missing: float
    shortness: float


def guards(prompt: str, answer: str, baseline: str) -> Guards:
    """Return what an answer loses beside the baseline's own answer, plain text both."""
    repeated = _repeated(answer) - _repeated(baseline)
    lacking = _lacking(prompt, answer) - _lacking(prompt, baseline)
    length = _num_words(answer) / max(_num_words(baseline), 1)
    return Guards(
        REPETITION_WEIGHT * max(repeated, 0.0),
        MISSING_WEIGHT * max(lacking, 0.0),
        SHORTNESS_WEIGHT * max(MIN_LENGTH - length, 0.0),
    )


def _repeated(text: str) -> float:
    return sum(repetition(line for line in text.splitlines() if line.strip()))


def _lacking(prompt: str, text: str) -> float:
    """Return the share of the items asked for that is missing; 0 if the prompt says no number."""
    asked = items_asked(prompt)
    return 0.0 if asked is None else max(asked - items_given(text), 0) / asked


def _num_words(text: str) -> int:
    return len(WORD.findall(text))


@dataclass
class LikelihoodJudge:
    """A ``Judge`` by nats per token of the text under one reader or two, their mean.

    Where the baseline's own answer is known, an answer that is likelier than it counts as likely
    as it, and the guards compare with it. Else nothing is clipped, and each answer is held against
    the other one.

    Attributes:
        names: Of the readers: the frozen baseline, and optionally a second one. Without a reader
            the guards judge alone.
        load: Loads a reader by its name, when it is first needed.
        own: The baseline's own answers by prompt id.
        num_missing: Comparisons without a verdict: an answer did not fit a reader.
        has_guards: Without them likelihood alone counts, to show what each of the two adds.
    """

    names: Sequence[str]
    load: Callable[[str], Reader]
    own: dict[str, str] = field(default_factory=dict)
    num_missing: int = 0
    has_guards: bool = True
    _nats: dict[tuple[int, str, str], float] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Return the kind and the readers, as reports show them."""
        if not self.names:
            return "guards alone"
        named = f"likelihood under {' and '.join(self.names)}"
        return named if self.has_guards else f"{named}, no guards"

    @cached_property
    def _readers(self) -> list[Reader]:
        return [self.load(name) for name in self.names]

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict | None]:
        """Return a verdict on each comparison, in order; None where an answer fits no reader."""
        found: list[Verdict | None] = []
        for one in comparisons:
            try:
                found.append(verdict_of(self._first_wins(one)))
            except RequestError:
                found.append(None)
                self.num_missing += 1
        return found

    def worth(self, prompt: str, answer: str, baseline: str, *, clips: bool = True) -> float:
        """Return how good an answer is, in nats per token, the guards' losses included.

        At most what the baseline's own answer is worth if it ``clips``. An empty answer is worth
        minus infinity.

        Raises:
            RequestError: a reader cannot read the answer.
        """
        if not answer.strip():
            return -float("inf")
        nats = []
        for index in range(len(self._readers)):
            own = self._mean_nats(index, prompt, answer)
            nats.append(max(own, self._mean_nats(index, prompt, baseline)) if clips else own)
        lost = sum(guards(prompt, answer, baseline)) if self.has_guards else 0.0
        return -(fmean(nats) if nats else 0.0) - lost

    def _first_wins(self, one: Comparison) -> float:
        if one.first == one.second:
            return 0.5
        own = self.own.get(one.prompt_id, "").strip()
        texts = (one.first, own or one.second), (one.second, own or one.first)
        first, second = (self.worth(one.prompt, *pair, clips=bool(own)) for pair in texts)
        if first == second:
            return 0.5
        return 1 / (1 + exp(min(max((second - first) / SCALE, -500), 500)))

    def _mean_nats(self, reader: int, prompt: str, text: str) -> float:
        key = (reader, prompt, text)
        if key not in self._nats:
            nats = self._readers[reader].answer_nats(prompt, text)
            self._nats[key] = fmean(nats) if nats else float("inf")
        return self._nats[key]
