"""Turn token ids into text, one at a time, never splitting a character; find stop strings in it.

Every token stands for a fixed run of bytes in the middle of a text. A tokenizer's decoder changes
the first token of a text (drops a space); that does not happen here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
# The characters in which byte-level tokenizers spell bytes (GPT-2's table).
_CHARACTERS = [*map(chr, _PRINTABLE), *map(chr, range(256, 256 + len(_OTHERS)))]
_BYTE_OF_CHARACTER = dict(zip(_CHARACTERS, _PRINTABLE + _OTHERS, strict=True))


class TokenBytes(dict[int, bytes]):
    """The bytes of each token by its id, worked out when they are first needed.

    ``silent`` tokens stand for no text: the tags and special tokens. ``anchor`` is a few ordinary
    tokens; text decoded after them is in the middle of a text.
    """

    def __init__(
        self, backend: Tokenizer, decoders: frozenset[str], *, silent: frozenset[int],
        anchor: list[int],
    ) -> None:  # fmt: skip
        super().__init__()
        self._silent, self._backend, self._decoders = silent, backend, decoders
        self._anchor, self._anchor_text = anchor, backend.decode(anchor)
        model, added = backend.model, backend.get_added_tokens_decoder()
        # Those that are no words of the model are matched in the text itself.
        self._added = {i: t.content for i, t in added.items() if model.id_to_token(i) is None}

    def __missing__(self, token_id: int) -> bytes:
        return self.setdefault(token_id, self._work_out(token_id))

    def _work_out(self, token_id: int) -> bytes:
        spelling = self._backend.id_to_token(token_id)
        if spelling is None or token_id in self._silent:
            return b""
        if token_id in self._added:
            return self._added[token_id].encode()
        if "ByteLevel" in self._decoders:
            try:
                return bytes([_BYTE_OF_CHARACTER[character] for character in spelling])
            except KeyError:  # a token that is special elsewhere may have no alphabet
                return spelling.encode()
        byte = _BYTE_TOKEN.fullmatch(spelling) if "ByteFallback" in self._decoders else None
        if byte is not None:
            return bytes.fromhex(byte[1])
        text = self._backend.decode([*self._anchor, token_id])
        return text[len(self._anchor_text) :].encode()


class TextStream:
    """The text of a stretch between two tags; bytes that become no character come out as U+FFFD."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self._bytes[token_id])

    def close(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class StopWatch:
    """Finds stop strings in the text of one thread; holds back what may yet become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.has_matched = False

    def feed(self, text: str) -> str:
        """Take text and return the part that can be released: up to the first stop string."""
        if not self._stops or self.has_matched:
            return "" if self.has_matched else text
        text = self._held + text
        places = [(text.find(stop), len(stop)) for stop in self._stops]
        # The first to be complete, as if the text had come one character at a time.
        first = min(((at + size, at) for at, size in places if at >= 0), default=None)
        if first is not None:
            self.has_matched, self._held = True, ""
            return text[: first[1]]
        # Hold back the longest end of the text that begins a stop string.
        cuts = range(max(0, len(text) - self._longest + 1), len(text))
        begins_stop = (cut for cut in cuts if any(s.startswith(text[cut:]) for s in self._stops))
        cut = next(begins_stop, len(text))
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """Return the text that is held back: a tag or the end of the thread follows."""
        held, self._held = self._held, ""
        return held
