"""Questions with known answers: generators, their dependency structure, their graders."""

from pasta_lab.tasks.registry import FAMILIES, make, mixture, partner_of, training_families
from pasta_lab.tasks.task import Dependence, Fact, Split, Task, Unit

__all__ = [
    "FAMILIES",
    "Dependence",
    "Fact",
    "Split",
    "Task",
    "Unit",
    "make",
    "mixture",
    "partner_of",
    "training_families",
]
