"""The modules of ``runs/paper_small``, which are no part of the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "runs" / "paper_small"


@pytest.fixture(scope="module")
def paper() -> Iterator[dict[str, Any]]:
    """Return them by name."""
    names = [path.stem for path in FOLDER.glob("*.py")]
    sys.path.insert(0, str(FOLDER))
    yield {name: __import__(name) for name in names}
    sys.path.remove(str(FOLDER))
    for name in names:
        del sys.modules[name]
