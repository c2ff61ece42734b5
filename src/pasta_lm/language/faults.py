"""Every fault of the grammar: its code, severity, message and hint.

Codes are stable: a code is never used for another fault. 0xx are errors, 1xx are warnings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pasta_lm.language import tags


class Fault(Enum):
    """One kind of fault; its value is code, message and hint, ``{}`` stands for the detail."""

    # fmt: off
    UNFINISHED = ("PASTA001", "this tag is not finished: {}",
        "finish it, or write &lt; for < if it is meant as text")
    TOO_LONG = ("PASTA002", f"this tag has no end within {tags.MAX_TAG_CHARACTERS} characters",
        "finish it, or write &lt; for < if it is meant as text")
    MALFORMED = ("PASTA003", "this tag cannot be read from here on: {}",
        'an attribute is written name="value"; write &lt; for < if it is meant as text')
    WRONG_SLASH = ("PASTA004", "there is no tag {}",
        'the tags are <promise topic="..." tokens="N"/>, <async>, </async> and <sync/>')
    UNKNOWN_ATTRIBUTE = ("PASTA005", "unknown attribute {}",
        "remove it; topic and tokens belong to <promise/>, topic to <async> in annotator form")
    MISSING_ATTRIBUTE = ("PASTA006", "a promise without {}",
        'write <promise topic="..." tokens="N"/>')
    REPEATED_ATTRIBUTE = ("PASTA007", "the attribute {} stands here again", "keep one of them")
    BAD_LENGTH = ("PASTA008", "the length {} is not a whole number of at least 1",
        "tokens is the block's length in units of ten tokens, in the digits 0 to 9")
    BLANK_TOPIC = ("PASTA009", "the topic is blank", "name the block's subject in one word or more")
    WORDY_TOPIC = ("PASTA010", f"the topic has {{}} words, more than {tags.MAX_TOPIC_WORDS}",
        f"name the block's subject in at most {tags.MAX_TOPIC_WORDS} words")
    LONG_TOPIC = ("PASTA011",
        f"the topic has {{}} characters, more than {tags.MAX_TOPIC_CHARACTERS}",
        f"name the block's subject in at most {tags.MAX_TOPIC_CHARACTERS} characters")
    BLOCK_WITHOUT_PROMISE = ("PASTA012", "a block without a promise",
        'write <promise topic="..." tokens="N"/> right before it, or remove its tags')
    PROMISE_WITHOUT_BLOCK = ("PASTA013", "a promise without its block",
        "write <async>...</async> right after it, or remove this tag")
    BETWEEN = ("PASTA014", "something stands between a promise and its block",
        "move it before the promise: the block follows at once")
    NESTED = ("PASTA015", "blocks are nested deeper than allowed, {}",
        "end the block around it first, or remove the inner tags")
    UNCLOSED_BLOCK = ("PASTA016", "this block is never closed", "write </async> where it ends")
    STRAY_CLOSE = ("PASTA017", "there is no open block to close here", "remove this tag")
    SYNC_IN_BLOCK = ("PASTA018", "a sync inside a block", "move it out of the block or remove it")
    BLOCK_IN_MAIN = ("PASTA019", "a block in main form, which has only promises and syncs",
        "remove its tags, or read the text as written form")
    PROMISE_IN_ANNOTATOR = ("PASTA020",
        "a promise in annotator form, where blocks carry their topics",
        'remove it and write <async topic="...">, or read the text as written form')
    BLOCK_WITHOUT_TOPIC = ("PASTA021", "a block without a topic in annotator form",
        'write <async topic="...">')
    AFTER_END = ("PASTA022", "the block has ended before this", "remove what follows </async>")
    IDLE_SYNC = ("PASTA101", "a sync waits for nothing: no block is unjoined here",
        "write the block before its sync, or remove this tag")
    EMPTY_BLOCK = ("PASTA102", "an empty block", "remove the block, or say what it promised")
    OVERLONG = ("PASTA103",
        f"a length above {tags.MAX_UNITS}: encoding clamps it to {tags.MAX_UNITS}",
        "split the block, or promise less")
    SPACE_BEFORE_TAG = ("PASTA104",
        "a space before a tag: tokenizers give a word its leading space",
        "move it to the text after the tag")
    # fmt: on

    @property
    def code(self) -> str:
        return self.value[0]

    @property
    def severity(self) -> str:
        return "warning" if self.code.startswith("PASTA1") else "error"

    @property
    def hint(self) -> str:
        return self.value[2]

    def message(self, detail: str = "") -> str:
        return self.value[1].replace("{}", detail)


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault and where it is: offsets into the whole text, the end excluded."""

    fault: Fault
    detail: str
    start: int
    end: int
