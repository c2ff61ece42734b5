"""The spelling of tags, their pieces, their escapes and the spaces around them.

Knows nothing of order or nesting: which tag may stand where is the table in ``parser.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

PROMISE_OPEN: Final = '<promise topic="'
ASYNC_OPEN: Final = "<async>"
ASYNC_CLOSE: Final = "</async>"
SYNC: Final = "<sync/>"

TOKENS_PER_UNIT: Final = 10  # PASTA, figure: tokens="2" promises about 20 tokens
MAX_UNITS: Final = 64  # the largest length that has a piece of its own
MAX_TOPIC_WORDS: Final = 3  # PASTA: a topic has at most three words
MAX_TOPIC_CHARACTERS: Final = 64
MAX_TAG_CHARACTERS: Final = 1024  # longer tags are mistakes; bounds the lexer's buffer

NAMES: Final = ("promise", "async", "sync")

_NAME = rf"/?(?:{'|'.join(NAMES)})"
_PREFIXES = "|".join(name[:end] for name in NAMES for end in range(len(name), 0, -1))

# A tag begins here; "plain" if it is one of the three tags without attributes.
# Streaming needs to see the character after the name: <asyncio> is text.
_PLAIN = "|".join(tag[1:] for tag in (ASYNC_OPEN, ASYNC_CLOSE, SYNC))
TAG_START: Final = re.compile(rf"<(?:(?P<plain>{_PLAIN})|{_NAME}(?=\W))")
TAG_START_AT_END: Final = re.compile(rf"<(?:(?P<plain>{_PLAIN})|{_NAME}(?!\w))")

# The longest end of a text that may yet become a tag or an entity.
UNDECIDED_TAG: Final = re.compile(rf"</?(?:{_PREFIXES})?\Z")
UNDECIDED: Final = re.compile(
    rf"{UNDECIDED_TAG.pattern}|&(?P<run>(?:amp;)*+)(?:a|am|amp|l|lt|lt;/?(?:{_PREFIXES})?)?\Z"
)

_NEEDS_ESCAPE = re.compile(rf"<(?={_NAME}\b)|&(?=(?:amp;)*+lt;{_NAME}\b)")
_IS_ESCAPED = re.compile(rf"&lt;(?={_NAME}\b)|&amp;(?=(?:amp;)*+lt;{_NAME}\b)")
_TOPIC_NEEDS_ESCAPE = re.compile(rf'[&"]|<(?={_NAME}\b)')
_TOPIC_IS_ESCAPED = re.compile(r"&(?:amp|quot|lt);")

_ENTITIES = {"<": "&lt;", "&": "&amp;", '"': "&quot;"}
_CHARACTERS = {entity: character for character, entity in _ENTITIES.items()}


def closing_piece(units: int) -> str:
    return f'" tokens="{units}"/>'


_CLOSING = (closing_piece(units) for units in range(1, MAX_UNITS + 1))
PIECES: Final = (PROMISE_OPEN, ASYNC_OPEN, ASYNC_CLOSE, SYNC, *_CLOSING)


def promise_tag(topic: str, units: int) -> str:
    return f"{PROMISE_OPEN}{escape_topic(topic)}{closing_piece(units)}"


def annotator_open(topic: str) -> str:
    return f'<async topic="{escape_topic(topic)}">'


def units_for(num_tokens: int) -> int:
    """Return max(1, floor(L / 10 + 1/2)) of a block's length with its tags, not clamped."""
    return max(1, (num_tokens + TOKENS_PER_UNIT // 2) // TOKENS_PER_UNIT)


def escape(text: str) -> str:
    """Write ``<`` as ``&lt;`` before a tag's name; what reads so there gains one ``amp;``."""
    return _NEEDS_ESCAPE.sub(lambda match: _ENTITIES[match.group()], text)


def unescape(text: str) -> str:
    """Read written text that holds no tag: remove one level of escape."""
    return _IS_ESCAPED.sub(lambda match: _CHARACTERS[match.group()], text)


def escape_topic(topic: str) -> str:
    """Write a topic so that it can stand between double quotes in a tag."""
    return _TOPIC_NEEDS_ESCAPE.sub(lambda match: _ENTITIES[match.group()], topic)


def unescape_topic(topic: str) -> str:
    """Read a topic as it stands in a tag: remove one level of escape."""
    return _TOPIC_IS_ESCAPED.sub(lambda match: _CHARACTERS[match.group()], topic)


def bounded_topic(topic: str) -> str:
    """Return a topic that a model decoded, cut to the words and characters that one may have."""
    words = topic.split()
    if len(words) <= MAX_TOPIC_WORDS and len(topic) <= MAX_TOPIC_CHARACTERS:
        return topic
    return " ".join(words[:MAX_TOPIC_WORDS])[:MAX_TOPIC_CHARACTERS].rstrip()


def spaces_after_tags(texts: Sequence[str]) -> Iterator[str]:
    """Yield an answer's texts with the spaces (U+0020) before a tag moved to the text after it.

    Tokenizers give a word its leading space, so a text that ends in one is rarely seen.
    """
    last = max((index for index, text in enumerate(texts) if text.strip(" ")), default=0)
    num_moved = 0
    for text in texts[:last]:
        kept = text.rstrip(" ")
        yield " " * num_moved + kept if kept else ""
        num_moved = len(text) - len(kept) + (0 if kept else num_moved)
    for text in texts[last:]:
        yield " " * num_moved + text
        num_moved = 0
