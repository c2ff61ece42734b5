"""Thoughts before an answer: the marks around them, and where they end in the decoded tokens.

A mark is compared token by token where the tokenizer has added tokens for it, else as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from pasta_lm.errors import RequestError

_CODES = 0xF0000  # private characters, which stand for the added tokens of marks


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks of a model that can think, as its template spells them."""

    start: str
    end: str
    skip: str = ""  # what an answer without a thought begins with
    end_ids: tuple[int, ...] = ()  # decoded where a limit ends the thought
    codes: Mapping[int, str] = field(default_factory=dict)
    """The characters that stand for added tokens in marks, once ``coded`` has put them there."""
    is_open: bool = False  # the prompt ends inside a thought
    is_begun: bool = False  # behind words of it

    def coded(self, added: Mapping[str, int], end_ids: tuple[int, ...]) -> Thinking:
        """Return the marks with a character for each added token, which are given by content."""
        marks, codes = [self.start, self.end, self.skip], dict[int, str]()
        for content in sorted(added, key=len, reverse=True):
            if any(content in mark for mark in marks):
                code = codes[added[content]] = chr(_CODES + len(codes))
                marks = [mark.replace(content, code) for mark in marks]
        start, end, skip = marks
        return Thinking(start, end, skip, end_ids, codes)

    def after(self, text: str) -> Thinking | None:
        """Return the marks after a prompt, coded as they are; None: its thought is over."""
        text = text.rstrip()
        is_over = text.endswith((self.end, self.skip or self.end))
        return None if is_over else replace(self, is_open=text.endswith(self.start))


FORMS = (
    Thinking(  # gpt-oss
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
    ),
    Thinking("<think>", "</think>"),  # Qwen, DeepSeek, SmolLM, Granite and others
    Thinking("[THINK]", "[/THINK]"),  # Magistral
    Thinking("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
)


def thinking_of(template: str) -> Thinking | None:
    return next((form for form in FORMS if (form.skip or form.end) in template), None)


def think_kwargs(think: bool | None) -> dict[str, object]:
    """Return the variables with which templates switch thinking; None: as the model does."""
    return {} if think is None else {"enable_thinking": think, "thinking": think}


def kwargs_at_once(kwargs: Mapping[str, object] | None, kind: str) -> dict[str, object]:
    """Return the variables for an answer without a thought; a RequestError if they want one."""
    whole = {**think_kwargs(False), **(kwargs or {})}
    if True in (whole["enable_thinking"], whole["thinking"]):
        raise RequestError(f"{kind} have no thought", hint="leave out enable_thinking")
    return whole


class _Phase(Enum):
    BEFORE = "before"  # the first tokens may yet begin a thought
    INSIDE = "inside"
    BEHIND = "behind"  # white space alone has come since, none that a form keeps
    ANSWER = "answer"


class Thought:
    """Tells the thought of a response from its answer, token by token."""

    def __init__(self, marks: Thinking, bound: int | None, begins: Callable[[str], bool]) -> None:
        self._marks, self._bound = marks, bound
        self._begins_form = begins  # whether the form of the answer allows a text at its start
        self._phase = _Phase.INSIDE if marks.is_open else _Phase.BEFORE
        self._held = ""  # text that may yet be part of a mark, or white space at an end
        self._ending = iter(marks.end_ids)
        self._codes = dict.fromkeys(map(ord, marks.codes.values()))
        self.num_tokens, self.text = 0, ""

    @property
    def is_over(self) -> bool:
        return self._phase is _Phase.ANSWER

    @property
    def has_ended(self) -> bool:
        return self._phase in (_Phase.BEHIND, _Phase.ANSWER)

    @property
    def may_fork(self) -> bool:
        return self._phase is not _Phase.INSIDE and not self._held

    def keeps(self, token: int, text: str) -> bool:
        """Return whether a token surely changes no phase, so that it can be guessed."""
        piece = self._marks.codes.get(token, text)
        return self.is_over or (self._phase is _Phase.INSIDE and self._marks.end[-1] not in piece)

    def forced(self) -> int | None:
        """Return the next token of the end mark if the thought has all the tokens it may have."""
        is_full = self._bound is not None and self.num_tokens >= self._bound
        return next(self._ending, None) if is_full and self._phase is _Phase.INSIDE else None

    def feed(self, token: int, text: str) -> tuple[str, str]:
        """Take a token with its text; return what it adds to the thought and to the answer."""
        self.num_tokens += self._phase is _Phase.INSIDE
        self._held += self._marks.codes.get(token, text)
        if self._phase is _Phase.BEFORE:
            self._begin()
        thought = self._think() if self._phase is _Phase.INSIDE else ""
        if self._phase is _Phase.BEHIND:
            self._held = self._held if self._begins_form(self._held) else self._held.lstrip()
            self._phase = _Phase.ANSWER if self._held else _Phase.BEHIND
        answer, self._held = (self._held, "") if self.is_over else ("", self._held)
        return thought, self._plain(answer)

    def close(self, text: str) -> tuple[str, str]:
        """Take the last text, before a tag or the end; return what is left of both."""
        held, was_inside = self._held + text, self._phase is _Phase.INSIDE
        self._held, self._phase = "", _Phase.ANSWER
        return (self._add(held.rstrip()), "") if was_inside else ("", self._plain(held))

    def _begin(self) -> None:
        seen, marks = self._held.lstrip(), self._marks
        for mark, phase in ((marks.start, _Phase.INSIDE), (marks.skip, _Phase.BEHIND)):
            if mark and seen.startswith(mark):
                self._phase, self._held = phase, seen[len(mark) :]
                return
        if not (marks.start.startswith(seen) or marks.skip.startswith(seen)):
            self._phase = _Phase.ANSWER

    def _think(self) -> str:
        held, end = self._held, self._marks.end
        cut = held.find(end)
        if cut >= 0:
            self._phase, self._held = _Phase.BEHIND, held[cut + len(end) :]
            return self._add(held[:cut].rstrip())
        starts = range(max(0, len(held) - len(end)), len(held) + 1)
        cut = next(start for start in starts if end.startswith(held[start:]))
        cut = len(held[:cut].rstrip())
        self._held = held[cut:]
        return self._add(held[:cut])

    def _add(self, text: str) -> str:
        has_begun = self.text or self._marks.is_begun
        text = self._plain(text) if has_begun else self._plain(text).lstrip()
        self.text += text
        return text

    def _plain(self, text: str) -> str:
        return text.translate(self._codes)
