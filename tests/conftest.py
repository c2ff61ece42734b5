"""What every test shares: properties tested without a clock, and the data beside the project."""

from __future__ import annotations

import atexit
import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: on a busy machine the clock would fail examples that are right.
settings.register_profile("house", parent=settings(), deadline=None)
settings.load_profile("house")


# The servers of the tests are on this machine, whatever proxy the environment names.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"


# Triton chooses its interpreter when it is imported, so this comes before torch.
if not [*Path("/dev").glob("nvidia*")]:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what was imported need not be searched by each collection of garbage
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of the data that is never copied into the project, or skip the test."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the data set that lies beside the project, in {folder}")
    return folder
