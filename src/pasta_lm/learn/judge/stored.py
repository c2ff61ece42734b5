"""A judge whose verdicts are stored, and a reader whose readings are, each as it comes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pasta_lm.journal import Journal, held
from pasta_lm.learn.judge.judge import Comparison, Judge, Verdict, Winner
from pasta_lm.learn.judge.likelihood import Reader


@dataclass(frozen=True, slots=True)
class StoredJudge:
    """A ``Judge`` that asks another one about what has no stored verdict.

    Attributes:
        judge: Is asked about one comparison at a time.
        name: Of the judge; another name has other verdicts.
        progress: Called after each new verdict with their number and how many are wanted.
    """

    judge: Judge
    name: str
    journal: Journal
    progress: Callable[[int, int], None] = lambda done, total: None

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict | None]:
        """Return a verdict on each comparison, in order; None where the judge gave none.

        Raises:
            UsageError: another process writes the journal.
            PastaError: the journal cannot be written.
        """
        keys = [self.key(one) for one in comparisons]
        with held(self.journal.path.with_name(f"{self.journal.path.name}.lock")):
            self.journal.read_again()
            wanted = dict(zip(keys, comparisons, strict=True))
            missing = {key: one for key, one in wanted.items() if key not in self.journal.rows}
            for number, (key, one) in enumerate(missing.items(), start=1):
                self._ask(key, one)
                self.progress(number, len(missing))
        return [self._read(key) for key in keys]

    def key(self, comparison: Comparison) -> str:
        """Return the key of a comparison: a hash of the judge's name and of what it reads."""
        parts = [self.name, *comparison[1:]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]

    def _ask(self, key: str, comparison: Comparison) -> None:
        (verdict,) = self.judge.compare([comparison])
        row = {"id": key, "prompt_id": comparison.prompt_id, "judge": self.name}
        self.journal.append([row | {"verdict": None if verdict is None else list(verdict)}])

    def _read(self, key: str) -> Verdict | None:
        stored = self.journal.rows[key]["verdict"]
        return None if stored is None else Verdict(Winner(stored[0]), float(stored[1]))


@dataclass(frozen=True, slots=True)
class StoredReader:
    """A ``Reader`` that asks another one about what has no stored reading.

    Attributes:
        load: Loads the other one, when it is first needed.
        name: Of the reader; another name has other readings.
    """

    load: Callable[[], Reader]
    name: str
    journal: Journal

    def answer_nats(self, prompt: str, answer: str) -> list[float]:
        """Return the mean of -log p over an answer's tokens, once for each; errors as the reader's.

        Raises:
            PastaError: the journal cannot be written.
        """
        key = hashlib.sha256(json.dumps([self.name, prompt, answer]).encode()).hexdigest()[:24]
        if key not in self.journal.rows:
            nats = self.load().answer_nats(prompt, answer)
            mean = round(fmean(nats), 5) if nats else 0.0
            row = {"id": key, "reader": self.name, "num_tokens": len(nats), "nats": mean}
            self.journal.append([row])
        stored = self.journal.rows[key]
        return [float(stored["nats"])] * int(stored["num_tokens"])
