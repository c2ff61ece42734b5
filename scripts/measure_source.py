"""Measure the source: size, function lengths, comments, import circles, signatures, types, flags.

``--check`` exits with status 1 where a limit is exceeded; ``--list`` names every offender.
Another checkout is measured with its ``src/pasta_lm`` as the argument.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "pasta_lm"

# The packages that tell the paper.
CORE = ("language", "interpreter", "engines", "strategies")

MAX_LINES = 46_200
MAX_CORE_LINES = 15_000
MAX_FILES = 276
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 5
MAX_FLAGS = 10
MAX_NESTING = 3
# Findings of which there must be none.
FORBIDDEN = ("functions over 60 lines", "import circles", "verbs with more than 10 flags")
# `pasta run` answers one prompt in many ways, so it may have more flags than any other verb.
# The others have --engine, --dialect and --allow-inexact besides, as all verbs that decode.
EXEMPT_VERBS = {"run", "serve", "evaluate tasks", "evaluate alpaca", "evaluate instructions"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name, its text and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The folder below the root, or ``(root)``."""
        is_package = self.path.name == "__init__.py"
        parts = self.name.split(".")[1 : None if is_package else -1]
        return parts[0] if parts else "(root)"

    @property
    def num_lines(self) -> int:
        """Lines as ``wc -l`` counts them."""
        return self.text.count("\n")

    @property
    def functions(self) -> list[Function]:
        """Every function and method, nested ones too."""
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]


def read_modules(source: Path) -> list[Module]:
    """Read every module below a package's folder, in order of path."""
    modules = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text("utf-8")
        modules.append(Module(name, path, text, ast.parse(text)))
    return modules


def place(module: Module, node: Function) -> str:
    """Return where a function stands, for a list of offenders."""
    return f"{module.name}:{node.lineno} {node.name}"


def is_command(node: Function) -> bool:
    """Return whether the parameters of a function are the flags of a command."""
    annotations = [ast.unparse(arg.annotation) for arg in node.args.args if arg.annotation]
    return any("option(" in text or "Argument(" in text for text in annotations)


def num_function_lines(node: Function) -> int:
    """Return the lines from ``def`` to the end, without the table of flags of a command."""
    start = node.body[0].lineno if is_command(node) else node.lineno
    return (node.end_lineno or start) - start + 1


def num_positional(node: Function) -> int:
    """Return how many parameters may be given by position, ``self`` and ``cls`` apart."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Return the deepest nesting of statements below a node; ``elif`` adds none."""
    deepest = depth
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, Function | ast.ClassDef):
                continue
            is_elif = field == "orelse" and isinstance(node, ast.If) and len(value) == 1
            is_deeper = isinstance(child, NESTING) and not (is_elif and isinstance(child, ast.If))
            deepest = max(deepest, nesting(child, depth + is_deeper))
    return deepest


def num_comments(text: str) -> int:
    """Return how many comments a file holds, directives for tools apart."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return sum(not comment.startswith(("# noqa", "# type:", "#!")) for comment in comments)


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names that a module imports at run time, inside functions too."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting.extend(ast.iter_child_nodes(node))


def import_graph(modules: list[Module]) -> dict[str, set[str]]:
    """Return which modules each module imports, at its top or inside its functions."""
    names = {module.name for module in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        targets = set()
        for name in imported_names(module.tree):
            target = name if name in names else name.rpartition(".")[0]
            targets |= {target} & names
        graph[module.name] = targets - {module.name}
    return graph


def import_circles(modules: list[Module]) -> list[list[str]]:
    """Return the groups of modules that import each other (strongly connected components)."""
    graph = import_graph(modules)
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting.extend(new)
        reached[start] = seen
    circles = {
        tuple(sorted(name for name in reached[start] if start in reached[name]))
        for start in graph
        if start in reached[start]
    }
    return sorted([*circle] for circle in circles)


def visible_flags(source: Path) -> dict[str, int]:
    """Return the number of visible flags of every command, by its full name."""
    sys.path.insert(0, str(source.parent))
    import typer.main

    from pasta_lm.cli import app

    counts = {}
    waiting = [("", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        waiting += [
            (f"{name} {verb}".strip(), below)
            for verb, below in getattr(command, "commands", {}).items()
        ]
        options = [one for one in command.params if one.param_type_name == "option"]
        if name:
            counts[name] = sum(not one.hidden and one.name != "help" for one in options)
    return counts


def num_name(modules: list[Module], name: str) -> int:
    """Return how often a name is used."""
    nodes = (node for module in modules for node in ast.walk(module.tree))
    return sum(isinstance(node, ast.Name) and node.id == name for node in nodes)


def print_packages(modules: list[Module]) -> None:
    """Print lines, files and comments per 100 lines of every package."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    comments: Counter[str] = Counter()
    for module in modules:
        lines[module.package] += module.num_lines
        files[module.package] += 1
        comments[module.package] += num_comments(module.text)
    print(f"{'package':14}{'lines':>8}{'files':>7}{'comments per 100 lines':>25}")
    for package in lines:
        density = 100 * comments[package] / max(lines[package], 1)
        print(f"{package:14}{lines[package]:8,}{files[package]:7}{density:25.1f}")
    density = 100 * comments.total() / lines.total()
    print(f"{'all':14}{lines.total():8,}{files.total():7}{density:25.1f}\n")


def find_offenders(modules: list[Module]) -> dict[str, list[str]]:
    """Return the functions that are longer, wider or deeper than they should be, and types."""
    offenders: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.functions:
            returned = ast.unparse(node.returns) if node.returns else ""
            is_wide = num_positional(node) > MAX_POSITIONAL and not is_command(node)
            findings = {
                "functions over 60 lines": num_function_lines(node) > MAX_FUNCTION_LINES,
                "functions nested deeper than 3": nesting(node) > MAX_NESTING,
                "more than 5 positional parameters": is_wide,
                "returns dict[str, Any]": "dict[str, Any]" in returned,
            }
            for finding, is_found in findings.items():
                offenders[finding] += [place(module, node)] * is_found
    offenders["import circles"] = [" <-> ".join(circle) for circle in import_circles(modules)]
    return offenders


def find_wide_verbs(source: Path) -> list[str]:
    """Return the verbs that show more flags than they should, with the number of their flags."""
    verbs = sorted(visible_flags(source).items())
    return [f"{verb} ({n})" for verb, n in verbs if n > MAX_FLAGS and verb not in EXEMPT_VERBS]


def is_within_limits(modules: list[Module], offenders: dict[str, list[str]]) -> bool:
    """Print every limit with its measured value; return whether all are met."""
    num_core = sum(module.num_lines for module in modules if module.package in CORE)
    limits = [
        ("lines", sum(module.num_lines for module in modules), MAX_LINES),
        (f"lines of {', '.join(CORE)}", num_core, MAX_CORE_LINES),
        ("files", len(modules), MAX_FILES),
        *((finding, len(offenders[finding]), 0) for finding in FORBIDDEN),
    ]
    for name, value, limit in limits:
        print(f"{'ok  ' if value <= limit else 'OVER'} {name}: {value:,} (limit {limit:,})")
    return all(value <= limit for _, value, limit in limits)


def main() -> None:
    """Print the measures; with ``--check``, fail where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", type=Path, default=SOURCE)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--list", action="store_true", help="list every violation")
    arguments = parser.parse_args()
    modules = read_modules(arguments.source)
    print_packages(modules)

    lengths = sorted(num_function_lines(node) for one in modules for node in one.functions)
    p90 = statistics.quantiles(lengths, n=10)[-1]
    print(f"functions: {len(lengths):,}; median {statistics.median(lengths):g} lines, p90 {p90:g}")
    print(f"uses of Any: {num_name(modules, 'Any')}")

    offenders = find_offenders(modules)
    offenders["verbs with more than 10 flags"] = find_wide_verbs(arguments.source)
    for finding, places in sorted(offenders.items()):
        print(f"{finding}: {len(places)}")
        if arguments.list:
            print("".join(f"    {one}\n" for one in places), end="")

    print()
    if not is_within_limits(modules, offenders) and arguments.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
