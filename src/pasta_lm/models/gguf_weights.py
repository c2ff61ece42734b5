"""Read a GGUF file: transformers dequantises it once, and the result stays in the user's cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from pasta_lm.errors import ModelError, ModelNotFoundError, cause
from pasta_lm.models.cache_folder import cache_folder
from pasta_lm.models.checkpoint import SOURCES, Checkpoint, check_whole, read_checkpoint

SUFFIX = ".gguf"
_WHOLE = ("F64", "F32", "F16", "BF16")  # types of GGUF that lose nothing in float32
_TYPES_NAME = "gguf_types.txt"  # in a folder of the cache: how the file's weights were stored
_noted: set[str] = set()


def gguf_of_package(name: str) -> Path | None:
    """Return the GGUF file in an installed package, whose code is not imported, or None."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        return None
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return None
    files = (Path(str(package.locate_file(file))) for file in package.files or ())
    return next((file for file in files if file.suffix == SUFFIX and file.is_file()), None)


def read_gguf(file: Path, dtype: torch.dtype | None, *, notes_loss: bool) -> Checkpoint:
    """Return the model and the tokenizer of a GGUF file; without a dtype weights are float32.

    A loss of precision is noted on standard error, once, if ``notes_loss``.
    """
    if not file.is_file():
        raise ModelNotFoundError(f"no such file: {file}", hint=f"name {SOURCES}")
    with file.open("rb") as data:
        key = hashlib.file_digest(data, "sha256").hexdigest()
    folder = cache_folder() / "gguf" / key[:32]
    if not folder.is_dir():
        _note(f"dequantising {file.name}, once; the result is kept in {folder}")
        _convert(file, folder)
    types = (folder / _TYPES_NAME).read_text("utf-8").split()
    if types and notes_loss:
        _note(
            f"{file.name} has {' and '.join(types)} weights, dequantised to float32: they are "
            "those of the file, not the original's"
        )
    return read_checkpoint(folder, dtype)


def _note(text: str) -> None:
    if text not in _noted:
        print(f"pasta: {text}", file=sys.stderr)  # noqa: T201
        _noted.add(text)


def _convert(file: Path, folder: Path) -> None:
    """Write the model folder of a GGUF file, complete or not at all."""
    model, tokenizer, types = _dequantised(file)
    lossy = [name for name, _ in types.most_common() if name not in _WHOLE]
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        (part / _TYPES_NAME).write_text("\n".join(lossy), encoding="utf-8")
        part.replace(folder)
    except (OSError, SafetensorError) as exc:
        if not folder.is_dir():  # else another process was faster
            raise ModelError(
                f"the weights of {file.name} cannot be kept in {folder}: {cause(exc)}",
                hint="they take 4 bytes a weight; XDG_CACHE_HOME names another place",
            ) from exc
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _dequantised(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Counter[str]]:
    """Return the model and tokenizer of a GGUF file, and the number of weights of each type."""
    types = Counter[str]()
    load_model: Any = AutoModelForCausalLM.from_pretrained  # typed for one result, and gives two
    settings: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    try:
        for tensor in GGUFReader(file).tensors:
            types[tensor.tensor_type.name] += int(tensor.n_elements)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **settings)
        packed, info = load_model(
            file.parent, dtype=torch.float32, output_loading_info=True, **settings
        )
    except Exception as exc:  # three libraries parse the file, and none checks its length
        raise ModelError(
            f"the GGUF file {file} cannot be read, as it is cut off, damaged or of an unknown "
            f"architecture: {str(exc).strip().splitlines()[0]}",
            hint="compare its size or hash with the original's, and download it again",
        ) from exc
    check_whole(f"the GGUF file {file}", packed, info)
    # A model from a GGUF file counts as quantised, and could neither be saved nor trained.
    settings = packed.config.to_dict()
    del settings["quantization_config"]
    model: PreTrainedModel = type(packed)(type(packed.config)(**settings))
    model.load_state_dict(packed.state_dict())
    model.generation_config = packed.generation_config
    return model, tokenizer, types
