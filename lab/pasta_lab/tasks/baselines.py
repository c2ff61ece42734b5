"""Write answers as the baselines learn them (APAR's details, SoT's points); all annotators by name.

APAR's published rules read the layout: the label of a list item, or the first sentence of a
paragraph, stays in the parent, and the rest is forked. ``forked_document`` has these rules in their
best form on short answers (any mark, any line, two forks), ``published_document`` with their own
bounds. ``details_of`` takes the blocks of another annotation, so that only the execution differs.

Source: Liu et al. 2024 (APAR), arXiv 2401.06761, section 3.1 and its published data scripts;
Ning et al. 2024 (Skeleton-of-Thought), arXiv 2307.15337, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from random import Random

from pasta_lab.tasks.annotators import ANNOTATORS as PASTA_ANNOTATORS
from pasta_lab.tasks.annotators import Annotator, gold, noisy, plain
from pasta_lab.tasks.layout import Layout, Part, parts, rest
from pasta_lab.tasks.task import Task
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.parser import FORK_TOPIC

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
    found = parts(text)
    if is_list:
        found = [p if _is_labelled(p) else Part(p.before, p.text, Layout.LINE) for p in found]
    return _forked(found, rest(text, found), layouts, min_forks)


def published_document(text: str) -> Document:
    """Return an answer as APAR's published rules fork it: lists with labels, else paragraphs."""
    if any(mark in text for mark in CODE_MARKS):
        return Document((Text(text),))
    numbered = forked_document(text, {Layout.ITEM}, min_forks=MIN_PUBLISHED_FORKS, is_list=True)
    if numbered.blocks:
        return numbered
    paragraphs = [Part("", one, Layout.LINE) for one in re.split(r"(\n\n+)", text)]
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


RULES: dict[str, Callable[[Document], Document]] = {
    "apar": lambda document: forked_document(document.plain_text),
    "apar_published": lambda document: published_document(document.plain_text),
    "sot": points_of,
}
"""How baselines learn annotated answers, by name: APAR from plain text, SoT from the blocks."""


def details_of(document: Document) -> Document:
    """Return an answer whose blocks keep their details alone: the leads move to the parent.

    Its syncs are left out; APAR has none.
    """
    items: list[Item] = []
    for item in document.items:
        if isinstance(item, Block):
            (part, *others) = parts(item.plain_text)
            whole = replace(part, text=item.plain_text) if others else part
            items += _lead_and_detail(whole, whole.label_end)
        elif not isinstance(item, Sync):
            items.append(item)
    return Document(tuple(items))


def points_document(points: Iterable[tuple[str, str]]) -> Document:
    """Return the answer that consists of these points, as (topic, text), each a block."""
    return Document(tuple(Block(topic, None, (Text(text),)) for topic, text in points))


def _is_labelled(part: Part) -> bool:
    return bool(_NUMBERED.match(part.text)) and part.label_end is not None


def _forked(
    found: list[Part],
    end: str,
    layouts: Collection[Layout],
    min_forks: int,
    *,
    has_labels: bool = True,
) -> Document:
    items: list[Item] = []
    for part in found:
        items.append(Text(part.before))
        has_lead = part.layout in layouts and not part.is_conclusion
        label_end = part.label_end if has_labels else None
        items += _lead_and_detail(part, label_end) if has_lead else [Text(part.text)]
    document = Document((*items, Text(end)))
    return document if len(document.blocks) >= min_forks else document.without_tags()


def _lead_and_detail(part: Part, label_end: int | None) -> list[Item]:
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


WHOLE_SHARE = 0.25
"""Share of the answers by points that are learned whole too, for prompts without a skeleton."""


def apar(task: Task, seed: int = 0) -> Document:
    """Return the answer as APAR's rules fork it, in their best form on short answers."""
    return forked_document(task.text)


def apar_published(task: Task, seed: int = 0) -> Document:
    """Return the answer as APAR's published rules fork it."""
    return published_document(task.text)


def apar_gold(task: Task, seed: int = 0) -> Document:
    """Return the answer with the details of the true blocks forked."""
    return details_of(gold(task, seed))


def apar_noisy(task: Task, seed: int = 0) -> Document:
    """Return the answer with the details of the noisy annotator's blocks forked."""
    return details_of(noisy(task, seed))


def sot(task: Task, seed: int = 0) -> Document:
    """Return the answer by points, one for each unit, dependent or not; a share stays whole."""
    random = Random(f"sot/{task.id}/{seed}")
    if len(task.units) > 1 and random.random() < WHOLE_SHARE:
        return plain(task)
    return by_points(task)


def sot_gold(task: Task, seed: int = 0) -> Document:
    """Return the answer by points where its true structure lets all be written at once.

    Elsewhere it is a single point, which has no skeleton: the model learns to route by itself.
    """
    document = _by_points_like(task, gold(task, seed))
    return document if document.blocks else points_document([(task.units[0].topic, task.text)])


def sot_noisy(task: Task, seed: int = 0) -> Document:
    """Return the answer by points where the noisy annotator lets all be written at once.

    Elsewhere it stays whole. One wrong sync is enough for that, so the model must not learn from it
    when to write no skeleton: a router decides.
    """
    return _by_points_like(task, noisy(task, seed))


def by_points(task: Task) -> Document:
    """Return the answer as blocks alone, one for each unit with the text in front of it."""
    return points_document(
        (unit.topic, (unit.before if index else task.preface) + unit.text)
        for index, unit in enumerate(task.units)
    )


def _by_points_like(task: Task, document: Document) -> Document:
    is_free = len(document.blocks) > 1 and not document.num_syncs
    return by_points(task) if is_free or len(task.units) == 1 else document.without_tags()


APAR_ANNOTATORS: dict[str, Annotator] = {
    "apar": apar,
    "apar_published": apar_published,
    "apar_gold": apar_gold,
    "apar_noisy": apar_noisy,
}
SOT_ANNOTATORS: dict[str, Annotator] = {"sot": sot, "sot_gold": sot_gold, "sot_noisy": sot_noisy}
ANNOTATORS: dict[str, Annotator] = PASTA_ANNOTATORS | APAR_ANNOTATORS | SOT_ANNOTATORS
"""All annotators that a recipe can name."""
