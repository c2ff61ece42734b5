"""Debian's Chromium for the tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.serve.app import create_app
from tests.fakes.scripted_backend import ScriptedBackend
from tests.serve.conftest import LIMIT_S, serving, until

__all__ = ["until"]

CHROMIUM = Path("/usr/bin/chromium")
Open = Callable[..., Any]


def expect(locator: Any) -> Any:
    """Return Playwright's assertions on a locator, which wait until they hold.

    The page acts after an event, so what a test reads at once may be what was there before.
    """
    from playwright.sync_api import expect as assertions

    assertions.set_options(timeout=1000 * LIMIT_S)
    return assertions(locator)


def faults_of(page: Any, *ignored: str) -> list[str]:
    """Return the list into which errors and console lines of a page go."""
    faults: list[str] = []

    def hear(text: str) -> None:
        if not any(part in text for part in ignored):
            faults.append(text)

    page.set_default_timeout(1000 * LIMIT_S)
    page.on("pageerror", lambda error: hear(str(error)))
    page.on("console", lambda line: hear(line.text))
    return faults


def asked_of(page: Any) -> list[dict[str, Any]]:
    """Return the list into which the bodies of all later questions and replays go."""
    bodies: list[dict[str, Any]] = []
    asks = ("/chat/completions", "/v1/replay")
    page.on("request", lambda one: one.url.endswith(asks) and bodies.append(one.post_data_json))
    return bodies


def serious_faults(page: Any) -> list[tuple[str, str]]:
    """Return the violations of accessibility that axe sees, with their elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    violations = axe.run(page).response["violations"]
    return [(rule["id"], rule["nodes"][0]["html"]) for rule in violations]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}; `apt-get install chromium` installs it")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Return what opens a page from a file; the test fails if the page reports an error."""
    pages = []

    def open_file(html: str, **settings: Any) -> Any:
        file = tmp_path / "page.html"
        file.write_text(html, encoding="utf-8")
        page = browser.new_context(**settings).new_page()
        faults = faults_of(page)
        pages.append((page, faults))
        page.on("request", lambda sent: faults.append(sent.url) if "file:" not in sent.url else 0)
        page.goto(file.as_uri())
        return page

    yield open_file
    for page, faults in pages:
        page.context.close()
        assert not faults


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Return what opens a page of a backend; the test fails if the page reports an error."""
    faults: list[list[str]] = []
    with ExitStack() as open_things:

        def open_page(
            backend: ScriptedBackend, path: str = "/", *, key: str | None = None, **settings: Any
        ) -> Any:
            _, address = open_things.enter_context(serving(create_app(backend, api_key=key)))
            context = browser.new_context(base_url=address, **settings)
            open_things.callback(context.close)
            page = context.new_page()
            # The browser writes down each refusal and each broken connection that the page tells.
            faults.append(faults_of(page, "Failed to load resource"))
            page.goto(path)
            return page

        yield open_page
    assert not any(faults)
