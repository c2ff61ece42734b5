"""One answer as a row of a file: its text, how it ended, and the counts behind its speed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Self

from pasta_lm.engines.request import Answer
from pasta_lm.errors import InputError
from pasta_lm.interpreter import trace
from pasta_lm.journal import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """One answer as a row of a file: its text, how it ended, and the counts behind its speed."""

    text: str  # without tags
    program: str  # the written form; the annotator form where blocks promise no length (APAR)
    finish_reason: str  # ``stop``, or the limit that cut it
    num_illegal: int  # tags where the grammar has none
    num_content_tokens: int  # tokens of all threads, tags and topics excluded
    critical_path: int  # tokens that were decoded one after another, tags included
    num_threads: int | None = None  # main included; None: not recorded
    kind: str | None = None  # how it came about, a value of ``Kind``; None: not recorded
    wall_s: float | None = None  # seconds, if decoded alone; None among others
    num_thought_tokens: int | None = None  # tokens of the thought before it; None: not recorded

    @classmethod
    def of(cls, answer: Answer, *, is_timed: bool = False) -> Self:
        trace = answer.trace
        return cls(
            text=answer.text, program=answer.program, finish_reason=answer.finish_reason,
            num_illegal=trace.num_illegal, num_content_tokens=trace.num_content_tokens,
            critical_path=trace.critical_path, num_threads=len(trace.threads),
            kind=trace.kind.value, wall_s=trace.wall_s if is_timed else None,
            num_thought_tokens=trace.num_thought_tokens,
        )  # fmt: skip

    @classmethod
    def from_row(cls, row: Row) -> Self:
        """Read the record's keys from a row, or raise an ``InputError``; others are left alone."""
        values = {field.name: row[field.name] for field in fields(cls) if field.name in row}
        for key in ("text", "program", "finish_reason"):
            if not isinstance(values.get(key), str):
                raise InputError(f"{key!r} is {values.get(key)!r}, not a text")
        for key in ("num_illegal", "num_content_tokens", "critical_path"):
            if type(values.get(key)) is not int or values[key] < 0:
                raise InputError(f"{key!r} is {values.get(key)!r}, not a count")
        wall_s = values.get("wall_s")
        if wall_s is not None and (type(wall_s) not in (int, float) or wall_s <= 0):
            raise InputError(f"'wall_s' is {wall_s!r}, not a time in seconds")
        return cls(**values)

    def to_row(self) -> Row:
        return asdict(self)

    @property
    def is_well_formed(self) -> bool:
        """Return whether it ended by itself and every tag stood where the grammar has one."""
        return self.finish_reason == "stop" and not self.num_illegal

    @property
    def parallelism(self) -> float:
        """Return content tokens / critical path; exactly 1 for one thread."""
        counts = self.num_content_tokens, self.critical_path
        return trace.parallelism(*counts, is_parallel=self.num_threads != 1)

    def theoretical_speedup(self, baseline: AnswerRecord) -> float:
        return trace.theoretical_speedup(baseline.critical_path, self.critical_path)

    def realised_speedup(self, baseline: AnswerRecord) -> float | None:
        if not self.wall_s or not baseline.wall_s:
            return None
        return trace.realised_speedup(baseline.wall_s, self.wall_s)
