"""Write docs/cli.md and docs/recipes.md from the code; --check fails if one is out of date."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from pasta_lm.cli import app
from pasta_lm.learn.annotate import recipe as annotation
from pasta_lm.learn.train import config as training
from pasta_lm.teaching import config as teaching

ROOT = Path(__file__).parents[1]
HEAD = "| flag | meaning |", "|---|---|"
CLI = """# Command line

Written by `scripts/reference_pages.py` from the command itself. Data goes to standard output,
progress and notices to standard error. Exit codes: 0 done, 1 the run failed, 2 wrong usage or
configuration, 3 the input is invalid, 130 interrupted. `PASTA_MODEL`, `PASTA_DEVICE`, `PASTA_DTYPE`
and `PASTA_DEBUG` stand for flags; a flag wins. `pasta --install-completion` adds completion.
"""
RECIPES = """# Recipes

Written by `scripts/reference_pages.py` from the code. A recipe is a TOML file, checked before
anything is loaded: unknown keys, wrong types and contradictions are errors that name the key.
`--set table.key=value` changes a key and may be repeated; without a value it removes the key.
"""
TABLES = {  # heading: the module of its dataclasses; its tables, each with its dataclass
    "Supervised finetuning": (training, "model Model, data Data, train Train, lora Lora"),
    "Preference optimisation": (
        training, "model Start, data Pairs, data.records Records, rollouts Rollouts, "
        "rollouts.servers Servers, score Score, judge Judge, loss Loss, train PreferenceTrain",
    ),
    "Teaching": (
        teaching, "answers Answers, annotation Annotation, annotation.teacher Teacher, data Mix, "
        "train Learning, preference StageTwo, measures Measures",
    ),
    "Annotation": (
        annotation, "source Source, answers Answer, teacher Teacher, filters Filter, output Output"
    ),
}  # fmt: skip
SHARED = {f.name for f in fields(training.TrainConfig)} - {"learning_rate"}  # stand under stage one


def verbs(group: TyperGroup, path: str) -> Iterator[tuple[str, TyperCommand]]:
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, TyperGroup):
            yield from verbs(command, f"{path} {name}")
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield f"{path} {name}", command


def flags(command: TyperCommand) -> list[str]:
    options = (p for p in command.params if isinstance(p, TyperOption) and not p.hidden)
    return [
        "| `{}` | {} |".format(", ".join(option.opts), (option.help or "").replace("|", "\\|"))
        for option in options
        if "--help" not in option.opts
    ]


def command_page() -> str:
    """Return the page of the command line; flags of several commands stand once."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    known = list(verbs(group, "pasta"))
    counts = Counter(row for _, command in known for row in flags(command))
    shared = {row: row.split("`")[1] for row, count in counts.items() if count > 1}
    lines = [CLI, "## Flags that several commands have\n", *HEAD, *shared]
    for name, command in known:
        arguments = (p.metavar or "" for p in command.params if isinstance(p, TyperArgument))
        summary = " ".join((command.help or "").split("\n\n")[0].split())
        names = ", ".join(f"`{shared[row]}`" for row in flags(command) if row in shared)
        title = " ".join([name, *arguments])
        lines += [f"\n## `{title}`\n", summary + f" Also: {names}." * bool(names)]
        if rest := [row for row in flags(command) if row not in shared]:
            lines += ["", *HEAD, *rest]
    return "\n".join(lines) + "\n"


def keys(table: str, kind: type) -> list[str]:
    """Return a row for each key of a table: key, default, and the text behind or below it."""
    rows = {}
    for base in filter(is_dataclass, reversed(kind.__mro__)):
        lines = inspect.getsource(base).splitlines()
        body = ast.parse("\n".join(lines)).body[0].body  # type: ignore[attr-defined]
        for field, below in zip(body, [*body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign) or "Config" in ast.unparse(field.annotation):
                continue
            text = lines[(field.end_lineno or 1) - 1][field.end_col_offset or 0 :].lstrip(" #")
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                text = " ".join(str(below.value.value).split())
            name = ast.unparse(field.target)
            default = kind.__dataclass_fields__[name].default  # type: ignore[attr-defined]
            shown = "required" if default is MISSING else repr(default)
            rows[name] = f"| `{table}.{name}` | `{shown}` | {text.replace('``', '`')} |"
    elsewhere = SHARED if kind is training.PreferenceTrainConfig else ()
    return [row for name, row in rows.items() if name not in elsewhere]


def recipe_page() -> str:
    lines = [RECIPES]
    for heading, (module, tables) in TABLES.items():
        names = {**vars(annotation), **vars(module), "ServersConfig": training.Servers}
        pairs = (pair.split() for pair in tables.split(", "))
        rows = [row for table, name in pairs for row in keys(table, names[f"{name}Config"])]
        lines += [f"## {heading}\n", "| key | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    for name, text in (("cli", command_page()), ("recipes", recipe_page())):
        page = ROOT / "docs" / f"{name}.md"
        if "--check" in sys.argv and page.read_text("utf-8") != text:
            sys.exit(f"docs/{name}.md is out of date: run scripts/reference_pages.py")
        page.write_text(text, "utf-8")
