"""Rollouts written by hand, and a judge that looks its verdicts up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.learn.data.preferences import Rollout
from pasta_lm.learn.judge import Comparison


def sample(
    text: str = "Yes.", *, path: int = 10, content: int = 12, reason: str = "stop",
    num_illegal: int = 0,
) -> AnswerRecord:  # fmt: skip
    """Return an answer of one sentence; its figures are what they are said to be."""
    counts = {"num_illegal": num_illegal, "num_content_tokens": content, "critical_path": path}
    return AnswerRecord(text=text, program=text, finish_reason=reason, **counts)


def rollout(*samples: AnswerRecord, name: str = "task", baseline: int = 20) -> Rollout:
    """Return samples of a prompt to which the baseline answered with so many tokens."""
    return Rollout(name, "Is it?", sample("Well.", path=baseline), samples)


@dataclass
class GradeBook:
    """A judge that knows what each answer is worth, and writes down what it was asked."""

    grades: Mapping[str, float]
    asked: list[Comparison] = field(default_factory=list)
    num_calls: int = 0

    def compare(self, comparisons: Sequence[Comparison]) -> list[float]:
        self.num_calls += 1
        self.asked += comparisons
        return [self.grades[one.first] - self.grades[one.second] for one in comparisons]
