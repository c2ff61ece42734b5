"""Annotate answers as the rivals learn them: APAR's leads and details, the points of SoT.

APAR's published rules read layout: the label of a list item, or the first sentence of a paragraph,
stays in the parent, the rest is forked. ``apar`` is their best form on short answers: any mark, any
line, two forks; ``apar_published`` has their own bounds. The others take the structure of another
annotator, so that what is compared is the execution alone.

Source: Liu et al. 2024 (APAR), arXiv 2401.06761, section 3.1 and its published data scripts;
Ning et al. 2024 (Skeleton-of-Thought), arXiv 2307.15337, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.parser import FORK_TOPIC
from pasta_lm.tasks.annotators import ANNOTATORS, gold, noisy
from pasta_lm.tasks.layout import Layout, Part, parts, rest
from pasta_lm.tasks.task import Task

LEAST_DETAIL = 10
"""Characters of a forked detail (APAR's scripts)."""
LEAST_FORKS = 2
PUBLISHED_FORKS = 3
"""So many at least, or the answer stays whole (APAR's scripts)."""
NOT_FORKED = ("```", "$$", "<", ">", "=", "---", "http")
"""Answers with one of these are code or mathematics, and stay whole (APAR's scripts)."""
ASKED_PLAINLY = 0.25
"""Share of the answers by points that are learned whole too: what a router sends past skeletons."""

_SENTENCE_END = re.compile(r"[.!?](?=\s)")
_NUMBERED = re.compile(r"\d+\.\s")


def apar(task: Task, seed: int = 0) -> Document:
    """Return the answer as APAR's rules fork it, in their best form on short answers."""
    return forked_document(task.text)


def apar_published(task: Task, seed: int = 0) -> Document:
    """Return the answer as APAR's published rules fork it."""
    return published_document(task.text)


def published_document(text: str) -> Document:
    """Return an answer as APAR's published rules fork it: lists with labels, else paragraphs."""
    if any(mark in text for mark in NOT_FORKED):
        return Document((Text(text),))
    numbered = forked_document(text, {Layout.ITEM}, least_forks=PUBLISHED_FORKS, is_list=True)
    if numbered.blocks:
        return numbered
    paragraphs = [Part("", one, Layout.LINE) for one in re.split(r"(\n\n+)", text)]
    if len(paragraphs) <= 2 * (PUBLISHED_FORKS - 1):
        return Document((Text(text),))
    return _forked(paragraphs, "", {Layout.LINE}, PUBLISHED_FORKS, has_labels=False)


def apar_gold(task: Task, seed: int = 0) -> Document:
    """Return the answer with the details of the true blocks forked; APAR has no syncs."""
    return details_of(gold(task, seed))


def apar_noisy(task: Task, seed: int = 0) -> Document:
    """Return the answer with the details of the noisy annotator's blocks forked."""
    return details_of(noisy(task, seed))


def sot(task: Task, seed: int = 0) -> Document:
    """Return the answer as points, one a unit, whatever was asked; some answers stay whole."""
    random = Random(f"sot/{task.id}/{seed}")
    if len(task.units) > 1 and random.random() < ASKED_PLAINLY:
        return Document((Text(task.text),))
    return by_points(task)


def sot_gold(task: Task, seed: int = 0) -> Document:
    """Return the answer as points where the true structure lets all be written at once.

    Elsewhere it is a single point, which has no skeleton: so a model learns to route by itself.
    """
    document = _by_points_like(task, gold(task, seed))
    if document.blocks:
        return document
    return Document((Block(task.units[0].topic, None, (Text(task.text),)),))


def sot_noisy(task: Task, seed: int = 0) -> Document:
    """Return the answer as points where the noisy annotator lets all be written at once.

    Elsewhere it stays whole. One wrong sync is enough for that, so what is learned of it must not
    be when to write no skeleton: a router weighs that.
    """
    return _by_points_like(task, noisy(task, seed))


Annotate = Callable[[Task, int], Document]
Fork = Callable[[str], Document]

APAR_ANNOTATORS: dict[str, Annotate] = {
    "apar": apar,
    "apar_published": apar_published,
    "apar_gold": apar_gold,
    "apar_noisy": apar_noisy,
}
SOT_ANNOTATORS: dict[str, Annotate] = {"sot": sot, "sot_gold": sot_gold, "sot_noisy": sot_noisy}
EVERY_ANNOTATOR: dict[str, Annotate] = ANNOTATORS | APAR_ANNOTATORS | SOT_ANNOTATORS
"""All that a recipe can name."""


def forked_document(
    text: str,
    layouts: Collection[Layout] = frozenset(Layout),
    *,
    least_forks: int = LEAST_FORKS,
    is_list: bool = False,
) -> Document:
    """Return an answer with the details of its parts forked; their leads stay in the parent.

    Args:
        text: The plain answer.
        layouts: Parts that have leads and details.
        least_forks: With fewer the answer stays whole.
        is_list: Only numbered items with a label count.
    """
    found = parts(text)
    if is_list:
        found = [p if _is_labelled(p) else Part(p.before, p.text, Layout.LINE) for p in found]
    return _forked(found, rest(text, found), layouts, least_forks)


APAR_RULES: dict[str, Fork] = {"apar": forked_document, "apar_published": published_document}
"""APAR's rules for any text, by name."""


def details_of(document: Document) -> Document:
    """Return an answer with its blocks cut to their details, the leads in front, without syncs."""
    items: list[Item] = []
    for item in document.items:
        if isinstance(item, Block):
            (part, *others) = parts(item.plain_text)
            whole = replace(part, text=item.plain_text) if others else part
            items += _lead_and_detail(whole, whole.label_end)
        elif not isinstance(item, Sync):
            items.append(item)
    return Document(tuple(items))


def by_points(task: Task) -> Document:
    """Return the answer as blocks alone, one a unit with what stands in front of it."""
    blocks = [
        Block(unit.topic, None, (Text((unit.before if index else task.preface) + unit.text),))
        for index, unit in enumerate(task.units)
    ]
    return Document(tuple(blocks))


def _by_points_like(task: Task, document: Document) -> Document:
    is_free = len(document.blocks) > 1 and not document.num_syncs
    return by_points(task) if is_free or len(task.units) == 1 else document.without_tags()


def _is_labelled(part: Part) -> bool:
    return bool(_NUMBERED.match(part.text)) and part.label_end is not None


def _forked(
    found: list[Part],
    end: str,
    layouts: Collection[Layout],
    least_forks: int,
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
    return document if len(document.blocks) >= least_forks else document.without_tags()


def _lead_and_detail(part: Part, label_end: int | None) -> list[Item]:
    """Return a part as its lead and a block with the rest; whole where the rest is too little.

    Without a label, its first sentence leads.
    """
    text, end = part.text, label_end
    if end is None:
        sentence = _SENTENCE_END.search(text, part.body_start)
        end = len(text) if sentence is None else sentence.end()
    if len(text[end:].strip()) < LEAST_DETAIL:
        return [Text(text)]
    return [Text(text[:end]), Block(FORK_TOPIC, None, (Text(text[end:]),))]
