"""The matrix of families: the self-test's verdict on each."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from pasta_lab.cli.app import app


@pytest.mark.slow
def test_a_family_runs_in_the_fastest_way_that_is_exact_or_is_refused_with_the_reason() -> None:
    result = CliRunner().invoke(app, ["matrix", "llama", "mamba", "openai-gpt", "doge"])
    assert "llama: flattened\nmamba: rows, one token in a pass\n" in result.stdout
    assert "openai-gpt: rows, the whole text anew in each pass\n" in result.stdout
    assert "doge: refused: DogeForCausalLM does not read a text from left" in result.stdout
    assert "- flattened (1): llama\n" in result.stdout
