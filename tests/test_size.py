"""Limits of the size and shape of the project: ``pytest tests/test_size.py -s`` prints all.

The limits are in ``size_limits.toml`` and only go down: a change that adds lines somewhere removes
as many elsewhere.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pasta_lm"
CORE = ("language/", "interpreter/", "engines/local/", "engines/passes/", "models/", "strategies/")
BESIDE = {"models/export.py", "engines/devices.py", "engines/scripted.py", "engines/local/rows.py"}
BESIDE |= {"engines/passes/row_reader.py"}  # in these folders, but none of the core
LIMITS: dict[str, int] = tomllib.loads(Path(__file__).with_name("size_limits.toml").read_text())
MAX_FUNCTION_LINES, MAX_NESTING, MAX_POSITIONAL = 50, 3, 5

Function = ast.FunctionDef | ast.AsyncFunctionDef
NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def python(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def num_lines(paths: list[Path]) -> int:
    return sum(path.read_text("utf-8").count("\n") for path in paths)


def is_core(path: Path) -> bool:
    name = path.relative_to(SOURCE).as_posix()
    return name not in BESIDE and (name.startswith(CORE) or path.parent == SOURCE / "engines")


# --- functions


def functions() -> Iterator[tuple[str, Function]]:
    for path in python("src"):
        for node in ast.walk(tree(path)):
            if isinstance(node, Function):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node


def is_command(node: Function) -> bool:
    """Return whether the parameters of a function are the flags of a command."""
    annotations = [ast.unparse(arg.annotation) for arg in node.args.args if arg.annotation]
    return any(re.search(r"option\(|Argument\(|^flags\.", text) for text in annotations)


def function_lines(node: Function) -> int:
    """Return the lines from ``def`` to the end, without the table of flags of a command."""
    start = node.body[0].lineno if is_command(node) else node.lineno
    return (node.end_lineno or start) - start + 1


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Return the deepest nesting of statements below a node; ``elif`` adds none."""
    deepest = depth
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, Function | ast.ClassDef):
                continue
            is_elif = name == "orelse" and isinstance(node, ast.If) and len(value) == 1
            is_deeper = isinstance(child, NESTING) and not (is_elif and isinstance(child, ast.If))
            deepest = max(deepest, nesting(child, depth + is_deeper))
    return deepest


def num_positional(node: Function) -> int:
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    return 0 if is_command(node) else len(names) - (names[:1] in (["self"], ["cls"]))


# --- imports and names


def inner_imports() -> list[str]:
    found = {
        (place.split(":")[0], node.lineno)
        for place, function in functions()
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return [f"{path}:{line}" for path, line in sorted(found)]


def uses_of_any() -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in python("src")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Name) and node.id == "Any"
    ]


def runtime_imports(path: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports at run time, inside functions too."""
    waiting: list[ast.AST] = [tree(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)


def import_circles() -> list[str]:
    """Return files that import each other, directly or through others."""
    names = {}
    for path in python("src"):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {
        name: {dotted if dotted in names else dotted.rpartition(".")[0] for dotted in imported}
        - {name}
        for name, path in names.items()
        for imported in [list(runtime_imports(path))]
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        return [*map(str, exc.args[1])]
    return []


MEASURES: dict[str, Callable[[], int | list[str]]] = {
    "src_lines": lambda: num_lines(python("src")),
    "src_files": lambda: len(python("src")),
    "core_lines": lambda: num_lines([path for path in python("src") if is_core(path)]),
    "files_over_400_lines": lambda: [
        str(path.relative_to(SOURCE)) for path in python("src") if num_lines([path]) > 400
    ],
    "functions_over_50_lines": lambda: [
        place for place, node in functions() if function_lines(node) > MAX_FUNCTION_LINES
    ],
    "functions_nested_deeper_than_3": lambda: [
        place for place, node in functions() if nesting(node) > MAX_NESTING
    ],
    "functions_of_more_than_5_positional_parameters": lambda: [
        place for place, node in functions() if num_positional(node) > MAX_POSITIONAL
    ],
    "uses_of_any": uses_of_any,
    "imports_inside_functions": inner_imports,
    "import_circles": import_circles,
    "tests_lines": lambda: num_lines(python("tests")),
    "lab_lines": lambda: num_lines(python("lab")) - num_lines(python("lab/tests")),
    "lab_tests_lines": lambda: num_lines(python("lab/tests")),
    "lab_result_files": lambda: len([*(ROOT / "lab" / "benchmarks" / "results").iterdir()]),
    "docs_lines": lambda: num_lines([*(ROOT / "docs").glob("*.md")]),
    "readme_lines": lambda: num_lines([ROOT / "README.md"]),
    "changelog_lines": lambda: num_lines([ROOT / "CHANGELOG.md"]),
    "scripts_lines": lambda: num_lines([p for p in (ROOT / "scripts").iterdir() if p.is_file()]),
}


def test_every_measure_has_a_limit_and_every_limit_a_measure() -> None:
    assert {*LIMITS} == {*MEASURES}


@pytest.mark.parametrize("name", MEASURES)
def test_the_project_is_within_its_limit_of(name: str) -> None:
    measured = MEASURES[name]()
    value = measured if isinstance(measured, int) else len(measured)
    limit = LIMITS.get(name, 0)
    sys.stdout.write(f"\n{name:48}{value:8,} of {limit:8,}, {limit - value:6,} left")
    assert value <= limit, measured
