"""The served page: asking, watching an answer while it is decoded, comparing, saving."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language import parse
from pasta_lm.language.document import Document
from pasta_lm.language.events import Text
from pasta_lm.parts import declared as parts
from pasta_lm.serve.protocol import ClientPrompt
from pasta_lm.view.page import page_of
from pasta_lm.view.run_data import run_data
from tests.fakes.scripted_backend import HeldBackend, ScriptedBackend
from tests.serve.conftest import DOCUMENT, TEXT, held, poisoned, scripted
from tests.serve.runs import FLAT, HOSTILE, answered
from tests.view.conftest import Open, asked_of, expect, serious_faults

QUESTION = "How do I live well?"
ALL_FOUR = ("sequential", "pasta", "apar", "sot")


class Watched:
    """A page in a browser, with what it sent."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.bodies = asked_of(page)

    def ask(self, question: str = QUESTION) -> Self:
        self.page.get_by_label("Prompt").fill(question)
        self.page.get_by_role("button", name="Ask").click()
        return self

    def wait(self) -> None:
        """Wait until nothing is asked any more."""
        self.page.get_by_role("button", name="Ask").wait_for()

    def finish(self) -> None:
        """Wait until the answer is replayed by one thread."""
        self.page.get_by_role("button", name="same text, one thread").wait_for()
        self.wait()

    def shown(self, root: str) -> str:
        return "".join(self.page.locator(f"{root} .token:not(.off)").all_text_contents())

    def written(self, num_tokens: int) -> None:
        self.page.locator("#written .token:not(.off)").nth(num_tokens - 1).wait_for()

    @property
    def said(self) -> str:
        return str(self.page.locator(".ask [role=status]").inner_text())


Watching = Callable[..., Watched]


@pytest.fixture
def watching(visit: Open) -> Watching:
    return lambda backend, **settings: Watched(visit(backend, **settings))


@pytest.fixture
def watched(watching: Watching) -> Watched:
    return watching(scripted())


# --- asking


def test_an_example_is_asked_with_one_click_pasta_first_and_then_sequentially(
    watched: Watched,
) -> None:
    examples = watched.page.locator(".examples button")
    assert examples.count() >= 6
    question = examples.nth(2).inner_text()
    examples.nth(2).click()
    watched.finish()
    asked, replayed = watched.bodies
    assert asked["pasta"]["strategy"] == "pasta"
    assert (replayed["form"], replayed["response"]) == ("plain", TEXT)
    assert {one["messages"][0]["content"] for one in watched.bodies} == {question}
    expect(watched.page.locator(".picture")).to_have_count(2)


FILLED = {"guest": "Ms Novak", "hotel": "Hotel Aurora", "city": "Lisbon", "room": "double"}
FILLED |= {"nights": 4, "price_in_euros": 96, "paid": None, "number": "HX-2207"}  # type: ignore[dict-item]


class FillingBackend(ScriptedBackend):
    """Fields in threads that also write what stands behind them; another answer in JSON mode."""

    def __init__(self) -> None:
        fields = (f'<async topic="{key}"> {json.dumps(FILLED[key])},</async>' for key in FILLED)
        super().__init__(ScriptedEngine(parse("".join(fields), "annotator")))

    def prepare(self, prompt: ClientPrompt, params: SamplingParams) -> Request:
        if params.structured_outputs is None:
            return super().prepare(prompt, params)
        other = Document((Text(json.dumps({**FILLED, "nights": 18})),))
        return self.prepare_replay(prompt, other, None)

    def filled(self, answer: Answer, schema: Any, document: str) -> parts.PartsAnswer:
        known = {**dict.fromkeys(FILLED, 1.0), "nights": 0.316}
        return replace(parts.filled(answer, schema, document), confidence=known)


def fields_shown(watched: Watched, run: int) -> dict[str, str]:
    table = watched.page.locator(".field-list").nth(run)
    names = [text.split()[-1] for text in table.locator("tbody th").all_inner_texts()]
    return dict(zip(names, table.locator("td:not(.likely)").all_inner_texts(), strict=True))


def test_fields_of_a_text_stand_with_their_keys_beside_one_thread_and_json_mode(
    watching: Watching, opened: Open, tmp_path: Path
) -> None:
    watched = watching(FillingBackend(), accept_downloads=True)
    page = watched.page
    page.get_by_label("Fields of a document").check(force=True)
    page.get_by_role("button", name="A letter, eight fields").click()
    page.get_by_role("button", name="JSON mode").wait_for()
    page.get_by_role("button", name="Fill").wait_for()
    asked, replayed, held_to_schema = watched.bodies
    assert (asked["pasta"]["parts"], "strategy" in asked["pasta"]) == (True, False)
    assert held_to_schema["pasta"]["strategy"] == "sequential"
    assert asked["response_format"] == held_to_schema["response_format"]
    schema = asked["response_format"]["json_schema"]["schema"]
    assert [*schema["properties"]] == schema["required"] == [*FILLED]
    assert schema["additionalProperties"] is False
    assert json.loads(replayed["response"]) == FILLED
    told = ["null" if value is None else str(value) for value in FILLED.values()]
    assert [*fields_shown(watched, 0)] == [*FILLED]
    assert [*fields_shown(watched, 0).values()] == [*fields_shown(watched, 1).values()] == told
    assert fields_shown(watched, 2) == {**fields_shown(watched, 0), "nights": "18"}
    expect(page.locator(".run-figures").first).to_contain_text("times fewer than the same text")
    expect(page.locator(".likely").first).to_have_text("100 %")
    expect(page.locator(".other")).to_have_text("18")  # where JSON mode has another value
    expect(page.locator(".place").first).to_have_text("Ms Novak")
    assert not re.search(r"[,}]", watched.shown("#answer"))
    for _ in range(8):  # as it was written: a value, its beginning, or nothing
        page.locator("#player").press(",")
        shown = [value for run in (0, 1) for value in fields_shown(watched, run).values()]
        assert all(map(str.startswith, told * 2, shown))
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save page").click()
    saved = opened(Path(waiting.value.path()).read_text("utf-8"))
    expect(saved.locator(".field-list").last.locator("td:not(.likely)")).to_have_text(told)
    expect(saved.locator(".doubted")).to_have_text("31 % look again")


def test_ones_own_text_and_schema_are_sent_and_a_bad_schema_is_refused_at_its_place(
    watching: Watching,
) -> None:
    watched = watching(FillingBackend())
    page = watched.page
    page.get_by_label("Fields of a document").check(force=True)
    page.get_by_label("Text", exact=True).fill("A letter of mine")
    told = page.get_by_role("alert")
    faults = {'{"type": ': "no JSON", '{"type": "array"}': "not 'object'"}
    faults |= {"guest strange": "no kind strange", "guest, guest": "twice", "a b c": "not a name"}
    for schema, reason in faults.items():
        page.get_by_label("JSON schema").fill(schema)
        page.get_by_role("button", name="Fill").click()
        expect(told).to_contain_text(reason)
        expect(page.get_by_label("JSON schema")).to_have_attribute("aria-invalid", "true")
    page.reload()
    expect(page.get_by_label("Text", exact=True)).to_have_value("A letter of mine")
    page.get_by_label("JSON schema").fill("guest, nights int")
    page.get_by_label("JSON mode").uncheck()
    page.get_by_label("JSON schema").press("Control+Enter")
    page.get_by_role("button", name="same text, one thread").wait_for()
    assert {one["messages"][0]["content"] for one in watched.bodies} == {"A letter of mine"}
    schema = watched.bodies[-2]["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"guest": {"type": "string"}, "nights": {"type": "integer"}}
    assert schema["required"] == ["guest", "nights"]


def test_an_example_of_the_page_is_one_of_the_examples_beside_the_package(watched: Watched) -> None:
    page, folder = watched.page, Path(__file__).parents[2] / "examples"
    page.get_by_label("Fields of a document").check(force=True)
    page.get_by_role("button", name="An invoice, ten fields").click()
    rows = map(json.loads, (folder / "invoices.jsonl").read_text("utf-8").splitlines())
    shown = page.get_by_label("Text", exact=True).input_value()
    assert shown in [row["text"] for row in rows]
    schema = json.loads((folder / "invoice.schema.json").read_text("utf-8"))
    assert json.loads(page.get_by_label("JSON schema").input_value()) == schema


def test_times_beside_json_mode_are_divided_only_where_both_are_whole(watched: Watched) -> None:
    told = {(4, None): "4.00 s, 2.0 times as long.", (1, None): "1.00 s, 2.0 times as fast."}
    told |= {(2.05, None): "no slower", (9, 400): "cut by a limit at 400 tokens: the times do not"}
    call = "(runs) => import('/fields.js').then((module) => module.verdict(...runs, 0))"
    for (wall_s, cut_at), sentence in told.items():
        facts = {"kind": "generated", "wall_s": wall_s, "cut_at": cut_at}
        run = {"isComplete": True, "threads": [0, 1], "facts": facts}
        cold = {**facts, "wall_s": 7, "cut_at": None}  # it has computed the prompt, in 5 s
        runs = [{**run, "facts": cold, "prefill_s": 5}, run]
        assert sentence in watched.page.evaluate(call, runs)


@pytest.mark.parametrize("can_replay", [True, False])
def test_strategies_of_which_the_model_is_not_capable_are_not_offered(
    watching: Watching, can_replay: bool
) -> None:
    backend = scripted(name="plain")
    backend.strategies, backend.can_replay = ("sequential", "sot", "prompt-lookup"), can_replay
    backend.facts = {"parameters": "90M"} if can_replay else {"quality": "often wrong"}
    watched = watching(backend)
    page, told = watched.page, "plain · 90M parameters" if can_replay else "often wrong"
    page.locator("#facts", has_text=told).wait_for()
    expect(page.locator("#facts .warning")).to_have_count(0 if can_replay else 1)
    expect(page.get_by_label("JSON schema")).to_be_visible()  # it works without promises
    page.get_by_label("A question").check(force=True)
    expect(page.locator(".introduction")).to_contain_text("not taught")
    expect(page.locator(".lesson")).to_have_count(0)
    values = [one.get_attribute("value") for one in page.locator(".strategies input").all()]
    assert values == ["same text, one thread"] * can_replay + ["sequential", "sot"]
    expect(page.get_by_label("sequential")).to_be_checked()
    page.get_by_label("sot").check()
    watched.ask().wait()
    page.locator(".run-name").nth(1 + can_replay).wait_for()
    asked = [one["pasta"].get("strategy") for one in watched.bodies]
    assert asked == (["sot", None, "sequential"] if can_replay else ["sequential", "sot"])


def test_where_one_writes_keys_are_characters_enter_asks_and_with_shift_begins_a_line(
    watched: Watched,
) -> None:
    watched.ask().finish()
    before = watched.page.locator(".reading").inner_text()
    watched.page.get_by_text("Settings").click()
    for field, text in {"Temperature": "0.7", "Prompt": "One, two."}.items():
        box = watched.page.get_by_label(field)
        box.fill("")
        box.press_sequentially(text)
        expect(box).to_have_value(text)
    expect(watched.page.locator(".reading")).to_have_text(before, use_inner_text=True)
    box.press("Shift+Enter")
    box.press_sequentially("Three")
    box.press("Enter")
    watched.finish()
    assert watched.bodies[-2]["messages"][0]["content"] == "One, two.\nThree"


def test_stop_ends_the_answer_on_the_server_and_keeps_what_was_written(
    watching: Watching, until: Callable[[Callable[[], bool]], None]
) -> None:
    backend = held()
    watched = watching(backend)
    watched.ask()
    backend.allow(9)
    watched.written(6)
    watched.page.get_by_role("button", name="Stop").click()
    watched.wait()
    assert watched.said == "Stopped."
    assert watched.shown("#answer")
    expect(watched.page.locator(".run-figures")).to_have_text("stopped", use_inner_text=True)
    until(lambda: not backend.has_work)
    backend.may_step.set()
    watched.ask().finish()
    assert watched.shown("#answer") == TEXT


def test_what_the_server_refuses_is_told(watched: Watched) -> None:
    replies = [json.dumps({"error": {"message": "it is full"}}), "<h1>Bad gateway</h1>"]
    asks = "**/v1/chat/completions"
    watched.page.route(asks, lambda route: route.fulfill(status=503, body=replies.pop(0)))
    for told in ("is full", "status 503"):
        watched.ask().wait()
        expect(watched.page.locator(".ask [role=status]")).to_contain_text(told)
    watched.page.unroute(asks)
    watched.ask()
    watched.page.get_by_role("button", name="same text, one thread").wait_for()


def test_an_answer_that_fails_halfway_stays_there_as_far_as_it_came(watching: Watching) -> None:
    watched = watching(poisoned(QUESTION, 8))
    watched.ask().wait()
    assert "engine" in watched.said
    assert TEXT.startswith(watched.shown("#answer")[:10])
    assert watched.page.locator(".labels button").count() > 1


def test_question_strategies_and_settings_are_sent_and_survive_a_reload_and_the_key_does_not(
    watching: Watching,
) -> None:
    backend = scripted()
    backend.strategies = ALL_FOUR
    watched = watching(backend, key="very secret")
    page = watched.page
    page.get_by_label("API key").fill("very secret")
    page.get_by_text("Settings").click()
    for name, value in {"Temperature": "0.7", "Max tokens": "30", "Seed": "7"}.items():
        page.get_by_label(name).fill(value)
    page.get_by_label("sot").check()
    page.get_by_label("same text, one thread").uncheck()
    watched.ask("Do you remember this?")
    page.locator(".run-name", has_text="sot").wait_for()
    watched.wait()
    assert [one["pasta"]["strategy"] for one in watched.bodies] == ["pasta", "sot"]
    for body in watched.bodies:
        assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.7, 30, 7)
        assert "max_threads" not in body["pasta"]
    kept = page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])")
    assert "remember" in kept
    assert "secret" not in kept
    page.reload()
    page.get_by_label("API key").wait_for()
    expect(page.get_by_label("Prompt")).to_have_value("Do you remember this?")
    expect(page.get_by_label("Temperature")).to_have_value("0.7")
    expect(page.get_by_label("same text, one thread")).not_to_be_checked()
    expect(page.get_by_label("API key")).to_have_value("")


def test_a_click_that_ends_the_typing_of_the_key_meets_what_was_under_it(
    watching: Watching,
) -> None:
    page = watching(scripted(), key="very secret").page
    page.get_by_label("API key").fill("very secret")
    page.get_by_text("Settings").hover()
    with page.expect_response("**/v1/models") as reply:
        page.mouse.down()  # the field loses the focus, and the key is tried
    reply.value.finished()
    expect(page.get_by_role("status")).not_to_be_empty()  # until the pointer goes up
    page.wait_for_timeout(100)
    page.mouse.up()
    page.get_by_label("Temperature").wait_for()
    expect(page.get_by_role("status")).to_be_empty()


def test_the_chat_is_one_click_away_in_the_same_theme_and_a_file_has_neither(
    watching: Watching, opened: Open
) -> None:
    watched = watching(scripted(), color_scheme="light")
    watched.page.get_by_role("button", name="Switch between light and dark").click()
    watched.page.get_by_role("link", name="Chat").click()
    watched.page.locator("html.dark .composer").wait_for()
    watched.page.get_by_role("link", name="Compare").click()
    watched.page.get_by_label("Prompt").wait_for()
    file = opened(page_of([run_data(answered(FLAT).trace, "pasta")]))
    expect(file.locator("a")).to_have_count(0)


# --- while it is decoded


def test_threads_topics_tags_and_visibility_are_there_while_it_is_decoded(
    watching: Watching,
) -> None:
    backend = held(num_steps=14)
    watched = watching(backend)
    watched.ask().written(18)
    page = watched.page
    labels = page.locator(".labels button").all_inner_texts()
    assert labels[:2] == ["m\nmain", "1\nwalk"]
    assert '<promise topic="walk" tokens="1"/><async> Walk' in watched.shown("#written")
    page.locator("#answer .token", has_text="Walk").click()
    seen = "".join(page.locator("#written .seen").all_text_contents())
    assert seen.endswith('<promise topic="walk" tokens="1"/><async>')
    told = page.locator("#inspector .sight").inner_text()
    assert "5 tokens of the prompt" in told
    backend.may_step.set()
    watched.finish()
    # The same run became the stored one: what was picked is picked, and sees the same.
    assert "".join(page.locator("#written .seen").all_text_contents()) == seen
    expect(page.locator("#inspector .sight")).to_have_text(told, use_inner_text=True)
    assert watched.shown("#written") == DOCUMENT.with_lengths(lambda text: 1).program


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_while_it_is_decoded_with_settings_open(
    watching: Watching, scheme: str
) -> None:
    backend = held(num_steps=14)
    watched = watching(backend, color_scheme=scheme, bypass_csp=True)
    page = watched.page
    for state in ("idle", "live", "picked", "over", "fields"):
        if state == "live":
            page.get_by_text("Settings").click()
            watched.ask().written(16)
        elif state == "picked":
            page.locator("#answer .token", has_text="Walk").click()
        elif state == "over":
            backend.may_step.set()
            watched.finish()
            page.get_by_text("Examples").click()
        elif state == "fields":
            page.get_by_label("Fields of a document").check(force=True)
            page.get_by_label("JSON schema").fill("{")
            page.get_by_role("button", name="Fill").click()
            page.get_by_role("alert").get_by_text("no JSON").wait_for()
        assert not serious_faults(page), state


def test_a_hostile_megabyte_in_one_line_is_text_and_the_page_stays_usable(
    watching: Watching,
) -> None:
    text = f'{HOSTILE}<async topic="<b>x</b>">{HOSTILE}{"long" * 250_000}</async><sync/>end'
    backend = HeldBackend(parse(text, "annotator"), num_steps=1000)
    watched = watching(backend, viewport={"width": 390, "height": 800})
    page = watched.page
    page.get_by_label("same text, one thread").uncheck()  # too long for a replay
    watched.ask()
    page.get_by_role("button", name="pasta").wait_for()
    watched.wait()
    assert "long" * 250_000 in watched.shown("#answer")
    expect(page.locator("#answer script, #answer img, #written b, #timeline b")).to_have_count(0)
    assert "\u202e" not in watched.shown("#answer")
    assert page.title() != "taken"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#answer").press(",")
    page.locator("#answer .token").first.click()
    expect(page.locator("#inspector")).to_contain_text("Its thread could see", use_inner_text=True)


# --- comparing and saving


def test_each_strategy_has_figures_on_one_clock_and_none_has_a_speedup_where_a_limit_cut_it(
    watching: Watching,
) -> None:
    backend = scripted()
    backend.strategies = ALL_FOUR
    watched = watching(backend)
    for name in ALL_FOUR:
        watched.page.get_by_label(name).check()
    watched.ask()
    watched.page.get_by_role("button", name="sot").wait_for()
    watched.wait()
    page = watched.page
    names = page.locator(".run-name").all_inner_texts()
    assert names == ["pasta", "same text, one thread", "sequential", "apar", "sot"]
    strategies = ["pasta", "sequential", *names[2:]]
    runs = [trace_of(backend, name) for name in strategies]
    for run, line in zip(runs, page.locator(".run-figures").all_inner_texts(), strict=True):
        large, told = line.split("\n")
        assert large.startswith(f"{run.forward_passes} pass")
        speedup = f"{runs[1].forward_passes / run.forward_passes:.2f} times fewer than the same"
        assert told.startswith(speedup) is (run.strategy != "sequential")
    page.get_by_text("Figures").first.click()
    told = page.locator(".more-figures").first.inner_text()
    assert f"{runs[0].parallelism:.2f} parallelism" in told
    assert f"{runs[0].critical_path} critical path" in told
    expect(page.get_by_role("button", name="pasta")).to_have_attribute("aria-pressed", "true")
    page.get_by_text("Settings").click()
    page.get_by_label("Max tokens").fill("20")
    watched.ask().wait()
    page.get_by_role("button", name="sot").wait_for()
    watched.wait()
    expect(page.locator(".run-figures").first).to_contain_text("cut at")
    assert not re.search("sooner|times", page.locator("#timeline").inner_text())


LIST = """\
Two *good* ways:

1. **Walk:**<async topic="walk"> Every *day*, `far`
   - uphill</async>
2. **Sleep:**<async topic="sleep"> [Eight](https://example.org/a) hours.

```python
sleep(8)</async>
```
<sync/> **Both** help."""


def test_answers_stand_beside_each_other_as_markdown_in_the_colours_of_threads(
    watching: Watching,
) -> None:
    backend = HeldBackend(parse(LIST, "annotator"))
    watched = watching(backend, viewport={"width": 1200, "height": 900})
    page = watched.page
    watched.ask()
    backend.allow(12)
    page.locator(".live .part.hue-0.writing").wait_for()
    backend.may_step.set()
    watched.finish()
    answers = page.locator(".column")
    threads, alone = answers.nth(0), answers.nth(1)
    expect(threads.locator("li strong")).to_have_text(["Walk:", "Sleep:"])
    expect(threads.locator("ol > li").first.locator(".hue-0 .chip")).to_have_count(1)
    expect(threads.locator("ul .part.hue-0")).to_have_text("uphill")
    expect(threads.locator("pre .part.hue-1")).to_have_text("sleep(8)")
    expect(alone.locator(".part:not(.hue-main)")).to_have_count(0)
    texts = [one.locator(".markdown").inner_text() for one in (threads, alone)]
    assert texts[0] == texts[1]
    assert threads.bounding_box()["y"] == alone.bounding_box()["y"]
    page.get_by_label("Colours of threads").uncheck()
    expect(threads.locator(".chip").first).to_be_hidden()
    page.set_viewport_size({"width": 390, "height": 844})
    expect(alone).to_be_hidden()
    assert threads.bounding_box()["y"] < page.locator("#timeline").bounding_box()["y"]
    page.get_by_role("tab", name="same text, one thread").click()
    expect(alone).to_be_visible()


def trace_of(backend: ScriptedBackend, strategy: str) -> Trace:
    request = backend.prepare(ClientPrompt(QUESTION, strategy), SamplingParams(max_tokens=1024))
    (answers,) = ScriptedEngine(DOCUMENT).generate([request])
    return answers[0].trace


def test_the_page_is_saved_as_pasta_view_writes_it_and_opens_offline(
    watching: Watching, opened: Open, tmp_path: Path
) -> None:
    watched = watching(scripted(), accept_downloads=True)
    watched.ask().finish()
    files = {}
    for name in ("Save page", "Save trace"):
        with watched.page.expect_download() as waiting:
            watched.page.get_by_role("button", name=name).click()
        waiting.value.save_as(tmp_path / "file")
        files[name] = (tmp_path / "file").read_text("utf-8")
    trace = Trace.from_json(files["Save trace"])
    before, _, rest = files["Save page"].partition('id="runs">')
    data, _, after = rest.partition("</script>")
    assert f'{before}id="runs">[]</script>{after}' == page_of([])
    assert data.isascii()
    assert "<" not in data
    runs = json.loads(data)
    names = [one["name"] for one in runs]
    assert names == ["same text, one thread", "pasta"]  # the last one is shown
    expected = run_data(trace, "pasta")
    assert runs[1] == json.loads(json.dumps(expected))
    page = opened(files["Save page"])
    assert "".join(page.locator("#answer .token:not(.off)").all_text_contents()) == TEXT
