"""The command line ``pasta-lab`` to type."""

from __future__ import annotations

import sys

import pytest
from transformers.utils.logging import disable_progress_bar

from pasta_lab.cli.app import main
from tests.cli.conftest import Pasta, Result
from tests.cli.conftest import taught_folder as taught_folder
from tests.cli.conftest import untaught_folder as untaught_folder


@pytest.fixture
def pasta(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pasta:
    """Return what types a command line of the laboratory."""
    # What it asks of the libraries would outlive the test, and comes too late for this process.
    monkeypatch.setattr("pasta_lm.cli.terminal.silence_libraries", lambda: None)
    disable_progress_bar()

    def typed(*arguments: object, **environment: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["pasta-lab", *map(str, arguments)])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        return Result(
            code if isinstance(code, int) else int(code is not None), *capsys.readouterr()
        )

    return typed
