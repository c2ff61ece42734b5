"""The editor of tags on the served page: operations, faults, the replay beside the original."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from pasta_lm.language import parse
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import Events
from pasta_lm.view.scripted import ScriptedEngine
from tests.fakes.scripted_backend import ScriptedBackend
from tests.serve.conftest import SCRIPT, TEXT, scripted, serving
from tests.serve.runs import HOSTILE
from tests.view.conftest import expect, faults_of, serious_faults

FASTER = SCRIPT.replace("Three ways", '<async topic="intro">Three ways').replace(
    " \U0001f35d:", " \U0001f35d:</async>"
)


class Editing:
    """A page with a finished answer whose tags are being edited, and what was sent from then on."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.bodies: list[dict[str, Any]] = []
        self.faults = faults_of(page, "status of 400")  # the browser's own line about a refusal
        page.goto(address)
        page.get_by_label("Prompt", exact=True).fill("How do I live well?")
        page.get_by_role("button", name="Ask", exact=True).click()
        page.locator(".savers button").first.wait_for()
        page.get_by_role("button", name="pasta", exact=True).click()
        page.get_by_role("button", name="Edit the tags").click()
        page.on("request", self._note)
        self.area = page.get_by_label("Answer with its tags")
        page.locator(".edit-figures .figure").first.wait_for()

    def _note(self, sent: Any) -> None:
        if "/v1/replay" in sent.url:
            self.bodies.append(sent.post_data_json)

    @property
    def text(self) -> str:
        return str(self.area.input_value())

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def select(self, text: str) -> None:
        self.area.evaluate(
            """(area, text) => {
                const start = area.value.indexOf(text);
                area.focus();
                area.setSelectionRange(start, start + text.length);
            }""",
            text,
        )

    @property
    def selected(self) -> str:
        return str(
            self.area.evaluate("area => area.value.slice(area.selectionStart, area.selectionEnd)")
        )

    @property
    def behind_the_caret(self) -> str:
        return str(self.area.evaluate("area => area.value.slice(area.selectionStart)"))

    def wait_for_figures(self, text: str) -> None:
        self.page.locator(".edit-figures", has_text=text).wait_for()

    def wait_for_word(self, text: str) -> None:
        self.page.locator(".editor [role=status]", has_text=text).wait_for()

    @property
    def runs(self) -> list[str]:
        return [str(name) for name in self.page.locator(".run-name").all_inner_texts()]


@contextmanager
def editing(browser: Any, app: FastAPI | None = None, **settings: Any) -> Iterator[Editing]:
    with serving(app or create_app(scripted())) as (_, address):
        context = browser.new_context(**settings)
        found = Editing(context.new_page(), address)
        yield found
        context.close()
        assert not found.faults


@pytest.fixture
def editor(browser: Any) -> Iterator[Editing]:
    with editing(browser) as made:
        yield made


def test_edited_tags_are_replayed_beside_the_original_with_figures_before_and_after(
    editor: Editing,
) -> None:
    assert editor.text == SCRIPT
    editor.wait_for_figures("1.08 → 1.08")
    editor.area.fill(FASTER)
    editor.wait_for_figures("26 → 25 critical path")  # read from the tags, before any replay
    editor.press("Replay")
    editor.wait_for_figures("edited, replayed")
    told = editor.page.locator(".edit-figures").inner_text()
    assert "1.00 → 1.04 theoretical speedup" in " ".join(told.split())
    assert "1.08 → 1.12 parallelism" in " ".join(told.split())
    assert editor.runs == ["pasta", "same text, one thread", "edited"]
    expect(editor.page.locator(".picture")).to_have_count(3)
    shown = editor.page.locator("#written .token:not(.off)").all_text_contents()
    assert parse("".join(shown)).annotator_form() == FASTER
    (body,) = editor.bodies
    assert (body["response"], body["form"]) == (FASTER, "annotator")
    assert body["messages"] == [{"role": "user", "content": "How do I live well?"}]
    editor.press("Replay")
    editor.page.get_by_role("button", name="edited 2", exact=True).wait_for()


def test_selected_words_become_a_block_and_a_block_becomes_words(editor: Editing) -> None:
    editor.select("is all")
    editor.press("Make this a block")
    made = SCRIPT.replace(" is all", '<async topic="is all"> is all</async>')
    assert (editor.text, editor.selected) == (made, "is all")
    editor.page.keyboard.type("end")  # the topic is selected, so typing replaces it
    assert editor.text == made.replace('"is all"', '"end"')
    editor.select("often")
    editor.press("Remove this block")
    assert '<async topic="eat">' not in editor.text
    assert parse(editor.text, "annotator").plain_text == TEXT
    editor.area.press("Control+z")
    assert '<async topic="eat">' in editor.text


REFUSED = {
    "no selection": ("Make this a block", "", "Select the words"),
    "a block inside a block": ("Make this a block", "single day", "hold no other blocks"),
    "half a block": ("Make this a block", "sun.</async><async", "begins or ends inside"),
    "no block here": ("Remove this block", "That", "in no block"),
    "a sync inside a block": ("Insert sync", "single", "never inside"),
}


def test_operations_that_make_no_sense_say_why_and_change_nothing(editor: Editing) -> None:
    for operation, selected, told in REFUSED.values():
        editor.select(selected)
        editor.press(operation)
        editor.wait_for_word(told)
        assert editor.text == SCRIPT
    # The blocks inside a selection make way for the one around them.
    blocks = SCRIPT[SCRIPT.index("<async") : SCRIPT.index("<sync/>")]
    editor.select(blocks)
    editor.press("Make this a block")
    document = parse(editor.text, "annotator")
    assert (len(document.blocks), document.plain_text) == (1, TEXT)


def test_a_fault_is_told_at_its_line_and_column_with_the_caret_there(editor: Editing) -> None:
    wrong = SCRIPT.replace("often", "\U0001f600 </async> often").replace(
        "</async><sync/>", "<sync/>"
    )
    wrong = wrong.replace(" That", " \U0001f600 </async>That")
    editor.area.fill(wrong)
    stray = editor.page.locator(".faults .error").first
    stray.wait_for()
    line = wrong.split("\n")[2]
    column = line.rindex("</async>") + 1  # in characters; the smile is two units of the browser's
    expect(stray).to_contain_text(f"Line 3, column {column}", use_inner_text=True)
    expect(editor.area).to_have_attribute("aria-invalid", "true")
    editor.press("Replay")
    editor.wait_for_word(f"line 3, column {column}")
    assert editor.behind_the_caret == wrong[wrong.rindex("</async>") :]
    editor.select("Three")
    stray.get_by_role("button").click()
    assert editor.behind_the_caret == wrong[wrong.rindex("</async>") :]
    assert editor.runs == ["pasta", "same text, one thread"]
    editor.press("Start again")
    editor.page.locator(".faults .error").first.wait_for(state="detached")
    assert editor.text == SCRIPT


def test_a_changed_text_is_said_to_be_another_answer_and_replayed_as_it_stands(
    editor: Editing,
) -> None:
    editor.area.fill(SCRIPT.replace("greens", "pasta"))
    editor.wait_for_word("text has changed")
    editor.press("Replay")
    editor.page.get_by_role("button", name="edited", exact=True).wait_for()
    editor.wait_for_figures("replayed")
    editor.wait_for_word("text has changed")
    assert "pasta" in "".join(editor.page.locator("#answer .token").all_text_contents())


class Slow(ScriptedBackend):
    """A backend that decodes nothing while it is held."""

    def __init__(self) -> None:
        super().__init__(ScriptedEngine(parse(SCRIPT, "annotator")))
        self.is_held = False

    async def step(self) -> Events:
        if self.is_held:
            await asyncio.sleep(0.005)
            return []
        return await super().step()


def test_a_replay_is_stopped_by_its_button_and_by_a_new_question(browser: Any, until: Any) -> None:
    backend = Slow()
    with editing(browser, create_app(backend)) as editor:
        for stop in ("Stop", "Close"):
            backend.is_held = True
            editor.press("Replay")
            until(lambda: backend.has_work)
            editor.press(stop)
            until(lambda: not backend.has_work)
            backend.is_held = False
            assert editor.runs == ["pasta", "same text, one thread"]
        editor.press("Edit the tags")
        editor.press("Ask")
        editor.page.get_by_role("button", name="Edit the tags").wait_for()
        expect(editor.area).not_to_be_visible()


def test_a_hostile_answer_is_edited_as_text(browser: Any) -> None:
    text = f'{HOSTILE}<async topic="&lt;b>x&quot;">{HOSTILE}</async>end &lt;sync/>'
    app = create_app(ScriptedBackend(ScriptedEngine(parse(text, "annotator"))))
    with editing(browser, app) as editor:
        assert parse(editor.text, "annotator") == parse(text, "annotator")
        editor.area.fill(f"{HOSTILE}</async>")
        editor.page.locator(".faults .error").first.wait_for()
        expect(editor.page.locator(".editor b, .editor img, .editor script")).to_have_count(0)
        assert editor.page.title() != "taken"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_editor(browser: Any, scheme: str) -> None:
    with editing(browser, color_scheme=scheme, bypass_csp=True) as editor:
        editor.area.fill(f"{SCRIPT}</async>")
        editor.page.locator(".faults .error").first.wait_for()
        assert not serious_faults(editor.page)
