"""The teacher's prompt, the reading of its replies, and the return of copies that are rejected.

A prompt is a folder of Markdown in ``prompts/``: instructions, seven demonstrations, and the
message that returns a rejected copy. A version never changes; its digest is one of a run's
settings. Knows nothing of HTTP and files of data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from pasta_lm.annotate.filters import Bounds, Reason, Rejection, examine
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import escape, unescape
from pasta_lm.remote.budget import CHARACTERS_PER_TOKEN
from pasta_lm.remote.chat import ChatReply, Message

PROMPT_VERSION = "annotate_v1"
MAX_RETURNS = 2
"""How often a rejected copy is returned."""
REFUSED = "refused"
CUT_OFF = "cut_off"

_OPEN, _CLOSE = "<answer>", "</answer>"


class Demonstration(NamedTuple):
    """One worked example."""

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
        """Return the version and a hash of its texts."""
        return f"{self.version} {hashlib.sha256(repr(self).encode()).hexdigest()[:16]}"

    def messages(self, prompt: str, answer: str) -> list[Message]:
        """Return the messages of the first request for one answer."""
        return [*_shown(self), {"role": "user", "content": _ask(prompt, answer)}]


@cache
def _shown(prompt: Prompt) -> tuple[Message, ...]:
    """Return the messages that all requests share: instructions and demonstrations."""
    shown: list[Message] = [{"role": "system", "content": prompt.instructions}]
    for one in prompt.demonstrations:
        plain = parse(one.annotated, Form.ANNOTATOR).plain_text
        shown.append({"role": "user", "content": _ask(one.prompt, plain)})
        shown.append({"role": "assistant", "content": _wrap(one.annotated)})
    return tuple(shown)


@cache
def read_prompt(version: str = PROMPT_VERSION) -> Prompt:
    """Return the prompt of a version."""
    folder = files("pasta_lm.annotate") / "prompts" / version
    texts = {
        item.name.removesuffix(".md"): item.read_text("utf-8").rstrip("\n")
        for item in folder.iterdir()
        if item.name.endswith(".md")
    }
    instructions, correction = texts.pop("instructions"), texts.pop("correction")
    demonstrations = [
        Demonstration(name, *text.split("\n---\n", 1)) for name, text in sorted(texts.items())
    ]
    return Prompt(version, instructions, correction, tuple(demonstrations))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the annotation of one answer ended."""

    document: Document | None
    """None: it failed."""
    reason: str = ""
    """Of a failure: a ``Reason``, ``refused`` or ``cut_off``."""
    message: str = ""
    num_replies: int = 0


class Conversation:
    """The exchange about one answer; it takes replies until it has an outcome."""

    def __init__(
        self, prompt: str, answer: str, *, bounds: Bounds, version: str = PROMPT_VERSION
    ) -> None:
        """Begin with nothing said."""
        self.outcome: Outcome | None = None
        self._answer = answer
        self._bounds = bounds
        self._prompt = read_prompt(version)
        self._messages: list[Message] = self._prompt.messages(prompt, answer)
        self._num_replies = 0

    @property
    def messages(self) -> Sequence[Message]:
        """Return the messages of the next request."""
        return self._messages

    @property
    def max_tokens(self) -> int:
        """Return the bound on a reply: twice the estimated length of a copy, and its tags."""
        return 256 + 2 * (len(self._answer.encode()) // CHARACTERS_PER_TOKEN)

    def feed(self, reply: ChatReply) -> None:
        """Accept a copy, return it to the teacher, or give up."""
        self._num_replies += 1
        verdict = self._judge(reply)
        if isinstance(verdict, Document):
            self.outcome = Outcome(verdict, num_replies=self._num_replies)
        elif self._num_replies > MAX_RETURNS:
            self.outcome = Outcome(None, verdict.reason, verdict.message, self._num_replies)
        else:
            text = self._prompt.correction
            for key, value in (("reason", str(verdict.reason)), ("message", verdict.message)):
                text = text.replace("{" + key + "}", value, 1)
            said = reply.text or reply.refusal or "(nothing)"
            self._messages = [
                *self._messages,
                {"role": "assistant", "content": said},
                {"role": "user", "content": text},
            ]

    def _judge(self, reply: ChatReply) -> Document | _Unusable:
        if reply.refusal or not reply.text.strip():
            return _Unusable(REFUSED, "There is no copy in your reply.")
        if reply.finish_reason == "length":
            return _Unusable(CUT_OFF, "The copy was cut off: it is longer than the answer can be.")
        verdict = examine(unwrap(reply.text), self._answer, self._bounds)
        if isinstance(verdict, Rejection):
            return _Unusable(verdict.reason, verdict.message)
        return verdict


class _Unusable(NamedTuple):
    reason: Reason | str
    message: str


def unwrap(reply: str) -> str:
    """Return the copy between the marks of a reply, or the whole reply if it has no marks."""
    start, end = reply.find(_OPEN), reply.rfind(_CLOSE)
    if start < 0 or end < start:
        return reply
    copy = reply[start + len(_OPEN) : end]
    return copy.removeprefix("\n").removesuffix("\n")


def asked_answer(messages: Sequence[Message]) -> str:
    """Return the answer that messages ask to annotate, for scripted teachers.

    Raises:
        ValueError: the messages contain no answer to annotate.
    """
    for one in reversed(messages):
        if one["role"] == "user" and one["content"].startswith(_QUESTION):
            return unescape(unwrap(one["content"][one["content"].rindex(_ANSWER) :]))
    raise ValueError("nothing to annotate in these messages")


_QUESTION = "Question:\n"
_ANSWER = "\n\nAnswer to copy and mark:\n"


def _ask(prompt: str, answer: str) -> str:
    return f"{_QUESTION}{prompt}{_ANSWER}{_wrap(escape(answer))}"


def _wrap(text: str) -> str:
    return f"{_OPEN}\n{text}\n{_CLOSE}"
