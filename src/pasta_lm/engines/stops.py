"""Find ``stop`` strings in the text of one thread, as it comes, however it was cut.

Holds back only what may yet become a stop; what was released is never part of one.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopWatch:
    """Watch one thread's text."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for any of these strings, none of them empty."""
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.has_matched = False

    def feed(self, text: str) -> str:
        """Take text and return what can be released: all before a stop once one has matched."""
        if not self._stops or self.has_matched:
            return "" if self.has_matched else text
        text = self._held + text
        places = [(text.find(stop), len(stop)) for stop in self._stops]
        # The first to be complete, as if the text had come one character at a time.
        found = min(((at + size, at) for at, size in places if at >= 0), default=None)
        if found is not None:
            self.has_matched, self._held = True, ""
            return text[: found[1]]
        num_held = next(n for n in range(self._longest - 1, -1, -1) if self._may_begin(text, n))
        cut = len(text) - num_held
        self._held = text[cut:]
        return text[:cut]

    def _may_begin(self, text: str, length: int) -> bool:
        """Tell whether the last ``length`` characters are the beginning of a stop."""
        return length == 0 or (
            length <= len(text) and any(stop.startswith(text[-length:]) for stop in self._stops)
        )

    def flush(self) -> str:
        """Return what is held back: a tag or the end of the thread follows."""
        held, self._held = self._held, ""
        return held
