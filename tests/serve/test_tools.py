"""Tools: what the model is shown, the calls that are read from its answer, and forced ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import openai
import pytest
from fastapi import FastAPI

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.language import parse
from pasta_lm.language.tags import PIECES
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.serve import Bounds
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import LocalBackend
from pasta_lm.serve.protocol import ChatCompletionRequest
from pasta_lm.serve.tool_calls import CallReader, Message, ToolTemplate, as_text, tool_template
from pasta_lm.strategies.model import Pasta
from tests.architectures import loaded
from tests.fakes.scripted_backend import ScriptedBackend
from tests.serve.conftest import CHAT, LIMIT_S, post, scripted, serving, streamed
from tests.small_tokenizers import FAMILIES, add_markers

PATH = "/v1/chat/completions"
HERMES = """{% for tool in tools or [] %}<tools>{{ tool | tojson }}</tools>{% endfor %}
{%- for m in messages %}[{{ m.role }}] {{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}[assistant] """
LLAMA = (
    HERMES.replace("<tool_call>", "")
    .replace("</tool_call>", "")
    .replace('"arguments"', '"parameters"')
)
OTHER = HERMES.replace('{"name"', '<function={"name"')
FORMS = {"hermes": HERMES, "llama": LLAMA, "other": OTHER, "none": "{{ messages[0].content }}"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    about = {"type": "object", "properties": properties, "required": [*properties]}
    parameters = {**about, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("add", a={"enum": [1, 2]}, b={"$ref": "#/$defs/b"}), tool("now")]
TOOLS[0]["function"]["parameters"]["$defs"] = {"b": {"type": "boolean"}}
NAMES = {"add", "now"}


def call(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return name, arguments


def tagged(name: str, arguments: str = "{}", key: str = "arguments") -> str:
    return f'<tool_call>\n{{"name": "{name}", "{key}": {arguments}}}\n</tool_call>'


ADD = tagged("add", '{"a": 1, "s": "</tool_call> {\\"x\\": [<tool_call>"}')
ADDED = call("add", a=1, s='</tool_call> {"x": [<tool_call>')
BARE = '{"name": "add", "parameters": {"a": {"b": "}"}}}'
BARED = call("add", a={"b": "}"})


READ: dict[str, tuple[str, str, list[Any]]] = {
    "text alone": ("  Hi <tool> {there}\n ", "  Hi <tool> {there}\n ", []),
    "one": (ADD, "", [ADDED]),
    "several": (f"{ADD}\n{tagged('now')}\n\n{ADD}\n", "", [ADDED, call("now"), ADDED]),
    "beside text": (f"Wait.\n\n{ADD}\n Done. ", "Wait.Done. ", [ADDED]),
    "unknown name in tags": (tagged("other") + ADD, tagged("other"), [ADDED]),
    "unknown name in tags, cut": (tagged("other")[:-8], tagged("other")[:-8], []),
    "arguments in a text": (tagged("add", json.dumps('{"a": 2}')), "", [call("add", a=2)]),
    "without arguments": ('<tool_call>{"name": "now"}</tool_call>', "", [call("now")]),
    "no closing tag": (ADD.removesuffix("</tool_call>"), "", [ADDED]),
    "cut": (f"So: {ADD[:30]}", f"So: {ADD[:30]}", []),
    "half a tag": ("a \n<tool_ca", "a \n<tool_ca", []),
    "no JSON": (f"x <tool_call>{{oh}}</tool_call> {ADD}", "x <tool_call>{oh}</tool_call>", [ADDED]),
    "a list as arguments": (tagged("add", "[1]"), tagged("add", "[1]"), []),
    "infinity": (tagged("add", '{"a": 1e999}'), tagged("add", '{"a": 1e999}'), []),
    "half a pair": (tagged("add", '{"a": "\\ud800"}'), tagged("add", '{"a": "\\ud800"}'), []),
    "a name of no text": ('<tool_call>{"name": 3}</tool_call>',) * 2 + ([],),  # type: ignore[dict-item]
    "Llama": (BARE, "", [BARED]),
    "Llama, with its tag": (f"<|python_tag|>{BARE}", "", [BARED]),
    "Llama, several": (f'{BARE}; {{"name": "now", "parameters": {{}}}}', "", [BARED, call("now")]),
    "Llama, unknown name": (BARE.replace("add", "sub"), BARE.replace("add", "sub"), []),
    "Llama, then text": (f"{BARE}; and so on", "; and so on", [BARED]),
    "in a fence": (f"```json\n{BARE}\n```", "", [BARED]),
    "in a fence, other JSON": ("```json\n{}\n```", "```json\n{}\n```", []),
    "behind text": (f"Like {BARE}", f"Like {BARE}", []),
    "code": ("{ return 1; }\n" + ADD, "{ return 1; }", [ADDED]),
    "a builtin tool of Llama": ("<|python_tag|>search.call(q)", "<|python_tag|>search.call(q)", []),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_calls_and_content_do_not_depend_on_how_the_text_was_cut(name: str, size: int) -> None:
    text, content, calls = READ[name]
    reader = CallReader(NAMES)
    pieces = [reader.feed(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(reader.feed("", is_end=True))
    assert "".join(piece for piece, _ in pieces) == content
    assert [(each.name, json.loads(each.arguments)) for _, part in pieces for each in part] == calls
    assert reader.num_calls == len(calls)


def test_text_is_held_only_while_it_may_be_a_call() -> None:
    reader = CallReader(NAMES)
    assert [reader.feed(word)[0] for word in ("Well, ", "a < ", "b", " <tool", "s>")] == [
        "Well,", " a <", " b", "", " <tools>",
    ]  # fmt: skip


def calling(text: str) -> FastAPI:
    backend = ScriptedBackend(ScriptedEngine(parse(text, "annotator")))
    backend.tools = ToolTemplate(True, "arguments")
    return create_app(backend)


def test_a_reply_has_calls_beside_its_content() -> None:
    body = {**CHAT, "tools": TOOLS, "n": 2}
    reply = post(PATH, body, app=calling(f"Wait.\n{ADD}\n{tagged('now')}")).json()
    assert "ignored" not in reply["pasta"]
    ids = []
    for choice in reply["choices"]:
        message = choice["message"]
        assert (message["content"], choice["finish_reason"]) == ("Wait.", "tool_calls")
        functions = [each["function"] for each in message["tool_calls"]]
        assert [each["name"] for each in functions] == ["add", "now"]
        ids += [each["id"] for each in message["tool_calls"]]
    assert len({*ids}) == 4
    alone = post(PATH, {**CHAT, "tools": TOOLS}, app=calling(ADD)).json()["choices"][0]
    assert alone["message"]["content"] is None


@pytest.mark.parametrize(
    ("text", "changes"),
    [(ADD, {"tools": None}), (ADD, {"tool_choice": "none"}), (f"Wait. {ADD}", {"max_tokens": 3})],
)
def test_what_may_be_no_call_or_is_cut_is_content(text: str, changes: dict[str, Any]) -> None:
    choice = post(PATH, {**CHAT, "tools": TOOLS, **changes}, app=calling(text)).json()["choices"][0]
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"].startswith(text[:17])
    assert choice["finish_reason"] == ("length" if "max_tokens" in changes else "stop")


@pytest.mark.parametrize(
    ("shows", "changes", "expected"),
    [(True, {}, 1.0), (True, {"tool_choice": "none"}, 1.3), (False, {}, 1.3),
     (True, {"repetition_penalty": 1.2}, 1.2)],
)  # fmt: skip
def test_an_answer_that_may_be_a_call_has_the_penalty_of_its_request_alone(
    shows: bool, changes: dict[str, Any], expected: float
) -> None:
    backend, params = ScriptedBackend(ScriptedEngine(parse(ADD, "annotator"))), []
    backend.tools, backend.sampling = ToolTemplate(shows, "arguments"), {"repetition_penalty": 1.3}
    prepare = backend.prepare
    backend.prepare = lambda *both: params.append(both[1]) or prepare(*both)  # type: ignore[method-assign]
    assert post(PATH, {**CHAT, "tools": TOOLS, **changes}, app=create_app(backend)).is_success
    assert [each.repetition_penalty for each in params] == [expected]


@pytest.mark.parametrize("options", [{}, {"stream": "events"}])
def test_openai_s_package_collects_streamed_calls(options: dict[str, Any]) -> None:
    text = f"Let me <see>.\n\n{ADD}\n{tagged('now')}"
    with serving(calling(text)) as (_, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S)
        messages: Any = CHAT["messages"]
        tools: Any = TOOLS
        stream = client.chat.completions.create(
            model="script", messages=messages, tools=tools, stream=True,
            extra_body={"pasta": options},
        )  # fmt: skip
        content, reason, calls = "", None, dict[int, list[str]]()
        for piece in stream:
            for choice in piece.choices:
                content += choice.delta.content or ""
                reason = choice.finish_reason or reason
                for each in choice.delta.tool_calls or ():
                    assert each.function is not None
                    known = calls.setdefault(each.index, [each.id or "", "", ""])
                    known[1] += each.function.name or ""
                    known[2] += each.function.arguments or ""
        answer = client.chat.completions.parse(model="script", messages=messages)
        assert answer.choices[0].message.content == text
    assert (content, reason) == ("Let me <see>.", "tool_calls")
    assert [(name, json.loads(found)) for _, name, found in calls.values()] == [ADDED, call("now")]
    assert len({number for number, *_ in calls.values()}) == len(calls) == 2


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"tools": [{"function": {"name": "f"}}]}, "type"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "name"),
    "a schema of a text": ({"tools": [tool("f") | {"function": {"name": "f", "parameters": "x"}}]},
                           "parameters"),
    "none to be called": ({"tool_choice": "required"}, "needs a function among the tools"),
    "an unknown one": ({"tools": TOOLS, "tool_choice": tool("f")}, "needs a function among"),
    "an unknown choice": ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
    "a choice with more": ({"tools": TOOLS, "tool_choice": {
        "type": "function", "function": {"name": "now", "arguments": {}}}}, "and no more"),
    "parts": ({"tools": TOOLS, "pasta": {"parts": True}, "response_format": {
        "type": "json_schema", "json_schema": {"schema": {"type": "object"}}}}, "call no tools"),
    "two forms": ({"tools": TOOLS, "tool_choice": "required",
                   "response_format": {"type": "json_object"}}, "or has the form of"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_tools_are_refused(name: str) -> None:
    changes, reason = BAD[name]
    reply = post(PATH, {**CHAT, **changes}, app=calling("Hi"))
    assert (reply.status_code, reason in reply.text) == (400, True)


def local(form: str, *, has_tokens: bool = False) -> LocalBackend:
    """Serve a random model with a chat template; tags of calls may be tokens of their own."""
    tokenizer = FAMILIES["llama_2_like"]()
    pieces = add_markers(tokenizer, PIECES)
    tokenizer.chat_template = FORMS[form]
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"] if has_tokens else [])
    whole = replace(loaded("llama"), vocabulary=Vocabulary(tokenizer, pieces))
    return LocalBackend(Pasta(TorchEngine(whole, pool_tokens=4096, captures=False)), "tiny")


TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3</s>"}]},
]  # fmt: skip


def shown(form: str, **fields: Any) -> tuple[str, list[int]]:
    body = ChatCompletionRequest.model_validate({"messages": TURNS, **fields})
    backend = local(form)
    (prompt,) = body.prompts(Bounds(), "pasta")
    ids = list(backend.prepare(prompt, SamplingParams()).prompt)
    return loaded("llama").vocabulary.text(ids), ids


def test_the_template_gets_tools_calls_with_objects_as_arguments_and_their_results() -> None:
    text, ids = shown("hermes", tools=TOOLS)
    for expected in (
        f"<tools>{json.dumps(TOOLS[0])}</tools>", "[user] 1 + 2?", "[tool] 3",
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    ):  # fmt: skip
        assert expected in text
    ends = loaded("llama").vocabulary.tokenizer.eos_token_id
    assert ends not in ids, "a special token in the result of a tool is text"
    assert "<tools>" not in shown("hermes", tools=TOOLS, tool_choice="none")[0]


def test_a_template_without_tools_gets_earlier_calls_as_text() -> None:
    reply = post(PATH, {"messages": TURNS, "tools": TOOLS}, app=create_app(scripted())).json()
    assert reply["pasta"]["ignored"] == ["tools"]
    turns = [Message.model_validate(turn).turn for turn in TURNS]
    assert as_text(turns[1]) == {"role": "assistant", "content": 'add({"a": 1})'}
    assert as_text({**turns[1], "content": "So"})["content"] == 'So\nadd({"a": 1})'
    assert as_text(turns[2]) == {"role": "tool", "content": "3</s>"}
    broken = {"name": "add", "arguments": "{"}
    message = {**TURNS[1], "tool_calls": [{"function": broken}]}
    assert Message.model_validate(message).turn["tool_calls"] == [{"function": broken}]


@pytest.mark.parametrize("form", ["hermes", "llama"])
@pytest.mark.parametrize("has_tokens", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_random_model_makes_calls_that_match(form: str, has_tokens: bool, choice: Any) -> None:
    app = create_app(local(form, has_tokens=has_tokens))
    body = {**CHAT, "tools": TOOLS, "tool_choice": choice, "n": 2, "temperature": 1.0, "seed": 3}
    whole = post(PATH, {**body, "max_tokens": 120}, app=app).json()["choices"]
    for choice_made in whole:
        calls = choice_made["message"]["tool_calls"]
        assert calls
        assert len(calls) == 1 or form == "hermes"
        assert choice_made["message"]["content"] is None or choice_made["finish_reason"] == "length"
        for each in calls:
            arguments = json.loads(each["function"]["arguments"])
            assert each["function"]["name"] in ({"add"} if isinstance(choice, dict) else NAMES)
            if arguments:
                assert arguments["a"] in (1, 2)
                assert arguments["b"] in (True, False)


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_only_the_first_call_is_made_where_calls_are_not_parallel(choice: str) -> None:
    app = create_app(local("hermes")) if choice == "required" else calling(f"{ADD}{tagged('now')}")
    body = {**CHAT, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    body |= {"max_tokens": 200, "stream": True}
    deltas = [piece["choices"][0]["delta"] for piece in streamed(post(PATH, body, app=app))]
    assert sum(len(delta.get("tool_calls", ())) for delta in deltas) == 1
    assert not any(delta.get("content") for delta in deltas)


SEEN = (
    "{% if tools %}{{ tools[0].keys() | list }}{{ tools[0].function.keys() | list }}{% endif %}"
    "{{ messages[0].keys() | list }}{{ colour }}{% for m in messages %}{{ m.content }}{% endfor %}"
)
FORM = {"type": "json_schema", "json_schema": {"name": "form", "schema": {
    "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}}}  # fmt: skip
PARTS = {"pasta": {"parts": True}, "response_format": FORM, "tools": None}
BEGUN = [*CHAT["messages"], {"content": "So", "role": "assistant"}]


@pytest.mark.parametrize(
    "changes",
    [{}, {"n": 2}, {"stream": True}, {"response_format": FORM}, {"tool_choice": "required"}, PARTS]
    + [{"messages": BEGUN, "continue_final_message": True}, {"pasta": {"strategy": "sot"}}],
)
def test_what_a_request_has_for_the_template_reaches_it_as_it_came(changes: Any) -> None:
    function = {"strict": None, "name": "f", "description": "d", "parameters": {}, "x": 1}
    tools = [{"function": function, "x": 1, "type": "function"}]
    turn = {"name": "Ada", "content": "Hi", "role": "user"}
    own = local("hermes")
    own._loaded.vocabulary.tokenizer.chat_template = SEEN
    fields = {**CHAT, "tools": tools, "chat_template_kwargs": {"colour": "red"}, **changes}
    fields["messages"] = [turn, *fields["messages"][1:]]
    body = ChatCompletionRequest.model_validate(fields)
    (prompt,) = body.prompts(Bounds(), "pasta")
    text = loaded("llama").vocabulary.text(own.prepare(prompt, SamplingParams()).prompt)
    shown = f"{[*tools[0]]}{[*function]}" if fields["tools"] else ""
    assert text.lstrip().startswith(f"{shown}{[*turn]}red")
    assert text.endswith("So") is (len(fields["messages"]) > 1)


@pytest.mark.parametrize("changes", [PARTS, {"pasta": {"strategy": "sot"}}])
def test_an_answer_that_can_have_no_thought_is_not_told_to_think(changes: Any) -> None:
    body = {**CHAT, "chat_template_kwargs": {"enable_thinking": True}, **changes}
    reply = post(PATH, body, app=create_app(local("hermes")))
    assert (reply.status_code, "have no thought" in reply.text) == (400, True)


@pytest.mark.parametrize(
    ("form", "kinds"), [("hermes", {True, False}), ("llama", {True}), ("other", {False})]
)
def test_beside_a_form_a_model_may_call_or_the_reply_denies_it(form: str, kinds: set[bool]) -> None:
    app, seen = create_app(local(form)), set()
    body = {**CHAT, "tools": TOOLS, "response_format": FORM, "temperature": 1.0, "n": 16}
    reply = post(PATH, {**body, "max_tokens": 100, "seed": 1}, app=app).json()
    for choice in reply["choices"]:
        seen.add(bool(calls := choice["message"].get("tool_calls")))
        if not calls and choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"])["a"] in (1, 2)
    assert seen == kinds
    assert reply["pasta"].get("ignored") == (None if True in kinds else ["tools"])


def test_a_strict_function_that_is_free_to_be_called_is_named_as_ignored() -> None:
    strict = tool("add")
    strict["function"]["strict"] = True
    reply = post(PATH, {**CHAT, "tools": [strict]}, app=calling(ADD)).json()
    assert reply["pasta"]["ignored"] == ["tools.function.strict"]


def test_two_parts_of_a_message_are_two_lines() -> None:
    for role in ("system", "user", "assistant", "tool"):
        parts = [{"type": "text", "text": word} for word in ("no", "ne")]
        assert Message.model_validate({"role": role, "content": parts}).turn["content"] == "no\nne"


def test_a_template_of_another_form_shows_tools_and_forces_none() -> None:
    assert "<tools>" in shown("other", tools=TOOLS)[0]
    reply = post(
        PATH, {**CHAT, "tools": TOOLS, "tool_choice": "required"}, app=create_app(local("other"))
    )
    assert (reply.status_code, "no form of calls" in reply.text) == (400, True)


def test_forms_are_told_by_the_template() -> None:
    def key(form: str) -> tuple[bool, str | None]:
        return tool_template(FORMS[form], lambda _: None)[:2]

    assert [key(form) for form in FORMS] == [
        (True, "arguments"), (True, "parameters"), (True, None), (False, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "read", ["message.name", "messages[0]['name']", "m.get('name')", "message | tojson"]
)
def test_a_template_is_seen_to_read_the_name_of_a_turn(read: str) -> None:
    texts = f"{{{{ {read} }}}}", "{{ tool_call.name }}{{ messages | length }}{{ m.content }}"
    names = [tool_template(text, lambda _: None).names for text in texts]
    assert ["messages.name" in words for words in names] == [True, False]
