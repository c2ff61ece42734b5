"""What every test shares: properties tested without a clock, and the data beside the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: on a busy machine the clock would fail examples that are right.
settings.register_profile("house", parent=settings(), deadline=None)
settings.load_profile("house")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of the data that is never copied into the project, or skip the test."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the data set that lies beside the project, in {folder}")
    return folder
