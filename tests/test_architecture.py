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
ORDER = """errors < journal recipe machine < run_folder < language < interpreter < models < engines
    < parts < strategies < view < learn < measure serve < teaching < __init__ < cli < __main__"""
DEPTH = {name: depth for depth, layer in enumerate(ORDER.split("<")) for name in layer.split()}

# Through which door a third party comes in. What has no door stays out.
DOORS = {
    "recipe.py": "pydantic",
    "models/": "torch transformers tokenizers safetensors gguf numpy",
    "models/adapter.py": "peft",
    "engines/schemas.py": "llguidance",
    "engines/devices.py": "torch",
    "engines/grammars.py": "torch transformers tokenizers llguidance",
    "engines/passes/": "torch transformers",
    "engines/capture/": "torch transformers",
    "engines/local/": "torch transformers tokenizers safetensors llguidance",
    "engines/cpu/": "torch transformers",
    "engines/gpu/": "torch triton",
    "engines/servers/": "httpx2",
    "learn/random_model.py": "torch transformers tokenizers",
    "models/export.py": "torch transformers gguf numpy safetensors",
    "learn/chat/": "httpx2",
    "learn/annotate/": "datasets",
    "learn/train/": "torch transformers tokenizers accelerate peft",
    "measure/": "scipy numpy",
    "measure/bench.py": "torch transformers",
    "measure/gpu_check.py": "torch",
    "measure/prompt_sets.py": "huggingface_hub",
    "measure/instructions.py": "lm_eval nltk langdetect",
    "serve/": "fastapi uvicorn starlette sse_starlette pydantic prometheus_client",
    "cli/": "typer rich",
}
FORBIDDEN = {"utils", "helpers", "common", "misc"}


def imports(path: Path) -> list[str]:
    """Return the dotted names that a file imports, also inside functions and for types alone."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    whole = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return whole + [f"{node.module}.{name.name}" for node in parts for name in node.names]


def room(dotted: str) -> str:
    """Return the layer of a module below the package, such as ``engines`` or ``teach``."""
    parts = dotted.split("/")
    pair = "/".join(parts[:2])
    return pair if pair in DEPTH else parts[0] if parts[0] in DEPTH else "__init__"


def test_a_file_imports_only_what_lies_to_its_left() -> None:
    for file in FILES:
        assert not FORBIDDEN & {*Path(file).with_suffix("").parts}, f"{file}: a missing noun"
        home = room(file.removesuffix(".py"))
        doors = {name for door in DOORS if file.startswith(door) for name in DOORS[door].split()}
        for name in imports(SOURCE / file):
            first, *rest = name.split(".")
            source = room("/".join(rest))
            is_left = source == home or DEPTH[source] < DEPTH[home]
            is_known = first in sys.stdlib_module_names | doors
            assert is_left if first == "pasta_lm" else is_known, f"{file} may not import {name}"


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "tokenizers", "typer", "rich"}
    code = f"import pasta_lm, sys; sys.exit(' '.join({heavy!r} & {{*sys.modules}}) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_the_product_and_its_tests_do_not_import_the_laboratory(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        if path.name == "test_docs.py":
            continue  # pages name commands of the laboratory, too
        firsts = {name.split(".")[0] for name in imports(path)}
        forbidden = {"pasta_lab", "lab"} if folder == "tests" else {"pasta_lab", "lab", "tests"}
        assert not firsts & forbidden, path.relative_to(ROOT)


def test_every_name_that_the_laboratory_imports_from_the_package_exists() -> None:
    scripts = (path for name in ("lab", "scripts", "runs") for path in (ROOT / name).rglob("*.py"))
    names = {name for path in scripts for name in imports(path) if name.startswith("pasta_lm.")}
    for name in sorted(names):
        module, _, attribute = name.rpartition(".")
        if not hasattr(import_module(module), attribute):
            import_module(name)
