"""Speed of answers over the baseline's answers to the same prompts, by system.

Headlines are geometric means over prompts. The arithmetic mean, which a few fast prompts can raise,
stands beside it.

Source: PASTA, section 5.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError, UsageError, cause
from pasta_lm.interpreter.speed import efficiency
from pasta_lm.interpreter.trace import Role, Trace
from pasta_lm.measure.answering import TOO_LONG
from pasta_lm.measure.intervals import as_dict, geometric_mean, mean
from pasta_lm.measure.judgements import json_lines

Figures = dict[str, Any]
Systems = dict[str, dict[str, AnswerRecord]]
"""Answers by system and by prompt."""
Pairs = Sequence[tuple[AnswerRecord, AnswerRecord]]
"""Answers and the baseline's to the same prompts."""

ANSWERS = "answers.jsonl"
"""The answers in the folder of an ``alpaca`` run."""
MIN_PARALLELISM = 1e-3
"""Of an answer without content, so that the geometric mean exists."""


def speed(answers: Sequence[AnswerRecord], baseline: Sequence[AnswerRecord]) -> Figures:
    """Return the figures that need no clock, for answers to the same prompts in the same order.

    ``length_ratio`` is in characters. Failed answers, ours or the baseline's, have no speed.
    """
    pairs = _decoded(answers, baseline)
    lengths = [max(len(a.text), 1) / max(len(b.text), 1) for a, b in pairs]
    parallelism = [max(a.parallelism, MIN_PARALLELISM) for a, _ in pairs]
    return {
        "theoretical_speedup": as_dict(geometric_mean(_theoretical(pairs))),
        "parallelism": as_dict(geometric_mean(parallelism)),
        "length_ratio": as_dict(geometric_mean(lengths)),
    }


def realised(answers: Sequence[AnswerRecord], baseline: Sequence[AnswerRecord]) -> Figures:
    """Return the realised speedup over the prompts of which both answers have a clock."""
    ratios = _realised(_decoded(answers, baseline))
    return {"realised_speedup": as_dict(geometric_mean(ratios)), "num_timed": len(ratios)}


def speed_table(systems: Systems, baseline: str) -> dict[str, Figures]:
    """Return the figures of every system, the baseline first.

    Raises:
        UsageError: the baseline is no system.
    """
    if baseline not in systems:
        raise UsageError(
            f"no answers of the baseline {baseline!r}",
            hint=f"--baseline can be {', '.join(systems)}",
        )
    names = [baseline, *(name for name in systems if name != baseline)]
    return {name: _figures(systems[name], systems[baseline]) for name in names}


def speed_tables(sources: Sequence[Path], baseline: str) -> dict[str, Figures]:
    """Return the figures of the systems of several sources, the baseline first.

    If each source has answers of the baseline and no system is in two sources, a system is
    compared with the baseline of its own source, which ran on the same machine at the same time.
    Otherwise the sources are read as one.

    Raises:
        UsageError: the baseline is no system.
        InputError: a source cannot be read.
    """
    each = [read_systems([source]) for source in sources]
    others = [name for systems in each for name in systems if name != baseline]
    if any(baseline not in systems for systems in each) or len({*others}) < len(others):
        return speed_table(read_systems(sources), baseline)
    found: dict[str, Figures] = {}
    for systems in each:
        found = speed_table(systems, baseline) | found
    return {name: found[name] for name in (baseline, *others)}


def _figures(ours: Mapping[str, AnswerRecord], theirs: Mapping[str, AnswerRecord]) -> Figures:
    shared = [prompt for prompt in theirs if prompt in ours]
    answers, base = [ours[one] for one in shared], [theirs[one] for one in shared]
    pairs = _decoded(answers, base)
    timed = [(a, b) for a, b in pairs if a.wall_s and b.wall_s]
    shares = map(efficiency, _realised(timed), _theoretical(timed))
    lengths, tokens = [len(a.text) for a in answers], [a.num_content_tokens for a in answers]
    return {
        "num_prompts": len(shared),
        "num_unpaired": len(ours) + len(theirs) - 2 * len(shared),
        "num_failed": num_failed(answers),
        "kinds": sorted({one.kind or "unknown" for one in answers}),
        **speed(answers, base),
        **realised(answers, base),
        "theoretical_speedup_arithmetic": as_dict(mean(_theoretical(pairs))),
        "realised_speedup_arithmetic": as_dict(mean(_realised(pairs))),
        "parallelism_arithmetic": as_dict(mean([a.parallelism for a, _ in pairs])),
        "efficiency": as_dict(geometric_mean(list(shares))),
        "mean_characters": round(fmean(lengths), 1) if lengths else None,
        "mean_content_tokens": round(fmean(tokens), 1) if tokens else None,
    }


def num_failed(answers: Sequence[AnswerRecord]) -> int:
    """Return how many prompts did not fit the model's context."""
    return sum(one.finish_reason == TOO_LONG for one in answers)


def _decoded(answers: Sequence[AnswerRecord], baseline: Sequence[AnswerRecord]) -> Pairs:
    pairs = zip(answers, baseline, strict=True)
    return [pair for pair in pairs if not num_failed(pair)]


def _theoretical(pairs: Pairs) -> list[float]:
    return [a.theoretical_speedup(b) for a, b in pairs]


def _realised(pairs: Pairs) -> list[float]:
    return [ratio for a, b in pairs if (ratio := a.realised_speedup(b)) is not None]


def read_systems(sources: Sequence[Path]) -> Systems:
    """Read all answers of some sources.

    A source is a record file of ``pasta evaluate tasks``, the folder of an ``alpaca`` run or its
    file of answers, or a folder of traces with a folder for each system and a file for each
    prompt: ``pasta/42.json``. Of two records of one answer, the one with a clock is taken.

    Raises:
        InputError: a source cannot be read, or a row is no record.
    """
    systems: Systems = {}
    for source in sources:
        is_records = not source.is_dir() or (source / ANSWERS).exists()
        for system, prompt, answer in _records(source) if is_records else _traces(source):
            prompts = systems.setdefault(system, {})
            if prompt not in prompts or prompts[prompt].wall_s is None:
                prompts[prompt] = answer
    if not systems:
        raise InputError(f"no answers in {', '.join(map(str, sources))}")
    return systems


def _records(source: Path) -> Iterator[tuple[str, str, AnswerRecord]]:
    path = source / ANSWERS if source.is_dir() else source
    for number, row in json_lines(path):
        prompt = row.get("instruction_id", row.get("task_id"))
        system = row.get("system", row.get("strategy"))
        try:
            if not isinstance(prompt, str) or not isinstance(system, str) or "text" not in row:
                raise InputError(
                    "no record of an answer: it needs 'instruction_id' or 'task_id', 'system' or "
                    "'strategy', and 'text'"
                )
            yield system, prompt, answer_of(row)
        except InputError as exc:
            raise InputError(f"{path}:{number}: {exc.message}") from exc


def answer_of(row: Mapping[str, Any]) -> AnswerRecord:
    """Return the record in a row; figures of speed do without the keys that are left out.

    Raises:
        InputError: a key is missing or has a wrong value.
    """
    usual = {"program": "", "finish_reason": "stop", "num_illegal": 0}
    return AnswerRecord.from_row({**usual, **row})


def _traces(source: Path) -> Iterator[tuple[str, str, AnswerRecord]]:
    for path in sorted(source.glob("*/*.json")):
        try:
            trace = Trace.from_json(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as exc:
            raise InputError(f"{path} cannot be read: {cause(exc)}") from exc
        except InputError as exc:
            raise InputError(f"{path}: {exc.message}", hint=exc.hint) from exc
        tokens = [token.text for token in trace.tokens if token.role is Role.CONTENT]
        yield (
            path.parent.name,
            path.stem,
            AnswerRecord(
                text="".join(tokens),  # in the order of decoding: only its length is used
                program="",
                finish_reason=trace.finish_reason or "",
                num_illegal=trace.num_illegal,
                num_content_tokens=trace.num_content_tokens,
                critical_path=trace.critical_path,
                kind=trace.kind.value,
                wall_s=trace.wall_s or None,
            ),
        )
