"""From which checkpoint a run goes on: the newest that was written to its end."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pasta_lm.train.processes import is_first

LAST_FILE = "trainer_state.json"
"""The file that the Trainer writes last: a checkpoint that has it has all others."""

_NAME = re.compile(r"checkpoint-(\d+)")


def newest_checkpoint(out: Path) -> Path | None:
    """Return the newest checkpoint of a run that is whole; those left out are said by name.

    A run that was killed may have been writing one.

    Args:
        out: The run's folder; it may not exist.
    """
    for folder in _newest_first(out):
        if _is_whole(folder):
            return folder
        _say(f"{folder} was not written to its end: it is left out")
    _say(f"no checkpoint in {out}: starting anew")
    return None


def _newest_first(out: Path) -> Iterator[Path]:
    folders = {int(name[1]): path for path in out.glob("*") if (name := _NAME.fullmatch(path.name))}
    yield from (folders[step] for step in sorted(folders, reverse=True) if folders[step].is_dir())


def _is_whole(folder: Path) -> bool:
    try:
        state = json.loads((folder / LAST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(state, dict)


def _say(line: str) -> None:
    if is_first():
        print(f"pasta: {line}", file=sys.stderr)  # noqa: T201
