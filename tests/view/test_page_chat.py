"""The chat of the served page, in a browser: turns, variants, what is kept, and hostile text."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.language import parse
from pasta_lm.view.page import STATIC
from tests.fakes.scripted_backend import HeldBackend, ScriptedBackend
from tests.serve.conftest import TEXT, scripted
from tests.serve.runs import HOSTILE
from tests.view.conftest import Open, asked_of, expect, serious_faults

MODULES = sorted({*STATIC.rglob("*.js")} - {*(STATIC / "vendor").rglob("*.js")})
VENDOR = STATIC / "vendor"
QUESTION = "How do I live well?"
ROOT = Path(__file__).parents[2]

MARKDOWN = """\
# Ways to *rest*

A paragraph with **bold**, `x < y` and a [link](https://example.org/a?b=c).

1. One
2. Two
   - Inside

| a | b |
|---|--:|
| 1 | 22 |

```python
print("<b>")
```
> quoted ~~gone~~
"""


# --- files


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_a_module_parses_no_html_and_imports_what_its_neighbour_exports(module: Path) -> None:
    text = module.read_text("utf-8")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in text
    imports = re.findall(r'^import \{ ([\w, ]+) \} from "(\.[\w./-]+)";$', text, re.MULTILINE)
    vendored = re.findall(r'^import \w+ from "(\.\./vendor/[\w./-]+)";$', text, re.MULTILINE)
    assert len(imports) + len(vendored) == len(re.findall(r"^import ", text, re.MULTILINE))
    assert all((module.parent / path).is_file() for path in vendored)
    for names, neighbour in imports:
        for name in names.split(", "):
            there = (module.parent / neighbour).read_text("utf-8")
            assert re.search(
                rf"^export (?:async )?(?:class|function\*?|const) {name}\b", there, re.M
            )


def test_vendored_files_are_those_that_the_table_names_and_have_their_licence() -> None:
    table = (VENDOR / "README.md").read_text("utf-8")
    folders = [one for one in VENDOR.iterdir() if one.is_dir()]
    assert folders
    for folder in folders:
        (module,) = folder.glob("*.js")
        assert hashlib.sha256(module.read_bytes()).hexdigest() in table
        assert "Permission is hereby granted" in (folder / "LICENSE").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {path for one in project["license-files"] for path in ROOT.glob(one)}
    assert {folder / "LICENSE" for folder in folders} <= named


# --- in a browser


def answering(text: str) -> ScriptedBackend:
    return ScriptedBackend(ScriptedEngine(parse(text, "annotator")))


def pausing() -> ScriptedBackend:
    """Return a script that pauses after some steps, so that a browser sees it being written."""
    words = " ".join(f"w{number}" for number in range(400))
    text = f'Begin<async topic="left"> {words}</async><async topic="right"> {words}</async><sync/>.'
    return HeldBackend(parse(text, "annotator"), num_steps=40)


@pytest.fixture
def chatting(visit: Open) -> Open:
    return partial(visit, path="chat.html")


def ask(page: Any, question: str) -> None:
    page.get_by_label("Your question").fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()


def finished(page: Any, number: int = 1) -> None:
    page.locator(f".turn:nth-child({number}) .figures strong").first.wait_for()


def converse(page: Any, *questions: str) -> None:
    """Ask each question when the one before is answered."""
    for number, question in enumerate(questions, start=page.locator(".turn").count() + 1):
        ask(page, question)
        finished(page, number)


def set_up(page: Any, **values: str) -> None:
    """Fill fields of the sheet of settings, by their names with an underscore for each space."""
    page.get_by_role("button", name="Settings").click()
    for name, value in values.items():
        page.get_by_label(name.replace("_", " ")).fill(value)
    page.get_by_role("button", name="Close").click()


def after_two_turns(chatting: Open) -> tuple[Any, list[dict[str, Any]]]:
    page = chatting(scripted())
    bodies = asked_of(page)
    converse(page, QUESTION, "And then?")
    return page, bodies


def test_two_turns_are_answered_and_the_second_is_asked_with_the_first(chatting: Open) -> None:
    page, bodies = after_two_turns(chatting)
    assert [one["role"] for one in bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert bodies[1]["messages"][1]["content"] == TEXT
    assert bodies[1]["pasta"] == {"strategy": "pasta", "stream": "events", "trace": True}
    line = page.locator(".turn:last-child .figures").inner_text()
    assert re.fullmatch(
        r"\d+ steps\n4 threads, \S+ (times (fewer|more)|many) steps (than|as) one\nFigures", line
    )
    page.get_by_text("Figures").last.click()
    for name in ("theoretical speedup", "parallelism", "critical path"):
        expect(page.locator(".turn:last-child .more-figures")).to_contain_text(name)


def test_an_answer_that_a_limit_cut_is_continued_at_its_end_with_other_settings(
    chatting: Open,
) -> None:
    page = chatting(scripted())
    bodies = asked_of(page)
    set_up(page, Max_tokens="12", Seed="7")
    converse(page, QUESTION)
    expect(page.locator(".figures")).to_contain_text("cut at", use_inner_text=True)
    set_up(page, Max_tokens="1024", Fork_bias="-2", Top_p="0.9")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".figures")).not_to_contain_text("cut at", use_inner_text=True)
    first, second = bodies
    before = second["messages"][-1]
    assert (before["role"], second["continue_final_message"]) == ("assistant", True)
    assert (second["max_tokens"], second["top_p"], first["seed"]) == (1024, 0.9, 7)
    assert (first["pasta"].get("fork_bias"), second["pasta"]["fork_bias"]) == (None, -2)
    converse(page, "And then?")
    assert bodies[2]["messages"][1]["content"] == before["content"] + TEXT


def test_threads_are_seen_to_write_and_stop_keeps_what_they_wrote_and_readers_hear_it_once(
    chatting: Open,
) -> None:
    page = chatting(pausing())
    ask(page, "Write at once")
    page.locator(".live .hue-0.writing", has_text="w2").wait_for()
    page.locator(".live .hue-1.writing", has_text="w2").wait_for()
    assert page.locator(".lanes .bar").count() >= 3
    expect(page.locator("main :is([aria-live], [role=status], [role=log])")).to_have_count(0)
    assert page.locator("#heard").inner_text() == ""
    page.get_by_role("button", name="Stop").click()
    page.locator(".mark").wait_for()
    assert page.locator("#heard").inner_text().startswith("Stopped, ")
    text = page.locator(".markdown").inner_text()
    assert len(re.findall(r"\bw2\b", text)) == 2
    assert "w399" not in text
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
    page.reload()
    assert page.locator(".markdown").inner_text() == text
    bodies = asked_of(page)
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Stop").click()
    (body,) = bodies
    assert (body["messages"][-1]["role"], body["continue_final_message"]) == ("assistant", True)
    assert len(re.findall(r"\bw2\b", body["messages"][-1]["content"])) == 2


def test_a_stopped_answer_has_every_block_in_its_place_and_no_skeleton(chatting: Open) -> None:
    page = chatting(scripted())
    texts = page.evaluate(
        """async () => {
            const { Answering } = await import("./chat/answering.js");
            return ["pasta", "sot"].map((strategy) => {
                const answering = new Answering({ strategy });
                const { run } = answering;
                const forks = strategy === "pasta" ? [1, 2] : [null, null];
                const write = (thread, text, role = "content", child = null) =>
                    run.addToken({ thread, text, role, decoded: 0, forks: child });
                run.addThread({ id: 0, parent: null, spans: [] });
                write(0, "One ");
                run.addThread({ id: 1, parent: 0, spans: [] });
                write(0, '" tokens="1"/>', "tag", forks[0]);
                run.addThread({ id: 2, parent: 0, spans: [] });
                write(0, '" tokens="1"/>', "tag", forks[1]);
                write(2, "three ");
                write(0, "four");
                write(1, "two ", "given");
                answering.end("stopped");
                return answering.answer.text;
            });
        }"""
    )
    assert texts == ["One two three four", "two three "]


def test_another_seed_and_an_edited_question_are_variants_and_the_first_one_stays(
    chatting: Open,
) -> None:
    page, bodies = after_two_turns(chatting)
    page.get_by_role("button", name="Regenerate").first.click()
    page.locator(".variants", has_text="2 of 2").wait_for()
    expect(page.locator(".turn")).to_have_count(1)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("The question").fill("How do we live well?")
    page.get_by_role("button", name="Ask again").click()
    page.locator(".variants", has_text="3 of 3").wait_for()
    assert [one["seed"] for one in bodies] == [0, 0, 1, 2]
    sent = [[one["content"] for one in body["messages"]] for body in bodies[2:]]
    assert sent == [[QUESTION], ["How do we live well?"]]
    for number in (2, 1):
        page.get_by_role("button", name="Earlier variant").click()
        expect(page.locator(".variants")).to_have_text(f"‹{number} of 3›", use_inner_text=True)
    assert page.locator(".turn .said").all_inner_texts() == [QUESTION, "And then?"]


@pytest.mark.parametrize("has_clipboard", [True, False], ids=["secure", "insecure"])
def test_an_answer_is_copied_as_plain_text(chatting: Open, has_clipboard: bool) -> None:
    page = chatting(scripted(), permissions=["clipboard-read", "clipboard-write"])
    if not has_clipboard:  # as on a page that comes from another machine without https
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    converse(page, QUESTION)
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    page.get_by_label("Your question").focus()
    page.keyboard.press("Control+v")
    expect(page.get_by_label("Your question")).to_have_value(TEXT)


def test_old_runs_are_dropped_when_the_conversation_grows_too_long_to_keep(chatting: Open) -> None:
    page = chatting(scripted())
    kept = page.evaluate(
        """async () => {
            const { Conversation } = await import("./chat/conversation.js");
            const { keep, kept } = await import("./chat/keeping.js");
            const talk = new Conversation();
            for (const ended_ms of [1, 2, 3]) {
                const run = { text: "x".repeat(800_000) };
                const [variant] = talk.ask("why?").variants;
                variant.answer = { state: "finished", text: "so", run, ended_ms };
            }
            const isKept = keep(talk, {});
            const turns = kept().conversation.turns;
            const runs = turns.map(({ variants }) => "run" in variants[0].answer);
            talk.ask("x".repeat(3_000_000));
            return [isKept, runs, keep(talk, {}), kept()];
        }"""
    )
    assert kept == [True, [False, True, True], False, None]


def test_the_run_of_an_answer_is_watched_in_three_views(chatting: Open) -> None:
    page = chatting(scripted())
    converse(page, QUESTION)
    page.get_by_role("button", name="Watch").click()
    dialog = page.get_by_role("dialog")
    assert "".join(dialog.locator("#answer .token").all_text_contents()) == TEXT
    expect(dialog.locator(".picture .row")).to_have_count(4)
    dialog.locator("#written .token", has_text="often").click()
    expect(dialog.locator("#inspector")).to_contain_text(
        "Its thread could see", use_inner_text=True
    )
    page.keyboard.press("Escape")
    expect(dialog.locator(".picked")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator("dialog.watch")).to_have_count(0)
    assert page.evaluate("document.activeElement.textContent") == "Watch"


def test_the_conversation_is_exported(chatting: Open, tmp_path: Path) -> None:
    page = chatting(scripted())
    converse(page, QUESTION)
    page.get_by_role("button", name="Settings").click()
    with page.expect_download() as markdown:
        page.get_by_role("button", name="Export Markdown").click()
    text = Path(markdown.value.path()).read_text("utf-8")
    assert text == f"## Question 1\n\nHow do I live well?\n\n## Answer 1\n\n{TEXT}\n"
    with page.expect_download() as stored:
        page.get_by_role("button", name="Export JSON").click()
    data = json.loads(Path(stored.value.path()).read_text("utf-8"))
    assert [one["content"] for one in data["messages"]] == [QUESTION, TEXT]
    (variant,) = data["turns"]["variants"]
    assert variant["answer"]["figures"]["critical_path_tokens"] > 0
    assert variant["answer"]["asked"]["strategy"] == "pasta"


def test_each_error_has_the_act_that_helps(chatting: Open) -> None:
    page = chatting(scripted(), key="secret key")
    ask(page, QUESTION)
    page.get_by_role("alert").get_by_role("button", name="Enter the key").click()
    page.keyboard.type("secret key")
    page.keyboard.press("Enter")  # and what was refused is asked again
    finished(page)
    page.get_by_role("button", name="New conversation").click()
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "A long question")
    page.get_by_role("alert").get_by_text("does not answer").wait_for()
    replies = [
        {"status": 503, "headers": {"Retry-After": "1"}, "json": {"error": {"message": "full"}}},
        {"status": 400, "json": {"error": {"message": "no", "code": "context_length_exceeded"}}},
    ]
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**replies.pop(0)))
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("button", name="Retry in 1 s").wait_for()  # by itself
    page.get_by_role("alert").get_by_text("longer than the model can read").wait_for()
    expect(page.get_by_role("alert").get_by_role("button", name="Retry")).to_have_count(0)
    page.get_by_role("button", name="Change the question").click()
    expect(page.get_by_label("The question")).to_be_focused()


KEPT = """new Promise((resolve) => {
    indexedDB.open("pasta-lm").onsuccess = ({ target: { result } }) => {
        result.transaction("conversations").objectStore("conversations").getAll().onsuccess =
            (event) => resolve(JSON.stringify([event.target.result, sessionStorage, localStorage]));
    };
})"""


def test_conversations_survive_reload_and_tab_without_the_key_and_are_found_again(
    chatting: Open,
) -> None:
    page = chatting(scripted(), key="secret key")
    page.get_by_text("wants an API key").first.wait_for()
    set_up(page, API_key="secret key", Temperature="0.5")
    for question in (QUESTION, "And how long?"):
        ask(page, question)
        finished(page)
        page.reload()
        finished(page)
        expect(page.get_by_label("Temperature")).to_have_value("0.5")
        set_up(page, API_key="secret key")
        page.get_by_role("button", name="New conversation").click()
    page.locator("#shelf .title").nth(1).wait_for()
    assert "And how long?" in page.evaluate(KEPT)
    assert "secret" not in page.evaluate(KEPT)
    other = page.context.new_page()
    page.close()
    other.goto("chat.html")
    other.get_by_label("Search the conversations").fill("how LONG")
    expect(other.locator("#shelf .title")).to_have_count(1)
    other.locator("#shelf .title").click()
    expect(other.locator(".said")).to_have_text("And how long?")
    expect(other.locator(".markdown .part.hue-0")).to_contain_text("Walk every")
    other.get_by_role("button", name="New conversation").click()
    other.get_by_role("button", name="Delete And how long?").click()
    other.get_by_label("Search the conversations").fill("")
    expect(other.locator("#shelf .title")).to_have_text([QUESTION])


def test_a_conversation_that_is_too_long_goes_on_without_its_oldest_turn(chatting: Open) -> None:
    page = chatting(scripted())
    bodies = asked_of(page)
    for number in (1, 2):
        ask(page, f"Question {number}")
        finished(page, number)
    error = {"error": {"message": "the prompt has 9000 tokens, the model's context is 8192"}}
    refused = "**/v1/chat/completions"
    page.route(refused, lambda route: route.fulfill(status=400, json=error))
    ask(page, "Question 3")
    page.get_by_role("alert").get_by_text("context is 8192").wait_for()
    page.unroute(refused)
    page.get_by_role("button", name="Retry without the oldest turn").click()
    finished(page, 3)
    expect(page.locator(".turn:last-child .reply-text")).to_contain_text(
        "1 earlier turn not sent", use_inner_text=True
    )
    converse(page, "Question 4")
    sent = [[one["content"] for one in body["messages"]] for body in bodies[-2:]]
    assert sent[0] == ["Question 2", TEXT, "Question 3"]
    assert sent[1] == ["Question 2", TEXT, "Question 3", TEXT, "Question 4"]


def test_markdown_is_drawn_as_elements(chatting: Open) -> None:
    page = chatting(answering(MARKDOWN))
    converse(page, "Show it")
    answer = page.locator(".markdown")
    drawn = {"h3 em": "rest", "strong": "bold", "ol > li > ul > li": "Inside", "s": "gone"}
    for where, text in {**drawn, "td.to-right": "22", "pre code": 'print("<b>")'}.items():
        expect(answer.locator(where)).to_have_text(text, use_inner_text=True)
    link = answer.get_by_role("link")
    expect(link).to_have_attribute("href", "https://example.org/a?b=c")
    expect(link).to_have_attribute("rel", "noopener noreferrer")


CUT_ANYWHERE = """async (text) => {
    const { marked, withoutMarks } = await import("./reading.js");
    const { markdown } = await import("./chat/markdown.js");
    const plain = (source) => {
        const root = document.createElement("div");
        root.append(markdown(source));
        root.querySelectorAll(".chip").forEach((node) => node.remove());
        root.querySelectorAll(".part").forEach((node) => node.replaceWith(...node.childNodes));
        root.normalize();
        return root.outerHTML;
    };
    const thread = (id, children, text) => ({ id, parent: id ? 0 : null, children, tokens: [
        { role: "content", text, forks: null, decoded: 0 }] });
    return [...Array(text.length).keys()].filter((cut) => {
        const threads = [thread(0, [1], text.slice(0, cut)), thread(1, [], text.slice(cut))];
        const made = marked({ name: "", threads }, Infinity, new Set());
        return withoutMarks(made) !== text || plain(made) !== plain(text);
    });
}"""


def test_wherever_another_thread_goes_on_the_markdown_is_the_same(chatting: Open) -> None:
    page = chatting(scripted())
    more = "\n---\n\nSetext\n===\n\n    code\n\n~~~js\nlet x = `1`;\n~~~\n\n* a_b_c 2 * 3 \\* __d__"
    assert page.evaluate(CUT_ANYWHERE, MARKDOWN + more) == []


def test_a_hostile_answer_is_text_and_breaks_no_policy(chatting: Open) -> None:
    links = (
        "[a](javascript:alert(1)) [b](data:text/html,x) [c](file:///etc) "
        "![d](https://example.org/d.png) <https://example.org/e> <javascript:alert(2)> "
        "[f](https://example.org/\u202ef) &#x202e;"
    )
    text = f'{HOSTILE}\n\n{links}<async topic="<b>x</b>">{"long" * 20_000}</async><sync/>end'
    page = chatting(answering(text), viewport={"width": 390, "height": 800})
    requests: list[str] = []
    page.on("request", lambda sent: requests.append(sent.url))
    converse(page, f"{HOSTILE}?")
    answer = page.locator(".reply-text")
    expect(answer).to_contain_text(
        "<script>document.title = 'taken'</script><img", use_inner_text=True
    )
    assert page.title() == "Chat · pasta-lm"
    expect(page.locator("main img, main script, .strip b")).to_have_count(0)
    targets = [one.get_attribute("href") for one in page.locator(".turn a").all()]
    assert [one.startswith("https://example.org/") for one in targets] == [True] * 3
    expect(answer).to_contain_text("⟨U+202E⟩", use_inner_text=True)
    expect(page.locator(".said")).to_contain_text("⟨U+202E⟩", use_inner_text=True)
    assert "\u202e" not in page.locator("body").inner_text()
    assert not [one for one in requests if "example.org" in one]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(chatting: Open, scheme: str) -> None:
    page = chatting(answering(MARKDOWN), color_scheme=scheme, bypass_csp=True)
    for step in ("empty", "set up", "answered", "edited", "watched"):
        if step == "set up":
            page.get_by_role("button", name="Settings").click()
        elif step == "answered":
            page.get_by_role("button", name="Close").click()
            converse(page, "Show it")
            page.get_by_text("Figures").click()
            page.get_by_role("button", name="Regenerate").click()
            page.locator(".variants", has_text="2 of 2").wait_for()
        elif step == "edited":
            page.get_by_role("button", name="Edit").click()
        elif step == "watched":
            page.get_by_role("button", name="Watch").click()
        assert not serious_faults(page), step
