"""The text of a response in reading order, while several threads decode it.

The first unfinished thread is passed on as it is decoded; what stands behind it is held until its
turn. The finished answer has the last word: a stop string may have cut text that was held.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pasta_lm.engines import request
from pasta_lm.language import tags

# The end of a text that may need an escape once more of it is known.
_UNDECIDED = re.compile(r"[<&][/a-z;]*\Z")


class _Tag(str):
    """A tag, or the end of a block, as it is written."""


@dataclass(slots=True)
class _ThreadText:
    """The texts and tags that one thread has so far, and the numbers of the threads in it."""

    items: list[str | int] = field(default_factory=list)
    num_read: int = 0
    has_ended: bool = False
    opening: _Tag | None = None  # its promise and ``<async>``; None: it has not started


class ReadingOrder:
    """One sample's text, as far as it is certain after each step.

    ``keeps_tags``: the written form; ``is_held``: all comes at the end (the first text is a plan).
    """

    def __init__(self, *, keeps_tags: bool = False, is_held: bool = False) -> None:
        self._keeps_tags, self._is_held = keeps_tags, is_held
        self._threads: dict[int, _ThreadText] = {0: _ThreadText(opening=_Tag())}
        self._open = [0]  # the thread that is read, behind those that it stands in
        self._undecided = ""
        self._sent: list[str] = []

    def feed(self, events: Sequence[request.StreamEvent]) -> str:
        """Take all events of the sample in one step and return the text that is now certain."""
        for event in events:
            if isinstance(event, request.Finished):
                whole = event.answer.program if self._keeps_tags else event.answer.text
                sent = "".join(self._sent)
                if not whole.startswith(sent):
                    raise RuntimeError("the streamed text is no beginning of the answer")
                return whole[len(sent) :]
            self._take(event)
        if self._is_held:
            return ""
        self._sent.append("".join(map(self._written, iter(self._next_item, None))))
        return self._sent[-1]

    def text_so_far(self, thread: int = 0) -> str:
        items = self._threads[thread].items
        if self._is_held and thread == 0:  # a plan is no part of the answer
            items = [item for item in items if isinstance(item, int)]
        texts = (self.text_so_far(item) if isinstance(item, int) else item for item in items)
        return "".join(text for text in texts if not isinstance(text, _Tag))

    def _take(self, event: request.StreamEvent) -> None:
        match event:
            case request.Deferred(thread=thread, parent=parent):
                self._add(thread, parent)
            case request.ThreadStarted(thread=thread, parent=int(parent), topic=topic):
                self._add(thread, parent)
                if event.promised_tokens is None:  # no written form: it comes at the end
                    self._is_held |= self._keeps_tags
                units = (event.promised_tokens or 0) // tags.TOKENS_PER_UNIT or 1
                self._threads[thread].opening = _Tag(
                    tags.promise_tag(topic or "", units) + tags.ASYNC_OPEN
                )
            case request.TextDelta(thread=thread, text=text):
                self._threads[thread].items.append(text)
            case request.Synced(thread=thread):
                self._threads[thread].items.append(_Tag(tags.SYNC))
            case request.ThreadEnded(thread=thread) if thread in self._threads:
                self._threads[thread].has_ended = True

    def _add(self, thread: int, parent: int) -> None:
        if thread not in self._threads:
            self._threads[thread] = _ThreadText()
            self._threads[parent].items.append(thread)

    def _next_item(self) -> str | None:
        text = self._threads[self._open[-1]]
        if text.num_read == len(text.items):
            if not text.has_ended or len(self._open) == 1:
                return None
            self._open.pop()
            return _Tag(tags.ASYNC_CLOSE)
        item = text.items[text.num_read]
        if isinstance(item, str):
            text.num_read += 1
            return item
        if (opening := self._threads[item].opening) is not None:
            text.num_read += 1
            self._open.append(item)
        return opening

    def _written(self, item: str) -> str:
        if not self._keeps_tags:
            return "" if isinstance(item, _Tag) else item
        if isinstance(item, _Tag):
            text, self._undecided = self._undecided, ""
            return tags.escape(text) + item
        text = self._undecided + item
        match = _UNDECIDED.search(text)
        cut = len(text) if match is None else match.start()
        self._undecided = text[cut:]
        return tags.escape(text[:cut])
