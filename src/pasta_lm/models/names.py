"""Names that a user gives: of the models that come with the package or a clone, and of dtypes."""

from __future__ import annotations

from os.path import abspath
from pathlib import Path

from pasta_lm.errors import ModelNotFoundError
from pasta_lm.run_folder import hash_files

BUILTIN, SEQUENTIAL_BASELINE = "builtin", "builtin-sequential"
BUILTIN_CONTINUE = "builtin-continue"  # positions 'continue', join 'recompute': for stock servers
BUILTINS = (BUILTIN, SEQUENTIAL_BASELINE, BUILTIN_CONTINUE)
BUILTIN_QUALITY = "small, often wrong"  # 135 million weights
PASTA_15B = "pasta-1.5b"  # Qwen2.5-Coder-1.5B-Instruct with our adapter; its own baseline

PARTS = {
    "weights": ("*.safetensors", "*.bin", "*.gguf"),
    "tokenizer": ("*token*.json", "vocab*", "merges*", "chat_template*", "*.jinja", "*.model"),
    "configuration": ("*config.json",),
}
"""Patterns of the files of a model, by what they are part of."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_DTYPES |= {"float": "float32", "fp32": "float32"}


def builtin_folder(name: str | Path) -> Path:
    """Return the adapter folder of a model that comes with the package or a clone."""
    folder = Path(__file__).parent / name
    if (folder / "adapter_config.json").is_file():
        return folder
    reason = f"the model {name} is missing in this installation: {folder}"
    hint = "install pasta-lm again, or name another model with --model"
    if name in (BUILTIN_CONTINUE, PASTA_15B):
        reason = f"the model {name} is not in this installation: it comes with a clone"
        hint = f"--model path/to/clone/src/pasta_lm/models/{name}"
    raise ModelNotFoundError(reason, hint=hint)


def resolve(source: str | Path) -> str | Path:
    """Return the folder of a model that comes with the package by its name, else the source."""
    return builtin_folder(source) if source in (*BUILTINS, PASTA_15B) else source


def model_name(source: str | Path) -> str:
    """Return the name of a model: that of its folder or file without the path, else the source."""
    path = Path(source)
    return Path(abspath(path)).name if path.exists() else str(source)


def hashes_of(key: str, source: str | Path | None) -> dict[str, str]:
    """Return a hash of each part of a model, for a run that begins with it; ``key`` names it.

    A model with files from the hub is known by its name alone.
    """
    from pasta_lm.models.load import files_of  # imports torch

    files = [] if source is None else files_of(source)
    if files is None:
        return {f"{key} (name)": str(source)}
    own = {part: [f for f in files if any(map(f.match, PARTS[part]))] for part in PARTS}
    return {f"{key} ({part})": " ".join(sorted(map(hash_files, own[part]))) for part in PARTS}


def dtype_name(name: str | None) -> str | None:
    """Return this package's name of a dtype; None: the default of the device."""
    return name and _DTYPES.get(name, name)
