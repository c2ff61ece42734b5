"""Read a checkpoint that transformers saved: every weight and a fast tokenizer, or an error.

Code in a model folder is never run, and nobody is asked about it. A weight that is missing or has
another shape is an error: transformers would fill it with random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from pasta_lm.errors import ModelError, ModelNotFoundError

SOURCES = "a folder that save_pretrained wrote, an adapter folder, a GGUF file, or a hub id"
Checkpoint = tuple[PreTrainedModel, PreTrainedTokenizerFast]

_LFS = b"version https://git-lfs"
_COMPILED = "_orig_mod."  # before the names of weights that were saved from a compiled module
_TEXT_FILES = ("*.safetensors", "*.json")


def read_checkpoint(
    source: str | Path, dtype: torch.dtype | None, revision: str | None = None
) -> Checkpoint:
    """Return the model and the tokenizer of a folder or a hub id; without a dtype, as saved."""
    path = Path(source)
    is_hub_id = str(source).count("/") < 2 and not str(source).startswith((".", "/", "~"))
    is_local = not is_hub_id or path.exists()
    if is_local:
        _check_files(path)
    try:
        return _read_model(source, dtype, revision), read_tokenizer(source, revision)
    except ModelError:
        raise
    except Exception as exc:  # safetensors, tokenizers, torch: each has errors of its own
        if is_local or not isinstance(exc, (OSError, ValueError, KeyError)):
            raise _cannot_load(source, exc) from exc
        raise ModelNotFoundError(
            f"model {source} could not be loaded: {_first_line(exc)}",
            hint=f"name {SOURCES} with HF_HOME set to a filled cache",
        ) from exc


def read_tokenizer(source: str | Path, revision: str | None = None) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a folder or a hub id, with transformers' own errors."""
    tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            f"the model {source} has no tokenizer.json, and its {type(tokenizer).__name__} has no "
            "fast form, which the tags need",
            hint="name a model whose tokenizer has a fast form",
        )
    return tokenizer


def read_without_weights(source: str | Path) -> Checkpoint:
    """Return a model on torch's device ``meta`` and the tokenizer of a folder or a hub id."""
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = read_tokenizer(source)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as exc:
        raise ModelNotFoundError(
            f"{source} holds no configuration and tokenizer of a whole model",
            hint="name the folder that the servers serve: pasta export MODEL OUT --merged",
        ) from exc
    with suppress(OSError):  # without the file, the ends are those of the configuration
        model.generation_config = GenerationConfig.from_pretrained(source)
    return model, tokenizer


def _read_model(
    source: str | Path, dtype: torch.dtype | None, revision: str | None
) -> PreTrainedModel:
    load_model: Any = AutoModelForCausalLM.from_pretrained  # typed for one result, and gives two
    model, info = load_model(
        source,
        dtype=dtype or "auto",
        attn_implementation="eager",
        use_safetensors=True,
        revision=revision,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,  # they are named below
        output_loading_info=True,
    )
    check_whole(source, model, info)
    checked: PreTrainedModel = model
    return checked


def check_whole(source: str | Path, model: PreTrainedModel, info: Mapping[str, Any]) -> None:
    """Check that a checkpoint held every weight of a model, in its shape."""
    name = type(model).__name__
    if missing := info["missing_keys"]:
        if any(_COMPILED in key for key in info["unexpected_keys"]):
            raise ModelError(
                f"the weights at {source} have names that begin with {_COMPILED}: they were saved "
                "from a compiled model",
                hint=f"save the model without torch.compile, or remove {_COMPILED} from the names",
            )
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{source} is no whole {name}: {min(missing)} is missing{more}",
            hint="copy all files of the model again; it needs each weight that its config.json has",
        )
    if mismatched := info["mismatched_keys"]:
        key, saved, expected = min(mismatched)
        raise ModelError(
            f"{source} does not fit its config.json: {key} has the shape {tuple(saved)}, and "
            f"{name} has {tuple(expected)}",
            hint="keep the files of a model folder together as they were saved",
        )


def _check_files(folder: Path) -> None:
    if not folder.exists():
        raise ModelNotFoundError(f"no folder {folder}", hint=f"name {SOURCES}")
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"no model at {folder}: there is no config.json", hint=f"name {SOURCES}"
        )
    for file in (file for kind in _TEXT_FILES for file in folder.glob(kind)):
        with file.open("rb") as data:
            if data.read(len(_LFS)) == _LFS:
                raise ModelError(
                    f"{file} is a Git LFS pointer, not the file itself",
                    hint=f"git -C {folder} lfs pull",
                )


def _cannot_load(source: str | Path, exc: Exception) -> ModelError:
    message = f"the model at {source} cannot be loaded: {_first_line(exc)}"
    if method := _quantisation(Path(source)):
        message = (
            f"the weights at {source} are quantised by {method}, which cannot be read here: "
            f"{_first_line(exc)}"
        )
        return ModelError(message, hint="name the model that they were made of, or a GGUF file")
    return ModelError(message)


def _quantisation(folder: Path) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):  # no file, or no such setting
        settings = json.loads((folder / "config.json").read_text("utf-8"))
        return str(settings["quantization_config"]["quant_method"])
    return None


def _first_line(exc: Exception) -> str:
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return lines[0]
