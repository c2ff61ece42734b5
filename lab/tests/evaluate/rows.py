"""Small hand-made tasks and graded answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pasta_lab.evaluate.records import GradedAnswer
from pasta_lab.evaluate.structure import Structure
from pasta_lab.tasks import Dependence, Fact, Split, Task, Unit


def unit(name: str, *needs: int, fork: bool = True) -> Unit:
    return Unit(f"{name} is here.", name, name.lower(), (Fact("here"),), frozenset(needs), fork)


def task(*units: Unit, pair: str | None = None, family: str = "made") -> Task:
    """Return a task of these units; they are called Ada, Bob and so on, and are found by name."""
    return Task(
        id=f"{family}-{pair}",
        family=family,
        split=Split.TEST,
        prompt="Who is here?",
        units=units,
        records="",
        candidates=frozenset(),
        dependence=Dependence.FREE,
        pair=pair,
    )


FORKS = task(unit("Ada"), unit("Bob"), unit("Cid"))
"""Three units that may be forked, and no sync."""
SYNCS = task(unit("Ada"), unit("Bob"), unit("Cid", 0, fork=False))
"""Two units that may be forked, and one that needs them."""
CHAIN = task(unit("Ada", fork=False), unit("Bob", 0, fork=False))
"""Nothing can be gained."""


def marks(forked: Sequence[int] = (), syncs: Sequence[int] = (), num_stray: int = 0) -> Structure:
    return Structure(frozenset(forked), num_stray, frozenset(syncs))


def answered(grade: float = 1.0, **changes: Any) -> GradedAnswer:
    """Return an answer that ended by itself, of ten tokens one after another."""
    usual: dict[str, Any] = {
        "task_id": "made-1",
        "family": "made",
        "strategy": "pasta",
        "text": "x" * 20,
        "program": "x" * 20,
        "grade": grade,
        "structure": marks(),
        "finish_reason": "stop",
        "num_illegal": 0,
        "num_content_tokens": 10,
        "critical_path": 10,
    }
    return GradedAnswer(**(usual | changes))
