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
from pasta_lm.learn.train.config import PreferenceTrainConfig
from pasta_lm.teaching import config as teaching

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
    "Supervised finetuning": {
        "model": training.ModelConfig, "data": training.DataConfig, "train": training.TrainConfig,
        "lora": training.LoraConfig,
    },
    "Preference optimisation": {
        "model": training.StartConfig, "data": training.PairsConfig,
        "data.records": training.RecordsConfig, "rollouts": training.RolloutsConfig,
        "rollouts.servers": training.Servers, "score": training.ScoreConfig,
        "judge": training.JudgeConfig, "loss": training.LossConfig, "train": PreferenceTrainConfig,
    },
    "Teaching": {
        "answers": teaching.AnswersConfig, "annotation": teaching.AnnotationConfig,
        "annotation.teacher": annotation.TeacherConfig, "data": teaching.MixConfig,
        "train": teaching.LearningConfig, "preference": teaching.StageTwoConfig,
        "measures": teaching.MeasuresConfig,
    },
    "Annotation": {
        "source": annotation.SourceConfig, "answers": annotation.AnswerConfig,
        "teacher": annotation.TeacherConfig, "filters": annotation.FilterConfig,
        "output": annotation.OutputConfig,
    },
}  # fmt: skip
SHARED = {f.name for f in fields(training.TrainConfig)} - {"learning_rate"}
"""Keys of stage two's ``[train]`` that stand under stage one."""


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


def meanings(kind: type) -> dict[str, str]:
    """Return the text behind or below each field that a dataclass defines itself."""
    lines = inspect.getsource(kind).splitlines()
    ((_, body),) = ((node, node.body) for node in ast.parse("\n".join(lines)).body)
    texts = {}
    for field, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            text = lines[(field.end_lineno or 1) - 1][field.end_col_offset or 0 :].lstrip(" #")
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                text = " ".join(str(below.value.value).split())
            texts[ast.unparse(field.target)] = text.replace("``", "`")
    return texts


def keys(table: str, kind: type) -> Iterator[str]:
    """Yield a row for each key of a table: key, default, and meaning."""
    texts: dict[str, str] = {}
    for base in filter(is_dataclass, reversed(kind.__mro__)):
        texts |= meanings(base)
    for field in fields(kind):
        is_table = "Config" in str(field.type)
        if not is_table and not (kind is PreferenceTrainConfig and field.name in SHARED):
            default = "required" if field.default is MISSING else repr(field.default)
            yield f"| `{table}.{field.name}` | `{default}` | {texts[field.name]} |"


def recipe_page() -> str:
    """Return the page of the keys of recipes."""
    lines = [RECIPES]
    for heading, tables in ROOMS.items():
        rows = [row for table, kind in tables.items() for row in keys(table, kind)]
        lines += [f"## {heading}\n", "| key | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    for name, text in (("cli", command_page()), ("recipes", recipe_page())):
        page = ROOT / "docs" / f"{name}.md"
        if "--check" in sys.argv and page.read_text("utf-8") != text:
            sys.exit(f"docs/{name}.md is out of date: run scripts/reference_pages.py")
        page.write_text(text, "utf-8")
