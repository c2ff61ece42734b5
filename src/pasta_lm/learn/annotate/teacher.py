"""The teacher's prompt, the reading of its replies, and the return of rejected copies.

A prompt is a folder of Markdown in ``prompts/``: instructions, seven demonstrations, and the
message that returns a rejected copy. A version never changes; its digest is one of a run's
settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import escape
from pasta_lm.learn.annotate.filters import FILTERS, FilterConfig, Rejection, examine
from pasta_lm.learn.chat.client import ChatReply, Message
from pasta_lm.learn.chat.pool import CHARACTERS_PER_TOKEN

PROMPT_VERSION = "annotate_v1"
MAX_RETURNS = 2  # How often a rejected copy is returned.
_OPEN, _CLOSE = "<answer>", "</answer>"


class Demonstration(NamedTuple):
    """A prompt and its annotated answer."""

    name: str
    prompt: str
    annotated: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One version of the prompt."""

    version: str
    instructions: str
    correction: str
    demonstrations: tuple[Demonstration, ...]

    @property
    def label(self) -> str:
        """Return the version and a hash of its texts, which includes the name of this class."""
        return f"{self.version} {hashlib.sha256(repr(self).encode()).hexdigest()[:16]}"

    def messages(self, prompt: str, answer: str) -> list[Message]:
        messages: list[Message] = [{"role": "system", "content": self.instructions}]
        for example in self.demonstrations:
            plain = parse(example.annotated, Form.ANNOTATOR).plain_text
            messages.append({"role": "user", "content": _ask(example.prompt, plain)})
            messages.append({"role": "assistant", "content": _wrap(example.annotated)})
        return [*messages, {"role": "user", "content": _ask(prompt, answer)}]


@cache
def read_prompt() -> Prompt:
    folder = files("pasta_lm.learn.annotate") / "prompts" / PROMPT_VERSION
    texts = {
        item.name.removesuffix(".md"): item.read_text("utf-8").rstrip("\n")
        for item in folder.iterdir()
        if item.name.endswith(".md")
    }
    instructions, correction = texts.pop("instructions"), texts.pop("correction")
    demonstrations = [
        Demonstration(name, *text.split("\n---\n", 1)) for name, text in sorted(texts.items())
    ]
    return Prompt(PROMPT_VERSION, instructions, correction, tuple(demonstrations))


class TeacherConversation:
    """The exchange about one answer: ``messages`` of the next request, until it has an outcome."""

    def __init__(self, prompt: str, answer: str, filters: FilterConfig = FILTERS) -> None:
        self.outcome: Document | Rejection | None = None
        self.messages: Sequence[Message] = read_prompt().messages(prompt, answer)
        self._answer, self._filters, self._num_replies = answer, filters, 0

    @property
    def max_tokens(self) -> int:
        """Return the bound on a reply: twice the estimated length of a copy, and its tags."""
        return 256 + 2 * (len(self._answer.encode()) // CHARACTERS_PER_TOKEN)

    def feed(self, reply: ChatReply) -> None:
        self._num_replies += 1
        result = self._examine(reply)
        if isinstance(result, Document) or self._num_replies > MAX_RETURNS:
            self.outcome = result
        else:
            text = read_prompt().correction.replace("{reason}", result.reason, 1)
            text = text.replace("{message}", result.message, 1)
            copy = reply.text or reply.refusal or "(nothing)"
            self.messages = [
                *self.messages,
                {"role": "assistant", "content": copy},
                {"role": "user", "content": text},
            ]

    def _examine(self, reply: ChatReply) -> Document | Rejection:
        if reply.refusal or not reply.text.strip():
            return Rejection("refused", "There is no copy in your reply.")
        if reply.finish_reason == "length":
            message = "The copy was cut off: it is longer than the answer can be."
            return Rejection("cut_off", message)
        return examine(unwrap(reply.text), self._answer, self._filters)


def unwrap(reply: str) -> str:
    start, end = reply.find(_OPEN), reply.rfind(_CLOSE)
    if start < 0 or end < start:
        return reply
    return reply[start + len(_OPEN) : end].removeprefix("\n").removesuffix("\n")


def _ask(prompt: str, answer: str) -> str:
    return f"Question:\n{prompt}\n\nAnswer to copy and mark:\n{_wrap(escape(answer))}"


def _wrap(text: str) -> str:
    return f"{_OPEN}\n{text}\n{_CLOSE}"
