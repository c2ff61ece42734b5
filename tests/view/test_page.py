"""The exported page: complete in itself, closed by its policy, and right in a browser."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from typing import Any

import pytest

from pasta_lm.view.page import STATIC, joined_modules, page_of
from pasta_lm.view.run_data import run_data
from tests.serve.runs import FLAT, HOSTILE, answered, wide
from tests.view.conftest import CHROMIUM, Open, expect, serious_faults

MODULES = sorted(STATIC.glob("*.js"))


def exported(*texts: str) -> str:
    return page_of([run_data(answered(text).trace, "pasta") for text in texts])


# --- the file


def test_the_page_names_nothing_outside_and_its_policy_has_the_hashes_of_script_and_styles() -> (
    None
):
    page = exported(FLAT)
    found = set(re.findall(r"https?://[^\"'\s)]+", page)) - {"http://www.w3.org/2000/svg"}
    assert not found
    assert not re.findall(r"""(?:src|href)=["'](?!#)|@import|^import """, page, re.MULTILINE)

    for kind, open_tag in {"script": '<script type="module">', "style": "<style>"}.items():
        text = page.split(open_tag)[1].split(f"</{kind}>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page
    assert "unsafe" not in page.split("<body>")[0]


def test_a_models_text_cannot_end_the_script_that_holds_it() -> None:
    page = exported(f"</script><script>{HOSTILE}<!--")
    data = page.split('id="runs">')[1].split("</script>")[0]
    assert "<" not in data
    assert data.isascii()
    assert page.count("</script>") == 2


def test_top_level_names_differ_in_all_modules_and_none_is_left_out() -> None:
    joined = joined_modules()
    names = re.findall(r"^(?:async )?(?:class|function|const|let) (\w+)", joined, re.MULTILINE)
    assert len(names) == len(set(names))
    assert not re.findall(r"^(?:import|export) ", joined, re.MULTILINE)
    for module in MODULES:
        assert module.read_text("utf-8").splitlines()[0] in joined, module.name


# --- in a browser


def shown(page: Any, root: str) -> str:
    """Return the text that stands in an answer now, numbers of threads left out."""
    texts = page.locator(f"{root} .token:not(.off)").all_text_contents()
    return "".join(texts)


def test_the_run_is_there_to_its_end_and_stepping_shows_what_was_written_by_then(
    opened: Open,
) -> None:
    answer = answered(FLAT)
    page = opened(exported(FLAT))
    assert shown(page, "#answer") == answer.text
    assert shown(page, "#written") == answer.program
    assert page.locator(".labels button").all_inner_texts() == [
        "m\nmain",
        "1\nfirst part",
        "2\nsecond part",
    ]
    assert page.locator(".critical, .fork, .sync, .waits, .ghost").count() >= 6

    for passes in reversed(range(answer.trace.forward_passes)):
        page.keyboard.press(",")
        data = [one for one in answer.trace.tokens if one.decoded_step < passes]
        assert page.locator("#written .token:not(.off)").count() == len(data)
    page.keyboard.press(".")
    assert page.locator(".reading").inner_text().startswith("pass 1 of")


def test_replay_runs_from_the_start_to_the_end(opened: Open) -> None:
    page = opened(exported(FLAT), reduced_motion="reduce")
    page.get_by_label("Speed of the replay").select_option("4")
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Play").wait_for()
    assert shown(page, "#answer") == answered(FLAT).text


def test_a_picked_token_shows_exactly_what_its_thread_could_see(opened: Open) -> None:
    page = opened(exported(FLAT))
    page.locator("#answer .token", has_text="epsilon").click()
    seen = "".join(page.locator("#written .seen").all_text_contents())
    promises = (
        '<promise topic="first part" tokens="1"/> And<promise topic="second part" tokens="1"/>'
    )
    assert seen == f"Two.{promises}<async>delta"
    told = page.locator("#inspector").inner_text()
    assert "3 tokens of the prompt" in told
    assert "hidden from it" in told
    page.locator("#written .token", has_text="Both").click()
    assert "alpha beta gamma" in "".join(page.locator("#written .seen").all_text_contents())
    page.keyboard.press("Escape")
    expect(page.locator(".seen, .picked")).to_have_count(0)


def test_pointing_marks_the_thread_in_all_views_and_keys_reach_every_token_and_thread(
    opened: Open,
) -> None:
    page = opened(exported(FLAT))
    page.locator("#answer .token", has_text="beta").hover()
    for focused in (".row.focus", ".labels .focus", "#written .part.focus", "#answer .part.focus"):
        expect(page.locator(focused)).to_have_count(1)
    page.locator(".picture").hover(position={"x": 300, "y": 65})
    assert page.locator(".labels .focus").inner_text() == "2\nsecond part"

    page.locator("#answer").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.locator("#answer .picked").inner_text().strip() == "beta"
    page.locator(".labels button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#inspector")).to_contain_text("first part", use_inner_text=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("picks", [False, True], ids=["at rest", "inspected"])
def test_axe_finds_nothing_serious(opened: Open, scheme: str, picks: bool) -> None:
    page = opened(exported(FLAT), color_scheme=scheme, bypass_csp=True)
    page.locator("#table summary").click()
    if picks:
        page.locator("#answer .token", has_text="epsilon").click()
    assert not serious_faults(page)


def test_sixty_five_threads_fit_a_phone_and_a_frame_of_replay_is_little_work(opened: Open) -> None:
    page = opened(exported(wide(64)), viewport={"width": 360, "height": 700})
    expect(page.locator(".row")).to_have_count(65)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    changed = page.evaluate(
        """() => {
            let count = 0;
            const watcher = new MutationObserver((all) => { count += all.length; });
            watcher.observe(document.body, { subtree: true, childList: true, attributes: true });
            document.dispatchEvent(new KeyboardEvent("keydown", { key: ",", bubbles: true }));
            count += watcher.takeRecords().length;
            return count;
        }"""
    )
    assert changed < 1000


IS_CI = os.environ.get("CI") == "true"


@pytest.mark.skipif(not (IS_CI and CHROMIUM.exists()), reason="only in CI, where Chromium is")
def test_in_ci_a_missing_package_fails_instead_of_skipping_every_browser_test() -> None:
    import axe_playwright_python
    import playwright

    assert axe_playwright_python.__name__
    assert playwright.__name__
