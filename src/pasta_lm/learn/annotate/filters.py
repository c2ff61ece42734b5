"""Accept or reject an annotation; every reason for rejection has a code.

Without tags the answer must be the original, character by character; tags must be well-formed;
topics and blocks have bounds; blocks must give a speedup. Nothing is repaired: the teacher gets
the reason and tries again.
"""

from __future__ import annotations

from dataclasses import dataclass
from os.path import commonprefix
from typing import NamedTuple

from pasta_lm.engines.scripted import words
from pasta_lm.interpreter.trace import speedup_over_text
from pasta_lm.language.check import Diagnostic, check, render
from pasta_lm.language.document import Document, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.faults import Fault
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import escape_topic

NUM_SHOWN = 40  # Characters shown where two texts differ.

_REASON_OF = {
    Fault.NESTED.code: "nested",
    Fault.BLANK_TOPIC.code: "topic_bounds",
    Fault.WORDY_TOPIC.code: "topic_bounds",
    Fault.LONG_TOPIC.code: "topic_bounds",
    Fault.BLOCK_WITHOUT_TOPIC.code: "topic_bounds",
    Fault.EMPTY_BLOCK.code: "block_bounds",
    Fault.IDLE_SYNC.code: "idle_sync",
}
"""Why an annotation with a fault is rejected; other faults: it is malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """Which answers are sent, and which annotations are kept."""

    least_words: int = 5  # PASTA, appendix on annotation: at least five words in a block
    """Minimum of a block."""
    most_words: int = 640  # the longest promise, in tokens
    """Maximum of a block."""
    max_answer_characters: int = 20_000
    """Longer answers are skipped: a copy of them would be cut off."""


FILTERS = FilterConfig()


class Rejection(NamedTuple):
    """Why an answer is not annotated: a code, and a message for the teacher."""

    reason: str
    message: str


def examine(annotated: str, original: str, filters: FilterConfig = FILTERS) -> Document | Rejection:
    """Return a copy in annotator form as a document, or the first reason to reject it."""
    # The teacher may leave spaces before tags: they move, and then count for the speedup.
    faults = check(annotated, Form.ANNOTATOR)
    faults = [fault for fault in faults if fault.code != Fault.SPACE_BEFORE_TAG.code]
    for fault in faults:
        if fault.severity == "error":
            return _reject(fault, annotated)
    document = parse(annotated, Form.ANNOTATOR).with_spaces_after_tags()
    if document.plain_text != original:
        return Rejection("text_changed", _difference(original, document.plain_text))
    if faults:
        return _reject(faults[0], annotated)
    for block in document.blocks:
        num_words = len(block.plain_text.split())
        if not filters.least_words <= num_words <= filters.most_words:
            return Rejection(
                "block_bounds",
                f"The block {block.topic!r} has {num_words} words; a block has "
                f"{filters.least_words} to {filters.most_words}. Remove its tags, or move them.",
            )
    if document.blocks and speedup(document) <= 1:
        return Rejection(
            "no_gain",
            "Written in parallel, this answer would take as many steps as without tags. Mark at "
            "least two longer parts that do not need one another, or return it without tags.",
        )
    return document


def critical_path(document: Document) -> int:
    """Return the critical path of an answer of depth 1 with unlimited threads; words are tokens."""
    main, pending, ends = 0, 0, 0
    for item in document.items:
        if isinstance(item, Text):
            main += len(words(item.text))
        elif isinstance(item, Sync):
            main, pending = max(main, pending) + 1, 0
        else:
            # A promise has two pieces around its topic, which is decoded as it is written.
            main += 2 + len(words(escape_topic(item.topic)))
            pending = max(pending, main + len(words(item.plain_text)))
            ends = max(ends, pending)
    return max(main, ends)


def speedup(document: Document) -> float:
    """Return the theoretical speedup of an answer over its own plain text; words are tokens."""
    path, is_parallel = critical_path(document), bool(document.blocks)
    return speedup_over_text(len(words(document.plain_text)), path, is_parallel=is_parallel)


def _reject(fault: Diagnostic, text: str) -> Rejection:
    return Rejection(_REASON_OF.get(fault.code, "malformed"), render(fault, text))


def _difference(original: str, copy: str) -> str:
    at = len(commonprefix([original, copy]))
    line = original.count("\n", 0, at) + 1
    shown = slice(max(0, at - NUM_SHOWN // 2), at + NUM_SHOWN)
    return (
        f"Without its tags the text is not the original; the first difference is in line {line}. "
        f"The original reads {original[shown]!r}, yours {copy[shown]!r}."
    )
