"""Write docs/cli.md and docs/recipes.md from the code; --check fails if one is out of date."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from pasta_lm.cli import app

ROOT = Path(__file__).parents[1]
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
TRAIN, TEACH = "learn/train/config.py", "learn/teach/config.py"
ANNOTATION = "learn/annotate/recipe.py"
ROOMS = {  # heading: its tables, each with its file below src/pasta_lm and its dataclass
    "Supervised finetuning": {
        "model": (TRAIN, "ModelConfig"),
        "model.random": (TRAIN, "RandomConfig"),
        "data": (TRAIN, "DataConfig"),
        "train": (TRAIN, "TrainConfig"),
        "lora": (TRAIN, "LoraConfig"),
    },
    "Preference optimisation": {
        "model": (TRAIN, "StartConfig"),
        "data": (TRAIN, "PairsConfig"),
        "data.records": (TRAIN, "RecordsConfig"),
        "rollouts": (TRAIN, "RolloutsConfig"),
        "rollouts.servers": ("strategies/model.py", "Servers"),
        "score": ("learn/data/preferences.py", "ScoreConfig"),
        "judge": (TRAIN, "JudgeConfig"),
        "loss": (TRAIN, "LossConfig"),
        "train": (TRAIN, "PreferenceTrainConfig"),
    },
    "Teaching": {
        "answers": (TEACH, "AnswersConfig"),
        "annotation": (TEACH, "AnnotationConfig"),
        "annotation.teacher": (ANNOTATION, "TeacherConfig"),
        "data": (TEACH, "MixConfig"),
        "train": (TEACH, "LearningConfig"),
        "preference": (TEACH, "StageTwoConfig"),
        "measures": (TEACH, "MeasuresConfig"),
    },
    "Annotation": {
        "source": ("learn/annotate/recipe.py", "SourceConfig"),
        "answers": ("learn/annotate/own_answers.py", "AnswerConfig"),
        "teacher": (ANNOTATION, "TeacherConfig"),
        "filters": ("learn/annotate/filters.py", "FilterConfig"),
        "output": (ANNOTATION, "OutputConfig"),
    },
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


def section(name: str, command: TyperCommand) -> str:
    """Return a command's heading, first paragraph and table of flags."""
    places = [p.metavar or "" for p in command.params if isinstance(p, TyperArgument)]
    options = [p for p in command.params if isinstance(p, TyperOption) and not p.hidden]
    summary = " ".join((command.help or "").split("\n\n")[0].split())
    rows = [
        "| `{}` | {} |".format(", ".join(option.opts), (option.help or "").replace("|", "\\|"))
        for option in options
        if "--help" not in option.opts
    ]
    table = ["| flag | meaning |", "|---|---|", *rows] if rows else []
    lines = [f"## `{' '.join([name, *places])}`", "", summary, "", *table]
    return "\n".join(lines).rstrip() + "\n"


def command_page() -> str:
    """Return the page of the command line."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return "\n".join([CLI, *(section(*verb) for verb in verbs(group, "pasta"))])


def keys(file: str, name: str, table: str) -> Iterator[str]:
    """Yield a row for each field of a dataclass: key, default, and the text behind or below it."""
    source = (ROOT / "src" / "pasta_lm" / file).read_text("utf-8")
    lines, body = source.splitlines(), ast.parse(source).body
    kind = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    if "Endpoint" in map(ast.unparse, kind.bases):
        yield from keys("learn/chat/client.py", "Endpoint", table)
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
        rows = [row for table, place in tables.items() for row in keys(*place, table)]
        lines += [f"## {heading}\n", "| key | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    for name, text in (("cli", command_page()), ("recipes", recipe_page())):
        page = ROOT / "docs" / f"{name}.md"
        if "--check" in sys.argv and page.read_text("utf-8") != text:
            sys.exit(f"docs/{name}.md is out of date: run scripts/reference_pages.py")
        page.write_text(text, "utf-8")
