"""What a speedup is held against besides the baseline: perfect forks, speculation, other shapes.

Speed that a user would have without any forks is that of the fastest exact sequential way. What
part of a gain is overhead that threads share, the cost of a step of several rows tells, and the
same programs replayed at a larger shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pasta_lm.errors import InputError
from pasta_lm.evaluate.answered import Answered
from pasta_lm.evaluate.comparison import Beside
from pasta_lm.evaluate.intervals import geometric_mean
from pasta_lm.evaluate.measured import Measured, Speed
from pasta_lm.evaluate.pairing import speed_ratio
from pasta_lm.evaluate.quality import as_dict
from pasta_lm.strategies.model import EXACT_SEQUENTIAL

Figures = dict[str, Any]


def fastest_sequential(measured: Sequence[Measured]) -> Measured | None:
    """Return the point with the shortest clocks whose tokens are the sequential ones.

    None where no such point was timed. Plain decoding is one of them, if it is a point.
    """
    ways = [one for one in measured if one.point.strategy in EXACT_SEQUENTIAL]
    timed = [(fmean(logs.values()), one) for one in ways if (logs := one.log_speed(Speed.REALISED))]
    return max(timed, key=lambda pair: pair[0])[1] if timed else None


def over(fastest: Measured | None, one: Measured) -> dict[str, float] | None:
    """Return a point's realised speed over that of the fastest sequential way; None without it."""
    return None if fastest is None else as_dict(speed_ratio(one, fastest, Speed.REALISED))


def of_perfect(one: Measured) -> Figures | None:
    """Return which share of the speed of perfect forks a point has, over its timed prompts.

    Both were decoded in the same turn; None where nothing was replayed beside the point.
    """
    both = [name for name in one.timed if name in one.perfect]
    if not both or one.is_bound:
        return None
    pairs = [(one.timed[name], one.perfect[name]) for name in both]
    paths = [] if one.is_guessed else [_path(b) / _path(a) for a, b in pairs]
    return {
        "num_prompts": len(both),
        Speed.THEORETICAL.value: as_dict(geometric_mean(paths)),
        Speed.REALISED.value: as_dict(
            geometric_mean([b.wall_s / a.wall_s for a, b in pairs if a.wall_s and b.wall_s])
        ),
    }


def _path(answered: Answered) -> int:
    return max(answered.critical_path, 1)


def found_beside(files: Sequence[Beside]) -> list[Figures]:
    """Return what measurements beside the points say, or the command of one that was not made.

    Raises:
        InputError: a file is there and is no JSON object.
    """
    return [{"name": one.name, "command": one.command, "found": _read(one)} for one in files]


def _read(beside: Beside) -> Mapping[str, Any] | None:
    path = Path(beside.file)
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InputError(f"{path} is no JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise InputError(f"{path} is no JSON object")
    return found
