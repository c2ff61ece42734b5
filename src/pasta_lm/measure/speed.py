"""Speed of answers over the baseline's to the same prompts, by system; means are geometric.

Source: PASTA, section 5.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.trace import efficiency
from pasta_lm.journal import Row, read_objects
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.measure.answering import TOO_LONG
from pasta_lm.measure.table import Figures, Interval, KeyPath, Report, geometric_mean

Records = Sequence[AnswerRecord]
Answers = Mapping[str, AnswerRecord]  # by prompt
Systems = defaultdict[str, dict[str, AnswerRecord]]  # answers by system and by prompt
Pairs = Sequence[tuple[AnswerRecord, AnswerRecord]]  # our answers and the baseline's, by prompt

ANSWERS = "answers.jsonl"  # the answers in the folder of an ``alpaca`` run
KEYS = (("system", "strategy"), ("instruction_id", "task_id", "prompt_id"))
"""The keys of a row that name its system, and its prompt; the first one counts."""
USUAL = {"program": "", "finish_reason": "stop", "num_illegal": 0}
"""Defaults of keys that a row may leave out: figures of speed do not need them."""
MAX_LENGTH_CHANGE = 0.1  # a larger one, against the baseline, and there is no speedup
MIN_PARALLELISM = 1e-3  # for an answer without content, so that the geometric mean exists
TITLES = {
    "theoretical_speedup": "theoretical speedup", "realised_speedup": "realised speedup",
    "efficiency": "realised / theoretical", "tokens_per_s": "tokens/s",
    "baseline_tokens_per_s": "the baseline's tokens/s",
    "num_cut": "answers cut at a limit, of both", "parallelism": "parallelism",
    "length_ratio": "length ratio, characters", "num_failed": "failed prompts",
}  # fmt: skip
SPEEDUPS = {key for key in TITLES if "speedup" in key} | {"efficiency"}
RATES = {"tokens_per_s", "baseline_tokens_per_s", "num_cut"}  # in tables without speedups
TIMED = (SPEEDUPS | RATES) - {"num_cut", "theoretical_speedup"}
"""Figures over the timed prompts alone."""


def speed(answers: Records, baseline: Records) -> dict[str, Interval | None]:
    """Return the figures that need no clock, of answers to the same prompts in the same order.

    ``length_ratio`` is in characters. Failed answers, ours or the baseline's, have no speed.
    """
    pairs = _decoded(zip(answers, baseline, strict=True))
    lengths = [max(len(a.text), 1) / max(len(b.text), 1) for a, b in pairs]
    return {
        "theoretical_speedup": geometric_mean(_theoretical(pairs)),
        "parallelism": geometric_mean([max(a.parallelism, MIN_PARALLELISM) for a, _ in pairs]),
        "length_ratio": geometric_mean(lengths),
    }


def realised(answers: Records, baseline: Records) -> Figures:
    ratios = _realised(_decoded(zip(answers, baseline, strict=True)))
    return {"realised_speedup": geometric_mean(ratios), "num_timed": len(ratios)}


def timed_figures(pairs: Pairs) -> Figures:
    return {
        "realised_speedup": geometric_mean(_realised(pairs)),
        "efficiency": geometric_mean([*map(efficiency, _realised(pairs), _theoretical(pairs))]),
        "tokens_per_s": _tokens_per_s([ours for ours, _ in pairs]),
        "baseline_tokens_per_s": _tokens_per_s([baseline for _, baseline in pairs]),
    }


def speed_report(sources: Sequence[Path], baseline: str) -> Report:
    """Return the figures of the systems of several sources, the baseline first.

    If each source has answers of the baseline and no system is in two sources, a system is
    compared with the baseline of its own source, which ran on the same machine at the same time.
    Otherwise the sources are read as one.
    """
    runs = [read_systems([source]) for source in sources]
    others = [name for systems in runs for name in systems if name != baseline]
    if any(baseline not in systems for systems in runs) or len({*others}) < len(others):
        runs = [read_systems(sources)]
        if baseline not in runs[0]:
            hint = f"--baseline can be {', '.join(runs[0])}"
            raise UsageError(f"no answers of the baseline {baseline!r}", hint=hint)
    report = Report("Speed")
    report.add((), {"baseline": baseline})
    add_speed(report, ("systems", baseline), runs[0][baseline], runs[0][baseline])
    for systems in runs:
        for name, answers in systems.items():
            if name != baseline:
                add_speed(report, ("systems", name), answers, systems[baseline])
    return report


def add_speed(
    report: Report, path: KeyPath, ours: Answers, theirs: Answers,
    clocks: tuple[Answers, Answers] | None = None,
) -> None:  # fmt: skip
    """Add a system's figures over the prompts of both sides.

    Answers of other lengths, or cut ones, have tokens per second instead of speedups in tables.
    ``clocks`` are timed answers of both sides, if the others are not timed themselves.
    """
    shared = [prompt for prompt in theirs if prompt in ours]
    answers, base = [ours[prompt] for prompt in shared], [theirs[prompt] for prompt in shared]
    pairs = _decoded(zip(answers, base, strict=True))
    our_times, their_times = clocks or (ours, theirs)
    names = [name for name in shared if name in our_times and name in their_times]
    both = _decoded((our_times[name], their_times[name]) for name in names)
    timed = [(a, b) for a, b in both if a.wall_s and b.wall_s]
    num_cut = sum(record.finish_reason == "length" for pair in pairs for record in pair)
    figures: Figures = {
        **speed(answers, base), **timed_figures(timed),
        "num_timed": len(timed), "num_prompts": len(shared),
        "num_unpaired": len(ours) + len(theirs) - 2 * len(shared),
        "num_failed": num_failed(answers), "num_cut": num_cut,
        "kinds": sorted({record.kind or "unknown" for record in answers}),
    }  # fmt: skip
    reasons = [f"{num_cut} answers were cut at a limit"] if num_cut else []
    length: Interval | None = figures["length_ratio"]
    if length and abs(length.mean - 1) > MAX_LENGTH_CHANGE:
        reasons.append(f"lengths are {length.mean:.2f} of the baseline's")
    reason = "" if ours == theirs else " and ".join(reasons)
    left_out = SPEEDUPS if reason else RATES
    titles = {key: title for key, title in TITLES.items() if key not in left_out}
    in_order = {key: figures[key] for key in titles} | figures
    report.add(path, in_order, titles, len(shared), dict.fromkeys(TIMED, len(timed)))
    kinds = f"kind: {', '.join(figures['kinds'])}"
    report.note(path, f"{kinds}; no speedup is given: {reason}" if reason else kinds)


def num_failed(answers: Iterable[AnswerRecord]) -> int:
    return sum(record.finish_reason == TOO_LONG for record in answers)


def _decoded(pairs: Iterable[tuple[AnswerRecord, AnswerRecord]]) -> Pairs:
    return [pair for pair in pairs if not num_failed(pair)]


def _theoretical(pairs: Pairs) -> list[float]:
    return [a.theoretical_speedup(b) for a, b in pairs]


def _realised(pairs: Pairs) -> list[float]:
    return [ratio for a, b in pairs if (ratio := a.realised_speedup(b)) is not None]


def _tokens_per_s(answers: Records) -> float | None:
    wall_s = sum(record.wall_s or 0.0 for record in answers)
    num_tokens = sum(record.num_content_tokens for record in answers)
    return round(num_tokens / wall_s, 2) if wall_s else None


def read_systems(sources: Sequence[Path]) -> Systems:
    """Read all answers of some sources: files of records, or folders of ``alpaca`` runs."""
    files = [source / ANSWERS if source.is_dir() else source for source in sources]
    systems = systems_of((f"{file}:{n}", row) for file in files for n, row in read_objects(file))
    if not systems:
        raise InputError(f"no answers in {', '.join(map(str, sources))}")
    return systems


def systems_of(rows: Iterable[tuple[str, Row]]) -> Systems:
    """Return the answers by system, of two to a prompt the timed one; ``rows`` come with names."""
    systems: Systems = defaultdict(dict)
    for name, row in rows:
        system, prompt = (next((row[key] for key in keys if key in row), None) for keys in KEYS)
        try:
            if not isinstance(prompt, str) or not isinstance(system, str) or "text" not in row:
                needs = "'instruction_id' or 'task_id', 'system' or 'strategy', and 'text'"
                raise InputError(f"no record of an answer: it needs {needs}")
            answer = AnswerRecord.from_row({**USUAL, **row})
        except InputError as exc:
            raise InputError(f"{name}: {exc.message}") from exc
        if prompt not in systems[system] or systems[system][prompt].wall_s is None:
            systems[system][prompt] = answer
    return systems
