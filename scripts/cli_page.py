"""Write docs/cli.md from the command line itself; with --check, fail if the page is out of date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import typer
import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from pasta_lm.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """# Command line

Written by `scripts/cli_page.py` from the command itself. Data goes to standard output, progress
and notices to standard error. Exit codes: 0 done, 1 the run failed, 2 wrong usage or configuration,
3 the input is invalid, 130 interrupted. `PASTA_MODEL`, `PASTA_DEVICE`, `PASTA_DTYPE` and
`PASTA_DEBUG` stand for flags; a flag wins. `pasta --install-completion` adds completion.
"""


def verbs(group: TyperGroup, path: str) -> Iterator[tuple[str, TyperCommand]]:
    """Yield every command below a group with its name as it is typed."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, TyperGroup):
            yield from verbs(command, f"{path} {name}")
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield f"{path} {name}", command


def section(name: str, command: TyperCommand) -> str:
    """Return a command's heading, first paragraph and table of flags."""
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    places = [p.metavar or (p.name or "").upper() for p in arguments]
    options = [p for p in command.params if isinstance(p, TyperOption) and not p.hidden]
    summary = (command.help or "").split("\n\n")[0].replace("\n", " ").strip()
    rows = [
        "| `{}` | {} |".format(", ".join(option.opts), (option.help or "").replace("|", "\\|"))
        for option in options
        if "--help" not in option.opts
    ]
    table = ["| flag | meaning |", "|---|---|", *rows] if rows else []
    heading = f"## `{' '.join([name, *places])}`"
    return "\n".join([heading, "", summary, "", *table]).rstrip() + "\n"


def page() -> str:
    """Return the whole page."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return "\n".join([HEAD, *(section(*verb) for verb in verbs(group, "pasta"))])


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text("utf-8") != page() and "docs/cli.md: run scripts/cli_page.py")
    PAGE.write_text(page(), "utf-8")
