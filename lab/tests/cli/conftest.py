"""The command line ``pasta-lab`` to type."""

from __future__ import annotations

import pytest

from pasta_lab.cli.app import main
from tests.cli.conftest import Pasta, typing
from tests.cli.conftest import taught_folder as taught_folder
from tests.cli.conftest import untaught_folder as untaught_folder


@pytest.fixture
def pasta(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pasta:
    """Return what types a command line of the laboratory."""
    return typing(main, monkeypatch, capsys)
