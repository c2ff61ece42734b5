"""Answers of two models to read side by side, with the tags of the taught one shown."""

from __future__ import annotations

import re
from collections.abc import Collection
from html import escape
from typing import Any

from pasta_lm.errors import InputError
from pasta_lm.evaluate.instructions import SCORED, InstructionRun, answers_of
from pasta_lm.evaluate.prompt_sets import SETS, read_sets
from pasta_lm.strategies import pasta, sequential

MAX_PROMPTS = 60
"""Of each set."""
TAG = re.compile(r"&lt;(?:promise .*?/|/?async|sync/)&gt;")


def side_by_side(run: InstructionRun, sets: Collection[str] = SETS) -> dict[str, Any]:
    """Return what the page shows: the first prompts of some sets, with both answers.

    A prompt whose file is not there is shown by its id.
    """
    answers = {name: answers_of(run.rows(SCORED), name) for name in (sequential.NAME, pasta.NAME)}
    texts = _texts(run)
    shown: dict[str, list[dict[str, Any]]] = {name: [] for name in sets}
    for row in run.rows("prompts"):
        of_set = shown.get(row["set"])
        both = [found.get(row["id"]) for found in answers.values()]
        if of_set is None or len(of_set) >= MAX_PROMPTS or None in both:
            continue
        baseline, taught = (one for one in both if one)
        of_set.append(
            {
                "id": row["id"],
                "parts": row["parts"],
                "prompt": texts.get(row["id"]),
                "sequential": baseline,
                "pasta": taught,
                "program": TAG.sub(r"<b>\g<0></b>", escape(taught.program)),
                "speedup": taught.theoretical_speedup(baseline),
            }
        )
    model, base = (system.model for system in reversed(run.settings.systems))
    return {"model": model, "baseline": base, "sets": {k: v for k, v in shown.items() if v}}


def _texts(run: InstructionRun) -> dict[str, str]:
    if run.prompts:
        return {one.id: one.text for one in run.prompts}
    try:
        return {one.id: one.text for one in read_sets(run.settings.sets)}
    except InputError:
        return {}
