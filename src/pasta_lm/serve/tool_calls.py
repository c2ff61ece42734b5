"""Messages and tools: what a chat template is shown, and the calls in the text of an answer.

Two forms of calls are read. Hermes and Qwen write ``<tool_call>{"name": …, "arguments": …}
</tool_call>``, several and with text beside them; Llama 3 writes nothing but ``{"name": …,
"parameters": …}``, several with ``;`` between them. What is no call stays text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field

from pasta_lm.engines.request import StructuredOutputs
from pasta_lm.engines.schemas import compact_schema
from pasta_lm.serve.errors import Json, bad_request
from pasta_lm.serve.fields import Fields
from pasta_lm.strategies import PASTA

FOR_TEMPLATE = ConfigDict(extra="allow")  # the chat template is shown all that came

MAX_ITEMS = 8192  # the longest list, ids excepted, whatever a recipe allows
# A list ends at its first wrong element: a long list of wrong ones would cost minutes.
Few = Field(max_length=MAX_ITEMS, fail_fast=True)
NO_ARGUMENTS: Json = {"properties": {}, "additionalProperties": False}
NAME = "messages.name"
OPENING, CLOSING = "<tool_call>", "</tool_call>"
_PYTHON = "<|python_tag|>"  # Llama 3 has it before a call


def _beginnings(*words: str) -> str:
    return "|".join(re.escape(word[:end]) for word in words for end in range(1, len(word)))


_TAG = re.compile(rf"\s*{OPENING}")
_PART_OF_TAG = re.compile(rf"\s*(?:{_beginnings(OPENING)})?\Z")
_LEAD = rf"[\s;,`]*(?:(?:json|{re.escape(_PYTHON)})\s*)?"  # Qwen's coders fence their calls
_BARE = re.compile(rf"{_LEAD}(?=\{{)")
_PART_OF_BARE = re.compile(rf"(?:{_LEAD}|[\s;,`]*(?:{_beginnings('json', _PYTHON)}))\Z")
_NAMES = re.compile(r"(message\w*|\bmsg|\bm)(\[[^]]*\])?((\.|\[|\.get\()\W?name\b| *\| *tojson)")
_QUOTE = re.compile(r'\\.|(")', re.DOTALL)


class Call(Fields):
    """The function of a tool and its arguments, which are JSON in a text."""

    owner = "messages"
    name: str
    arguments: str

    def shown(self) -> Json:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


class ToolCall(Fields):
    """A call that an assistant made earlier."""

    owner = "messages"
    id: str | None = None
    type: Literal["function"] = "function"
    function: Call

    @property
    def shown(self) -> Json:
        """Return the call as templates want it: its arguments as an object, if they are one."""
        arguments = self.function.arguments
        value = _value(arguments or "{}")
        shown = value if isinstance(value, dict) else arguments
        return {**self.sent, "function": {**self.function.sent, "arguments": shown}}


def _refuse_other_kinds(kind: object) -> object:
    if kind != "text":
        raise ValueError(f"this model reads text only, not {str(kind)[:50]}")
    return kind


class TextPart(Fields):
    """An item of a message's content: text is the only kind."""

    owner = "messages"
    type: Annotated[Literal["text"], BeforeValidator(_refuse_other_kinds)]
    text: str


THOUGHT = ("reasoning_content", "thinking")  # the keys of a turn's thought; gpt-oss has the second


class Message(Fields):
    """One turn of a conversation."""

    owner = "messages"
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Few] | None = None
    reasoning_content: str | None = None  # an earlier thought; the template leaves it out or not
    tool_calls: Annotated[list[ToolCall], Few] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def turn(self) -> Json:
        """Return the turn of a chat template, its keys in order; tags in its text are text."""
        content = self.content or ""
        # A line break between two texts, as in vLLM.
        text = content if isinstance(content, str) else "\n".join(item.text for item in content)
        thought = dict.fromkeys(THOUGHT, self.reasoning_content)
        calls = {"tool_calls": [call.shown for call in self.tool_calls or ()] or None}
        role = "system" if self.role == "developer" else self.role
        turn = {**self.sent, "role": role, "content": text, **thought, **calls}
        return {key: value for key, value in turn.items() if value is not None}


Turns = Sequence[Json]


class TokenIds(tuple[int, ...]):
    """A prompt that a client has encoded."""


@dataclass(frozen=True, slots=True)
class ClientPrompt:
    """Messages for the chat template, or a text or ids to continue as they stand.

    ``continues`` continues the last message; ``tools`` are for the chat template; the fields of a
    ``schema`` are decoded at the same time, but a field after those that ``after`` names.
    """

    content: str | TokenIds | Turns
    strategy: str = PASTA
    positions: str | None = None
    continues: bool = False
    tools: Sequence[Json] = ()
    chat_template_kwargs: Mapping[str, object] | None = None
    schema: Mapping[str, object] | None = None
    after: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Function(Fields):
    """What a tool is called and which arguments it takes, as a JSON schema of an object."""

    model_config = FOR_TEMPLATE
    name: Annotated[str, Field(min_length=1, max_length=256)]
    parameters: Json | None = None


class Tool(Fields):
    """A function that the model may ask the client to call, or one that it must call."""

    model_config = FOR_TEMPLATE
    type: Literal["function"]
    function: Function


class ToolTemplate(NamedTuple):
    """What a chat template makes of tools."""

    shows: bool = False  # it writes them, and the calls of earlier turns
    key: str | None = None  # a call's key of its arguments; None: calls are not read
    opening: str = ""  # around a call, in the grammar of llguidance
    closing: str = ""
    names: Collection[str] = ()  # all words of the template, and ``NAME`` if it reads that

    def calls(
        self, functions: Sequence[Function], *, is_single: bool,
        answer: Mapping[str, object] | None = None,
    ) -> StructuredOutputs:  # fmt: skip
        if self.key is None:
            message = "the model's chat template has no form of calls that this server knows"
            raise bad_request(f"{message} (Hermes, Qwen, Llama 3)", "tool_choice", "unsupported")
        rules = []
        for number, function in enumerate(functions):
            begin = f'{{"name": {json.dumps(function.name)}, "{self.key}": '
            taken = NO_ARGUMENTS if function.parameters is None else function.parameters
            schema = compact_schema({"type": "object", **taken})
            rules.append(f'f{number}: {json.dumps(begin)} a{number} "}}"')
            rules.append(f"a{number}: %json {schema}")
        names = " | ".join(f"f{number}" for number in range(len(functions)))
        more = "" if is_single or not self.opening else ' ("\\n" call)*'
        start = f"start: calls{'' if answer is None else ' | answer'}\ncalls: call{more}"
        rules += [] if answer is None else [f"answer: %json {compact_schema(answer)}"]
        call = f"call: {self.opening} ({names}) {self.closing}"
        return StructuredOutputs(grammar="\n".join([start, call, *rules]))


def tool_template(template: str, token_id: Callable[[str], int | None]) -> ToolTemplate:
    def written(tag: str) -> str:  # a token, where the tokenizer has it, is no text to a grammar
        number = token_id(tag)
        return json.dumps(tag) if number is None else f"<[{number}]>"

    names = frozenset(re.findall(r"[A-Za-z_]\w*", template))
    names |= {NAME} if _NAMES.search(template) else frozenset()
    if "tools" not in names:
        return ToolTemplate(names=names)
    if OPENING in template:  # some write the arguments inside as further tags
        opening, closing = f'{written(OPENING)} "\\n"', f'"\\n" {written(CLOSING)}'
        is_json = "<function=" not in template and "<arg_key>" not in template
        made = ToolTemplate(True, "arguments", opening, closing, names)
        return made if is_json else ToolTemplate(True, names=names)
    is_llama = _PYTHON in template or '"parameters": ' in template
    return ToolTemplate(True, "parameters" if is_llama else None, names=names)


def as_text(turn: Mapping[str, object]) -> Json:
    """Return a turn whose calls are text, for templates that know none."""
    calls = turn.get("tool_calls")
    functions = [call["function"] for call in calls] if isinstance(calls, list) else []
    texts = [f"{call['name']}({json.dumps(call['arguments'])})" for call in functions]
    contents = [str(turn["content"])] if turn["content"] else []
    kept = {key: value for key, value in turn.items() if not key.startswith("tool_call")}
    return {**kept, "content": "\n".join([*contents, *texts])}


class CallReader:
    """Tells the text of one answer apart into content and calls, as far as both are certain.

    However the text is cut into pieces, they are the same. A call of a function that was not
    offered is content; with ``is_single`` all calls behind the first are left out.
    """

    def __init__(self, names: Collection[str], *, is_single: bool = False) -> None:
        self._names, self._is_single = names, is_single
        self._held = ""  # what may be a call, with the white space before it
        self._may_be_bare, self._follows_call = True, False
        self.num_calls = 0

    def feed(self, text: str, *, is_end: bool = False) -> tuple[str, list[Call]]:
        """Take the next piece of the text; return the content and the calls that are certain."""
        self._held += text
        contents, calls = [], []
        while item := self._next(is_end):
            if not isinstance(item, Call):
                contents.append(item)
            elif not (self._is_single and self.num_calls):
                calls.append(item)
                self.num_calls += 1
        return "".join(contents), calls

    def _next(self, is_end: bool) -> Call | str:
        """Return a call, or content; an empty text if nothing more is certain."""
        if self._follows_call:
            self._held = self._held.lstrip()
        if self._may_be_bare:
            if self._follows_call and is_end and not self._held.strip(" \n;,`"):
                self._held = ""
            if _PART_OF_BARE.match(self._held) and not is_end:
                return ""
            match = _BARE.match(self._held)
            end, call = self._bare_call(match.end()) if match else (0, None)
            if call is not None:
                return self._cut(end, call)
            if match and not end and not is_end:
                return ""
            self._may_be_bare = False
        if (match := _TAG.search(self._held)) is None:
            begun = None if is_end else _PART_OF_TAG.search(self._held)
            return self._cut(begun.start() if begun else len(self._held))
        if match.start():
            return self._cut(match.start())
        return self._cut(*self._tagged_call(match.end(), is_end))

    def _cut(self, end: int, call: Call | None = None) -> Call | str:
        text, self._held = self._held[:end], self._held[end:]
        self._follows_call = call is not None or (self._follows_call and not text)
        return call or text

    def _bare_call(self, start: int) -> tuple[int, Call | None]:
        """Return the end of an object, 0 if it has none, and the call that it is."""
        try:
            value, end = json.JSONDecoder().raw_decode(self._held, start)
        except (ValueError, RecursionError):
            return 0, None
        return end, self._call(value)

    def _tagged_call(self, start: int, is_end: bool) -> tuple[int, Call | None]:
        """Return the end of what begins with a tag, 0 if it has none, and the call that it is."""
        end = start
        while (end := self._held.find(CLOSING, end)) >= 0:
            inside, end = self._held[start:end], end + len(CLOSING)
            num_quotes = sum(match[1] is not None for match in _QUOTE.finditer(inside))
            if (call := self._call(_value(inside))) or num_quotes % 2 == 0:  # not in a string
                return end, call
        return (len(self._held), self._call(_value(self._held[start:]))) if is_end else (0, None)

    def _call(self, value: object) -> Call | None:
        if not isinstance(value, dict) or (name := value.get("name")) not in [*self._names]:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _value(arguments)
        if not isinstance(arguments, dict):
            return None
        try:
            text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            f"{name}{text}".encode()
        except ValueError:  # infinity is no JSON, half a surrogate pair no text
            return None
        return Call(name=name, arguments=text)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
