"""The matrix of families: the self-test's verdict on each, and the lists of the page."""

from __future__ import annotations

import pytest

from pasta_lab.cli.matrix import WIDTH, examine, page_lines


@pytest.mark.parametrize(
    ("family", "way"), [("llama", "flattened"), ("mamba", "STEPS"), ("openai-gpt", "WHOLE")]
)
def test_a_family_runs_in_the_fastest_way_that_is_exact(family: str, way: str) -> None:
    assert examine(family) == (way, "")


def test_a_family_that_is_not_causal_is_refused_with_the_reason() -> None:
    assert examine("doge") == ("refused", "not read from left to right")


def test_the_page_lists_names_by_way_and_reasons_of_refusals() -> None:
    verdicts = {f"family{number}": ("flattened", "") for number in range(40)}
    lines = [*page_lines(verdicts | {"odd": ("refused", "not causal"), "even": ("PARTS", "")})]
    assert "42 families" in lines[0]
    assert "- **Refused** (1): odd (not causal)" in lines
    assert "- **Rows, texts read in parts** (1): even" in lines
    assert max(map(len, lines)) <= WIDTH
