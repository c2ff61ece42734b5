"""Answers as what a clock and a critical path need: from records of answers, or from traces.

A *system* is a model that answers by a strategy, under the name that tables and figures give it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError
from pasta_lm.evaluate.judgements import json_lines
from pasta_lm.interpreter.trace import Role, Trace
from pasta_lm.journal import Row

ANSWERS = "answers.jsonl"
"""The records of answers in the folder of a run."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer of one system to one prompt.

    Attributes:
        system: Who answered.
        prompt_id: What was asked.
        kind: How the answer came about; empty: not recorded.
        text: The answer; of a trace its tokens as they were decoded, for their length alone.
        num_content_tokens: Tokens of all threads, tags and topics excluded.
        critical_path: Tokens decoded one after another.
        wall_s: Seconds, where it was decoded alone; None: among others.
    """

    system: str
    prompt_id: str
    kind: str
    text: str
    num_content_tokens: int
    critical_path: int
    wall_s: float | None

    @property
    def parallelism(self) -> float:
        """Return content tokens / critical path (PASTA, section 5.1)."""
        return self.num_content_tokens / max(self.critical_path, 1)


Systems = dict[str, dict[str, Timing]]
"""By system, by prompt."""


def read_timings(sources: Sequence[Path]) -> Systems:
    """Read all answers of some sources.

    A source is a file of records (``pasta evaluate alpaca`` and ``tasks --records`` write them),
    the folder of an ``alpaca`` run, or a folder with a folder of traces for each system, a file
    for each prompt: ``pasta/42.json``.

    Of two records of one answer the one with a clock counts.

    Raises:
        InputError: a source cannot be read, or a row is no record: the first is named.
    """
    systems: Systems = {}
    for source in sources:
        found = _traces(source) if _has_traces(source) else _records(source)
        for timing in found:
            prompts = systems.setdefault(timing.system, {})
            before = prompts.get(timing.prompt_id)
            if before is None or before.wall_s is None:
                prompts[timing.prompt_id] = timing
    if not systems:
        raise InputError(f"no answers in {', '.join(map(str, sources))}")
    return systems


def timing_of(row: Row) -> Timing:
    """Return what a record says of clock and path.

    Raises:
        InputError: a key is missing or has a value that means nothing.
    """
    prompt_id = row.get("instruction_id", row.get("task_id"))
    system = row.get("system", row.get("strategy"))
    text, wall_s = row.get("text"), row.get("wall_s")
    if not isinstance(prompt_id, str) or not isinstance(system, str) or not isinstance(text, str):
        raise InputError(
            "no record of an answer: it needs 'instruction_id' or 'task_id', 'system' or "
            "'strategy', and 'text'"
        )
    if wall_s is not None and (type(wall_s) not in (int, float) or wall_s <= 0):
        raise InputError(f"'wall_s' is {wall_s!r}, not a time in seconds")
    counts = [row.get(key) for key in ("num_content_tokens", "critical_path")]
    for key, value in zip(("num_content_tokens", "critical_path"), counts, strict=True):
        if type(value) is not int or value < 0:
            raise InputError(f"{key!r} is {value!r}, not a count")
    content, path = (int(value or 0) for value in counts)
    return Timing(system, prompt_id, str(row.get("kind") or ""), text, content, path, wall_s)


def _records(source: Path) -> Iterable[Timing]:
    path = source / ANSWERS if source.is_dir() else source
    for number, row in json_lines(path):
        try:
            yield timing_of(row)
        except InputError as exc:
            raise InputError(f"{path}:{number}: {exc.message}") from exc


def _has_traces(source: Path) -> bool:
    return source.is_dir() and not (source / ANSWERS).exists()


def _traces(source: Path) -> Iterable[Timing]:
    for path in sorted(source.glob("*/*.json")):
        try:
            trace = Trace.from_json(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as exc:
            raise InputError(f"{path} cannot be read: {exc}") from exc
        except InputError as exc:
            raise InputError(f"{path}: {exc.message}", hint=exc.hint) from exc
        yield Timing(
            system=path.parent.name,
            prompt_id=path.stem,
            kind=trace.kind.value,
            text="".join(token.text for token in trace.tokens if token.role is Role.CONTENT),
            num_content_tokens=trace.num_content_tokens,
            critical_path=trace.critical_path,
            wall_s=trace.wall_s or None,
        )


def kinds(timings: Iterable[Timing]) -> list[Any]:
    """Return the kinds of some answers, each once."""
    return sorted({timing.kind or "unknown" for timing in timings})
