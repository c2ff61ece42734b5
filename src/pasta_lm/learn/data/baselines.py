"""Rewrite annotated answers as the baselines learn them: APAR's details, SoT's points.

APAR's published rules read the layout: the label of a list item, or the first sentence of a
paragraph, stays in the parent, and the rest is forked. ``forked_document`` has these rules in their
best form on short answers (any mark, any line, two forks), ``published_document`` with their own
bounds.

Source: Liu et al. 2024 (APAR), arXiv 2401.06761, section 3.1 and its published data scripts;
Ning et al. 2024 (Skeleton-of-Thought), arXiv 2307.15337, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Text
from pasta_lm.language.parser import FORK_TOPIC
from pasta_lm.learn.data.layout import Layout, Part, parts, rest

MIN_DETAIL_CHARACTERS = 10
"""Shorter details are not forked (APAR's scripts)."""
MIN_FORKS = 2
MIN_PUBLISHED_FORKS = 3
"""Answers with fewer forks stay whole (APAR's scripts)."""
CODE_MARKS = ("```", "$$", "<", ">", "=", "---", "http")
"""Answers with one of these are code or mathematics and stay whole (APAR's scripts)."""

_SENTENCE_END = re.compile(r"[.!?](?=\s)")
_NUMBERED = re.compile(r"\d+\.\s")


def forked_document(
    text: str,
    layouts: Collection[Layout] = frozenset(Layout),
    *,
    min_forks: int = MIN_FORKS,
    is_list: bool = False,
) -> Document:
    """Return an answer with the details of its parts forked; their leads stay in the parent.

    Args:
        text: The plain answer.
        layouts: Layouts of the parts that have leads and details.
        min_forks: With fewer the answer stays whole.
        is_list: Whether only numbered items with a label count.
    """
    split = parts(text)
    if is_list:
        split = [p if _is_labelled(p) else Part(p.before, p.text, Layout.LINE) for p in split]
    return _forked(split, rest(text, split), layouts, min_forks)


def published_document(text: str) -> Document:
    """Return an answer as APAR's published rules fork it: lists with labels, else paragraphs."""
    if any(mark in text for mark in CODE_MARKS):
        return Document((Text(text),))
    numbered = forked_document(text, {Layout.ITEM}, min_forks=MIN_PUBLISHED_FORKS, is_list=True)
    if numbered.blocks:
        return numbered
    paragraphs = [Part("", lines, Layout.LINE) for lines in re.split(r"(\n\n+)", text)]
    if len(paragraphs) <= 2 * (MIN_PUBLISHED_FORKS - 1):
        return Document((Text(text),))
    return _forked(paragraphs, "", {Layout.LINE}, MIN_PUBLISHED_FORKS, has_labels=False)


def points_of(document: Document) -> Document:
    """Return an annotated answer by points: its blocks, each with the text in front of it.

    An answer with a sync or with fewer than two blocks is a single point, which has no skeleton: so
    the model learns to route by itself.
    """
    if len(document.blocks) < 2 or document.num_syncs:
        return points_document([(FORK_TOPIC, document.plain_text)])
    points: list[tuple[str, str]] = []
    before = ""
    for item in document.items:
        if isinstance(item, Block):
            points.append((item.topic, before + item.plain_text))
            before = ""
        elif isinstance(item, Text):
            before += item.text
    (topic, text) = points.pop()
    return points_document([*points, (topic, text + before)])


def points_document(points: Iterable[tuple[str, str]]) -> Document:
    """Return the answer that consists of these points, as (topic, text), each a block."""
    return Document(tuple(Block(topic, None, (Text(text),)) for topic, text in points))


def _is_labelled(part: Part) -> bool:
    return bool(_NUMBERED.match(part.text)) and part.label_end is not None


def _forked(
    split: list[Part],
    end: str,
    layouts: Collection[Layout],
    min_forks: int,
    *,
    has_labels: bool = True,
) -> Document:
    items: list[Item] = []
    for part in split:
        items.append(Text(part.before))
        has_lead = part.layout in layouts and not part.is_conclusion
        label_end = part.label_end if has_labels else None
        items += lead_and_detail(part, label_end) if has_lead else [Text(part.text)]
    document = Document((*items, Text(end)))
    return document if len(document.blocks) >= min_forks else document.without_tags()


def lead_and_detail(part: Part, label_end: int | None) -> list[Item]:
    """Return a part as its lead and a block with the rest; whole where the rest is too short.

    Without a label, its first sentence is the lead.
    """
    text, end = part.text, label_end
    if end is None:
        sentence = _SENTENCE_END.search(text, part.body_start)
        end = len(text) if sentence is None else sentence.end()
    if len(text[end:].strip()) < MIN_DETAIL_CHARACTERS:
        return [Text(text)]
    return [Text(text[:end]), Block(FORK_TOPIC, None, (Text(text[end:]),))]


RULES: dict[str, Callable[[Document], Document]] = {
    "apar": lambda document: forked_document(document.plain_text),
    "apar_published": lambda document: published_document(document.plain_text),
    "sot": points_of,
}
"""How baselines learn annotated answers, by name: APAR from plain text, SoT from the blocks."""
