"""Write answers of tasks as the baselines learn them; all annotators by name.

``details_of`` takes the blocks of another annotation, so that only the execution differs.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from pasta_lab.tasks.annotators import ANNOTATORS as PASTA_ANNOTATORS
from pasta_lab.tasks.annotators import Annotator, gold, noisy, plain
from pasta_lab.tasks.task import Task
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync
from pasta_lm.learn.data.baselines import (
    forked_document,
    lead_and_detail,
    points_document,
    published_document,
)
from pasta_lm.learn.data.layout import parts


def details_of(document: Document) -> Document:
    """Return an answer whose blocks keep their details alone: the leads move to the parent.

    Its syncs are left out; APAR has none.
    """
    items: list[Item] = []
    for item in document.items:
        if isinstance(item, Block):
            (part, *others) = parts(item.plain_text)
            whole = replace(part, text=item.plain_text) if others else part
            items += lead_and_detail(whole, whole.label_end)
        elif not isinstance(item, Sync):
            items.append(item)
    return Document(tuple(items))


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
