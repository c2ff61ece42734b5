"""Names that a user gives: of the models that come with the package or a clone, and of dtypes."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from os.path import abspath
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pasta_lm.errors import ModelNotFoundError

BUILTIN, SEQUENTIAL_BASELINE = "builtin", "builtin-sequential"
BUILTIN_CONTINUE = "builtin-continue"  # positions 'continue', join 'recompute': for stock servers
BUILTINS = (BUILTIN, SEQUENTIAL_BASELINE, BUILTIN_CONTINUE)
BUILTIN_QUALITY = "small, often wrong"  # 135 million weights
PASTA_15B = "pasta-1.5b"  # Qwen2.5-Coder-1.5B-Instruct with our adapter; its own baseline

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_DTYPES |= {"float": "float32", "fp32": "float32"}
SOURCES = "a folder that save_pretrained wrote, an adapter folder, a GGUF file, or a hub id"
GGUF, CONFIGS = ".gguf", ("config.json", "adapter_config.json")


def require_model(source: str | Path) -> None:
    """Refuse a path without a model, before torch is imported; a name of the hub passes."""
    path, is_path = Path(resolve(source)), str(source).startswith((".", "/", "~"))
    if is_path or str(source).count("/") > 1 or path.suffix == GGUF or path.exists():
        require_files(path)


def require_files(path: Path, configs: Collection[str] = CONFIGS) -> None:
    if path.suffix == GGUF and not path.is_file():
        raise ModelNotFoundError(f"no such file: {path}", hint=f"name {SOURCES}")
    if path.suffix != GGUF and not any((path / name).is_file() for name in configs):
        no_model = f"no model at {path}: there is no config.json"
        reason = no_model if path.exists() else f"no folder {path}"
        raise ModelNotFoundError(reason, hint=f"name {SOURCES}")


def builtin_folder(name: str | Path) -> Path:
    """Return the adapter folder of a model that comes with the package, or with its clone."""
    roots = [Path(__file__).parent, *_clone()]
    for folder in (root / name for root in roots):
        if (folder / "adapter_config.json").is_file():
            return folder
    reason = f"the model {name} is missing in this installation: {roots[0] / name}"
    hint = "install pasta-lm again, or name another model with --model"
    if name in (BUILTIN_CONTINUE, PASTA_15B):
        reason = f"the model {name} is not in this installation: it comes with a clone"
        hint = f"--model path/to/clone/src/pasta_lm/models/{name}"
    raise ModelNotFoundError(reason, hint=hint)


def _clone() -> list[Path]:
    with suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        origin = json.loads(distribution("pasta-lm").read_text("direct_url.json") or "{}")
        url = urlsplit(origin["url"])
        if url.scheme == "file":
            return [Path(unquote(url.path), "src", "pasta_lm", "models")]
    return []


def resolve(source: str | Path) -> str | Path:
    return builtin_folder(source) if source in (*BUILTINS, PASTA_15B) else source


def model_name(source: str | Path) -> str:
    path = Path(source)
    return Path(abspath(path)).name if path.exists() else str(source)


def dtype_name(name: str | None) -> str | None:
    return name and _DTYPES.get(name, name)
