"""Write the annotated tree of docs/architecture.md from the first sentence of every module.

``--check`` changes nothing and fails where the tree is out of date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pasta_lm"
START, END = "<!-- tree: written by scripts/tree.py -->\n", "<!-- end of tree -->"

# The order of the paper; what is not named comes last.
STORY = [
    "errors",
    "language",
    "interpreter",
    "engines",
    "strategies",
    "tasks",
    "remote",
    "data",
    "judging",
    "annotate",
    "train",
    "evaluate",
    "serve",
    "export",
    "cli",
]


def sentence(module: Path) -> str:
    """Return the first line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(module.read_text("utf-8")))
    if not docstring:
        sys.exit(f"{module.relative_to(ROOT)}: the module has no docstring")
    return docstring.splitlines()[0].removesuffix(".")


def place(path: Path) -> tuple[bool, int, str]:
    """Return the sort key: files before folders, both in the order of the paper, then by name."""
    rank = STORY.index(path.stem) if path.stem in STORY else len(STORY)
    return path.is_dir(), rank, path.name


def lines(folder: Path, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield each package and module below a folder with its sentence."""
    yield "    " * depth + f"{folder.name}/", sentence(folder / "__init__.py")
    for path in sorted(folder.iterdir(), key=place):
        if (path / "__init__.py").exists():
            yield from lines(path, depth + 1)
        elif path.suffix == ".py" and path.stem != "__init__":
            yield "    " * (depth + 1) + path.name, sentence(path)


def main() -> None:
    """Write the tree between its two marks; with ``--check``, fail where it differs."""
    page = ROOT / "docs" / "architecture.md"
    text = page.read_text("utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    entries = list(lines(SOURCE))
    width = max(len(name) for name, _ in entries) + 2
    tree = "\n".join(f"{name:<{width}}{says}" for name, says in entries)
    wanted = f"{before}{START}```text\n{tree}\n```\n{END}{after}"
    if "--check" in sys.argv[1:] and wanted != text:
        sys.exit("docs/architecture.md: the tree is out of date\n    hint: python scripts/tree.py")
    page.write_text(wanted, "utf-8")


if __name__ == "__main__":
    main()
