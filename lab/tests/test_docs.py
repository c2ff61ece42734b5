"""The commands of the laboratory that a page shows parse."""

from __future__ import annotations

import shlex

import pytest

from pasta_lab.cli.app import app
from tests.test_docs import COMMANDS, parse_error

LAB = sorted({command for _, command in COMMANDS if command.startswith("pasta-lab ")})


@pytest.mark.parametrize("command", LAB)
def test_a_documented_command_of_the_laboratory_parses(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not parse_error(app, shlex.split(command, comments=True)[1:], capsys)
