"""Write the generated parts of ``docs/tasks.md``: forks of the rules, one example of every family.

``python scripts/tasks_page.py`` rewrites both below their marks; a test compares the page with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pasta_lab.evaluate.structure import fork_counts, structure, true_structure
from pasta_lab.tasks import FAMILIES, Task, make, training_families
from pasta_lab.tasks.annotators import ANNOTATORS, gold
from pasta_lab.tasks.registry import task_set

PAGE = Path(__file__).parents[1] / "docs" / "tasks.md"
RULES_MARK = "<!-- forks of the rules: scripts/tasks_page.py -->\n"
END_MARK = "<!-- end of the forks of the rules -->\n"
MARK = "<!-- below: scripts/tasks_page.py -->\n"
SEED = 11
NUM_PER_FAMILY = 20
"""Development prompts of each of the 21 families: 420 in all."""
RULES = ("rule", "rule_lines", "rule_label", "always_fork", "noisy")


def rules_table() -> str:
    """Return the precision and recall of the forks of each rule on development prompts."""
    tasks = task_set("dev", NUM_PER_FAMILY, families=training_families())
    labelled = [task for task in tasks if task.preface]
    lines = [
        f"| annotator | precision, {len(tasks)} prompts | recall | precision, the {len(labelled)} "
        "prompts of the ten families | recall |",
        "|---|---|---|---|---|",
    ]
    for name in RULES:
        cells = (*_precision_recall(name, tasks), *_precision_recall(name, labelled))
        lines.append(" | ".join((f"| `{name}`", *(f"{cell:.2f}" for cell in cells))) + " |")
    return "\n".join(lines) + "\n"


def _precision_recall(name: str, tasks: Sequence[Task]) -> tuple[float, float]:
    counts = [
        fork_counts(structure(task, ANNOTATORS[name](task, 0)), true_structure(task))
        for task in tasks
    ]
    right = sum(one.right for one in counts)
    return right / sum(one.given for one in counts), right / sum(one.wanted for one in counts)


def examples() -> str:
    """Return the section of every family, in the order of the registry."""
    return "\n".join("\n".join(_section(name)) for name in FAMILIES)


def _section(name: str) -> Iterator[str]:
    family = FAMILIES[name]
    task = make(name, "train", SEED)
    yield f"\n### `{name}`\n"
    yield " ".join((family.make.__doc__ or "").split())
    yield f"Dependence: {task.dependence}.{_notes(task)}\n"
    yield f"```\n{task.prompt}\n```\n"
    yield f"```\n{gold(task).with_spaces_after_tags().annotator_form()}\n```"


def _notes(task: Task) -> str:
    family = FAMILIES[task.family]
    partner = f" Pair partner: `{family.partner}`." if family.partner else ""
    return partner + (" Held out: in no training stage." if family.held_out else "")


def page() -> str:
    """Return the page with its generated parts made anew."""
    begin, _, others = PAGE.read_text(encoding="utf-8").partition(RULES_MARK)
    middle = others.partition(END_MARK)[2].partition(MARK)[0]
    return begin + RULES_MARK + rules_table() + END_MARK + middle + MARK + examples() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
