"""The browser of the tests itself: in CI it must be there, or nobody sees the page break."""

from __future__ import annotations

import os

import pytest

from tests.view.conftest import CHROMIUM, Open

IS_CI = os.environ.get("CI") == "true"


@pytest.mark.skipif(not (IS_CI and CHROMIUM.exists()), reason="only in CI, where Chromium is")
def test_in_ci_a_missing_package_fails_instead_of_skipping_every_browser_test() -> None:
    import axe_playwright_python
    import playwright

    assert axe_playwright_python.__name__
    assert playwright.__name__


def test_the_browser_opens_a_page(opened: Open) -> None:
    page = opened("<!doctype html><title>here</title><p>Text</p>")
    assert page.title() == "here"
    assert page.locator("p").inner_text() == "Text"
