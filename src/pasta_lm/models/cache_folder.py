"""The folder of what can be made again: read models, measurements, compiled functions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """Return ``pasta-lm`` in the user's cache folder; ``XDG_CACHE_HOME`` names another one."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pasta-lm"


def remembered(name: str, key: str, measure: Callable[[], Any]) -> Any:
    """Return a measurement, as JSON: made once for each key, then read from a file of the folder.

    A file that is broken is written anew; a machine without a place for it measures each time.
    """
    file = cache_folder() / name
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        known = json.loads(file.read_text(encoding="utf-8"))
    if key not in known:
        known[key] = measure()
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(known, indent=1), encoding="utf-8")
            part.replace(file)
    return known[key]
