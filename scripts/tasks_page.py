"""Write the examples of ``docs/tasks.md``: one task of every family, as the generators draw it.

``python scripts/tasks_page.py`` rewrites what stands below its mark; a test holds the page to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pasta_lm.tasks import FAMILIES, Task, make
from pasta_lm.tasks.annotators import gold

PAGE = Path(__file__).parents[1] / "docs" / "tasks.md"
MARK = "<!-- below: scripts/tasks_page.py -->\n"
SEED = 11


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
    yield f"```\n{gold(task).annotator_form()}\n```"


def _notes(task: Task) -> str:
    family = FAMILIES[task.family]
    twin = f" Twin: `{family.twin}`." if family.twin else ""
    return twin + (" Held out: no training sees it." if family.held_out else "")


def main() -> None:
    """Rewrite the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(MARK)[0] + MARK + examples() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
