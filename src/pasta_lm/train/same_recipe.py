"""Go on with a run of stage two under the recipe that began it, and under no other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import write_rows
from pasta_lm.train.judge_config import JudgeConfig
from pasta_lm.train.preference_config import PreferenceConfig

FILE = "recipe.json"

MAY_CHANGE = {
    *("model.base", "model.baseline", "data.file", "rollouts.files", "train.out"),  # moved
    *("train.rounds", "train.workers", "train.log_steps", "train.save_steps"),
    *("train.tensorboard", "rollouts.pool_tokens"),
    *("judge.base_url", "judge.api_key_env", "judge.journal", "judge.max_missing"),
    *("judge.timeout_s", "judge.max_in_flight"),
    *("judge.input_price", "judge.output_price", "judge.cost_limit"),
}
"""Keys that change no figure of the rounds that are there; paths, because files may be moved."""


def check_same_recipe(config: PreferenceConfig) -> None:
    """Write down beside a run what its recipe says; of a run that has begun, hold it against that.

    Raises:
        UsageError: the run in ``train.out`` was begun with other numbers; they are named.
        InputError: what was written down cannot be read.
    """
    path = Path(config.train.out) / FILE
    wanted = dict(_flat(asdict(config), ""))
    if not path.exists() or not has_begun(path.parent):
        write_rows(path, [wanted])
        return
    # A run that was begun before there was a choice had the grader.
    before = {**dict(_flat({"judge": asdict(JudgeConfig())}, "")), **_read(path)}
    for key in sorted(wanted.keys() - MAY_CHANGE):
        if key not in before or before[key] != wanted[key]:
            raise UsageError(
                f"{config.train.out} was begun with {key} {before.get(key)!r}, and the recipe now "
                f"says {wanted[key]!r}",
                hint="name another folder under train.out",
            )


def has_begun(out: Path) -> bool:
    """Tell whether something of a round is on disk."""
    return any(out.glob("round-*/*"))


def _flat(table: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    """Yield every key with its path; infinity has no JSON, so numbers are written as text."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{place}{key}.")
        elif isinstance(value, tuple):
            yield f"{place}{key}", list(value)
        else:
            yield f"{place}{key}", str(value) if isinstance(value, float) else value


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InputError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(found, dict):
        raise InputError(f"{path} is no JSON object")
    return found
