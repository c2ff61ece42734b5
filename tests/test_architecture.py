"""Hold the layering of docs/architecture.md by reading the imports of every source file."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pasta_lm"
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))

# A layer imports from those to its left only, so neighbours in one layer never meet.
ORDER = """errors < journal recipe machine run_folder < language < interpreter < models < engines
    < strategies < view < learn < measure serve < learn/teach < __init__ < cli < __main__"""
DEPTH = {name: depth for depth, layer in enumerate(ORDER.split("<")) for name in layer.split()}

# Through which door a third party comes in. What has no door stays out.
DOORS = {
    "recipe.py": "pydantic",
    "models/": "torch transformers tokenizers safetensors gguf numpy",
    "models/adapter.py": "peft",
    "engines/local/": "torch transformers tokenizers safetensors",
    "engines/cpu/": "torch transformers",
    "engines/gpu/": "torch triton",
    "engines/servers/": "httpx2",
    "learn/chat/": "httpx2",
    "learn/annotate/": "pyarrow datasets",
    "learn/train/": "torch transformers tokenizers accelerate peft",
    "measure/": "scipy numpy",
    "measure/ifeval.py": "lm_eval nltk langdetect",
    "measure/figures.py": "matplotlib",
    "measure/judgements.py": "huggingface_hub",
    "serve/": "fastapi uvicorn starlette sse_starlette pydantic prometheus_client",
    "cli/": "typer rich",
}
FORBIDDEN = {"utils", "helpers", "common", "misc"}


def imports(file: str) -> list[str]:
    """Name all that a file imports, inside functions and for types too."""
    nodes = list(ast.walk(ast.parse((SOURCE / file).read_text("utf-8"))))
    whole = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return whole + [f"{node.module}.{name.name}" for node in parts for name in node.names]


def room(dotted: str) -> str:
    """Return the layer of a module below the package, such as ``engines`` or ``learn/teach``."""
    parts = dotted.split("/")
    pair = "/".join(parts[:2])
    return pair if pair in DEPTH else parts[0] if parts[0] in DEPTH else "__init__"


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_lies_to_its_left(file: str) -> None:
    assert not FORBIDDEN & {*Path(file).with_suffix("").parts}, "a missing noun"
    home = room(file.removesuffix(".py"))
    doors = {name for door in DOORS if file.startswith(door) for name in DOORS[door].split()}
    for name in imports(file):
        first, *rest = name.split(".")
        if first == "pasta_lm":
            source = room("/".join(rest))
            assert source == home or DEPTH[source] < DEPTH[home], f"{home} may not import {name}"
        else:
            assert first in sys.stdlib_module_names | doors, f"{file} is no door for {first}"


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "tokenizers", "typer", "rich"}
    code = f"import pasta_lm, sys; sys.exit(' '.join({heavy!r} & {{*sys.modules}}) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_function_is_long_no_import_circular_and_no_verb_has_many_flags() -> None:
    script = ROOT / "scripts" / "measure_source.py"
    found = subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    for finding in ("functions over 60 lines", "import circles", "verbs with more than 10 flags"):
        assert f"\n{finding}: 0\n" in found.stdout, found.stdout


SCRIPTS = sorted(
    path for folder in ("scripts", "runs", "benchmarks") for path in ROOT.glob(f"{folder}/**/*.py")
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_name_that_a_script_imports_from_the_package_exists(script: Path) -> None:
    nodes = ast.walk(ast.parse(script.read_text("utf-8")))
    for node in (one for one in nodes if isinstance(one, ast.ImportFrom)):
        if (node.module or "").split(".")[0] == "pasta_lm":
            module = import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    import_module(f"{node.module}.{name.name}")
