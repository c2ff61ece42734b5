"""Write docs/cli.md and docs/recipes.md from the code; --check fails if one is out of date."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from pasta_lm.cli import app

ROOT = Path(__file__).parents[1]
HEAD, MIN_SHARED = ("| flag | meaning |", "|---|---|"), 2
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
ROOMS = {  # heading: its tables, each with its dataclass
    "Supervised finetuning": "model ModelConfig, data DataConfig, "
    "train TrainConfig, lora LoraConfig",
    "Preference optimisation": "model StartConfig, data PairsConfig, data.records RecordsConfig, "
    "rollouts RolloutsConfig, rollouts.servers Servers, score ScoreConfig, judge JudgeConfig, "
    "loss LossConfig, train PreferenceTrainConfig",
    "Teaching": "answers AnswersConfig, annotation AnnotationConfig, "
    "annotation.teacher TeacherConfig, data MixConfig, train LearningConfig, "
    "preference StageTwoConfig, measures MeasuresConfig",
    "Annotation": "source SourceConfig, answers AnswerConfig, teacher TeacherConfig, "
    "filters FilterConfig, output OutputConfig",
}


def verbs(group: TyperGroup, path: str) -> Iterator[tuple[str, TyperCommand]]:
    """Yield every command below a group with its name as it is typed."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, TyperGroup):
            yield from verbs(command, f"{path} {name}")
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield f"{path} {name}", command


def flags(command: TyperCommand) -> list[str]:
    """Return the rows of a command's flags."""
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
    shared = {row: row.split("`")[1] for row, count in counts.items() if count >= MIN_SHARED}
    lines = [CLI, "## Flags that several commands have\n", *HEAD, *shared]
    for name, command in known:
        places = [p.metavar or "" for p in command.params if isinstance(p, TyperArgument)]
        summary = " ".join((command.help or "").split("\n\n")[0].split())
        names = ", ".join(f"`{shared[row]}`" for row in flags(command) if row in shared)
        title = " ".join([name, *places])
        lines += [f"\n## `{title}`\n", summary + f" Also: {names}." * bool(names)]
        own = [row for row in flags(command) if row not in shared]
        lines += ["", *HEAD, *own] if own else []
    return "\n".join(lines) + "\n"


def keys(table: str, name: str) -> Iterator[str]:
    """Yield a row for each field of a dataclass: key, default, and the text behind or below it."""
    sources = (file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py"))
    source = next(text for text in sources if re.search(rf"^class {name}\b", text, re.MULTILINE))
    lines, body = source.splitlines(), ast.parse(source).body
    kind = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    if "Endpoint" in map(ast.unparse, kind.bases):
        yield from keys(table, "Endpoint")
    for field, below in zip(kind.body, [*kind.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or "Config" in ast.unparse(field.annotation):
            continue
        value = ast.unparse(field.value) if field.value else "required"
        text = lines[(field.end_lineno or 1) - 1][field.end_col_offset or 0 :].lstrip(" #")
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = " ".join(str(below.value.value).split())
        yield f"| `{table}.{ast.unparse(field.target)}` | `{value}` | {text} |".replace("``", "`")


def recipe_page() -> str:
    """Return the page of the keys of recipes."""
    lines = [RECIPES]
    for heading, tables in ROOMS.items():
        rows = [row for pair in tables.split(", ") for row in keys(*pair.split())]
        lines += [f"## {heading}\n", "| key | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    for name, text in (("cli", command_page()), ("recipes", recipe_page())):
        page = ROOT / "docs" / f"{name}.md"
        if "--check" in sys.argv and page.read_text("utf-8") != text:
            sys.exit(f"docs/{name}.md is out of date: run scripts/reference_pages.py")
        page.write_text(text, "utf-8")
