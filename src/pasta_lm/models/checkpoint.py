"""Read a checkpoint: one that transformers saved, or a GGUF file, which transformers dequantises.

Code in a model folder is never run, and nobody is asked about it. A weight that is missing or has
another shape is an error: transformers would fill it with random numbers. The dequantised copy of
a GGUF file stays in the user's cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, TypeAlias, cast
from unittest.mock import patch

import gguf
import torch
import transformers
from gguf import Keys, TokenType
from safetensors import SafetensorError
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.hub import cached_file

from pasta_lm.errors import ModelError, ModelNotFoundError, cause
from pasta_lm.journal import Row
from pasta_lm.machine import cache_folder, new_file
from pasta_lm.models.folder import FILE_NAME, LANGUAGE_VERSION, PASTA
from pasta_lm.models.names import GGUF, require_files
from pasta_lm.models.pieces import tag_pieces
from pasta_lm.run_folder import hash_file, say

note = cache(say)  # each text once
FORMAT = 4  # of a kept copy: another number whenever a file is read in another way
MAX_KEPT = 4  # copies of GGUF files, the last used
SUMS = "sums.json"  # SHA-256 of each file of a copy
Checkpoint: TypeAlias = "tuple[PreTrainedModel, PreTrainedTokenizerFast]"

_LFS = b"version https://git-lfs"

RECORD, GENERATION = "pasta.config", "pasta.generation_config"
"""Keys of files that this package writes: what was taught, empty if nothing, and the settings."""
IMPLIED = ("language_version", "piece_ids", "taught")  # left out of the record of a training
TOKENIZER = Keys.Tokenizer.HF_JSON
_ENDS = (Keys.Tokenizer.EOS_ID, Keys.Tokenizer.EOT_ID, Keys.Tokenizer.EOM_ID)
_TEMPLATE = f"{Keys.Tokenizer.CHAT_TEMPLATE}."  # before the name of a further template
_SCALED_READ = ("gpt-oss", "gemma4")  # by transformers: of the file, and in the class itself
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_checkpoint(
    source: str | Path, dtype: torch.dtype | None, revision: str | None = None
) -> Checkpoint:
    path = Path(source)
    is_hub_id = str(source).count("/") < 2 and not str(source).startswith((".", "/", "~"))
    is_local = not is_hub_id or path.exists()
    if is_local:
        _check_files(path)
    try:
        model = _load_whole(
            source, str(source), dtype=dtype or "auto", attn_implementation="eager",
            use_safetensors=True, revision=revision, ignore_mismatched_sizes=True,  # they are named
        )  # fmt: skip
        return model, read_tokenizer(source, revision)
    except ModelError:
        raise
    except Exception as exc:  # safetensors, tokenizers, torch: each has errors of its own
        if is_local or not isinstance(exc, (OSError, ValueError, KeyError)):
            raise _cannot_load(source, exc) from exc
        raise _not_found(source, exc) from exc


def file_of(source: str | Path, name: str, revision: str | None = None) -> Path | None:
    """Return a file of a folder or a hub id; None: it has none of this name."""
    with suppress(OSError, ValueError):
        return Path(str(cached_file(str(source), name, revision=revision)))
    return None


def require_on_hub(name: str) -> None:
    try:
        cached_file(name, "config.json")
    except (OSError, ValueError) as exc:
        raise _not_found(name, exc) from exc


def _not_found(source: str | Path, exc: Exception) -> ModelNotFoundError:
    hint = f"name a folder that holds a model; hf download {source} --local-dir FOLDER makes one"
    return ModelNotFoundError(f"model {source} could not be loaded: {first_line(exc)}", hint=hint)


def read_tokenizer(source: str | Path, revision: str | None = None) -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        return tokenizer
    reason = f"has no tokenizer.json, and its {type(tokenizer).__name__} has no fast form"
    hint = "name a model whose tokenizer has a fast form, which the tags need"
    raise ModelError(f"the model {source} {reason}", hint=hint)


def read_without_weights(source: str | Path) -> Checkpoint:
    """Return a model on torch's device ``meta`` and the tokenizer of a folder or a hub id."""
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = read_tokenizer(source)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as exc:
        reason = f"{source} holds no configuration and tokenizer of a whole model"
        hint = "name the folder that the servers serve: pasta export MODEL OUT --merged"
        raise ModelNotFoundError(reason, hint=hint) from exc
    with suppress(OSError):  # without the file, the ends are those of the configuration
        model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    return model, tokenizer


def _check_files(folder: Path) -> None:
    require_files(folder, ["config.json"])
    for file in (*folder.glob("*.safetensors"), *folder.glob("*.json")):
        with file.open("rb") as data:
            if data.read(len(_LFS)) == _LFS:
                reason = f"{file} is a Git LFS pointer, not the file itself"
                raise ModelError(reason, hint=f"git -C {folder} lfs pull")


def _load_whole(source: str | Path, label: str, **settings: object) -> PreTrainedModel:
    load: Callable[..., tuple[PreTrainedModel, dict[str, Any]]]
    load = cast("Any", transformers.AutoModelForCausalLM.from_pretrained)  # typed for one result
    with patch("transformers.utils.logging._tqdm_active", False):  # no bars on standard error
        model, info = load(source, trust_remote_code=False, output_loading_info=True, **settings)
    name = type(model).__name__
    if missing := info["missing_keys"]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        reason = f"{label} is no whole {name}: {min(missing)} is missing{more}"
        hint = "copy all files of the model again; it needs each weight that its config.json has"
        raise ModelError(reason, hint=hint)
    if mismatched := info["mismatched_keys"]:
        key, saved, expected = min(mismatched)
        shapes = f"{key} has the shape {tuple(saved)}, and {name} has {tuple(expected)}"
        hint = "keep the files of a model folder together as they were saved"
        raise ModelError(f"{label} does not fit its config.json: {shapes}", hint=hint)
    return model


def _cannot_load(source: str | Path, exc: Exception) -> ModelError:
    line = first_line(exc)
    if line.startswith("Validation error"):  # its configuration is wrong
        line = f"config.json: {' '.join(str(exc).split())}"
    with suppress(OSError, ValueError, KeyError, TypeError):  # no file, or no such setting
        config = json.loads((Path(source) / "config.json").read_text("utf-8"))
        method = config["quantization_config"]["quant_method"]
        reason = f"the weights at {source} are quantised by {method}, which cannot be read here"
        hint = "name the model that they were made of, or a GGUF file"
        return ModelError(f"{reason}: {line}", hint=hint)
    return ModelError(f"the model at {source} cannot be loaded: {line}")


def first_line(exc: Exception) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]


def gguf_of_package(name: str) -> Path | None:
    """Return the GGUF file of a package that is installed, or in the cache's folder ``weights``."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        return None
    folders = [*sys.path, str(cache_folder() / "weights")]
    packages = distributions(name=name, path=folders)  # whose code is not imported
    paths = (file.locate() for package in packages for file in package.files or ())
    files = (file for path in paths if (file := Path(str(path))).suffix == GGUF)
    return next(filter(Path.is_file, files), None)


def dequantised(file: Path) -> Path:
    """Return the model folder that a GGUF file stands for, in float32, made once."""
    require_files(file)
    folder = cache_folder() / "gguf" / f"{hash_file(file)[:32]}-{FORMAT}"
    if not _is_intact(folder):
        shutil.rmtree(folder, ignore_errors=True)
        note(f"dequantising {file.name} to float32, once; the result is kept in {folder}")
        _convert(file, folder)
    with suppress(OSError):  # a cache that cannot be written, or another process that tidies it
        os.utime(folder)
        by_age = sorted(folder.parent.iterdir(), key=lambda copy: copy.stat().st_mtime)
        for old in by_age[:-MAX_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _is_intact(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        sums = json.loads((folder / SUMS).read_text("utf-8"))
        return bool(sums) and sums == {name: hash_file(folder / name) for name in sums}
    return False


def _convert(file: Path, folder: Path) -> None:
    model, tokenizer, record = _dequantised(file, f"the GGUF file {file}")
    try:
        with new_file(folder) as made:
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
            if record:
                (made / FILE_NAME).write_text(json.dumps(record), "utf-8")
            sums = {item.name: hash_file(item) for item in made.iterdir() if item.is_file()}
            (made / SUMS).write_text(json.dumps(sums), "utf-8")
    except (OSError, SafetensorError) as exc:
        reason = f"the weights of {file.name} cannot be kept in {folder}: {cause(exc)}"
        hint = "they take 4 bytes a weight; XDG_CACHE_HOME names another place"
        raise ModelError(reason, hint=hint) from exc


def _dequantised(file: Path, label: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, Row]:
    # transformers parses the file in each of three calls, and builds the table of names for each
    # layer: half of the time. Both are made once here.
    parsed_once = patch("gguf.GGUFReader", cache(gguf.GGUFReader))
    names_once = patch("gguf.get_tensor_name_map", cache(gguf.get_tensor_name_map))
    try:
        with parsed_once, names_once:
            header = GgufHeader(os.path.join(file.parent, file.name), label)
            tokenizer = AutoTokenizer.from_pretrained(
                file.parent, gguf_file=file.name, trust_remote_code=False
            )
            packed = _load_whole(file.parent, label, gguf_file=file.name, dtype=torch.float32)
    except ModelError:
        raise
    except Exception as exc:  # three libraries parse the file, and none checks its length
        reason = "cannot be read, as it is cut off, damaged or of an unknown architecture"
        hint = "compare its size or hash with the original's, and download it again"
        raise ModelError(f"{label} {reason}: {first_line(exc)}", hint=hint) from exc
    # A model from a GGUF file counts as quantised, and could neither be saved nor trained.
    settings = packed.config.to_dict()
    del settings["quantization_config"]
    model: PreTrainedModel = type(packed)(type(packed.config)(**settings))
    model.load_state_dict(packed.state_dict())
    model.generation_config = header.generation_config or packed.generation_config
    if header.ends:
        model.generation_config.eos_token_id = header.ends
    tokenizer = header.tokenizer(tokenizer)
    return model, tokenizer, header.record(tag_pieces(tokenizer))


class GgufHeader:
    """What a GGUF file says that transformers does not read; ``label`` names it in errors."""

    def __init__(self, path: str, label: str) -> None:
        reader = gguf.GGUFReader(path)
        self._fields, self._label = reader.fields, label
        self._check_rotary(reader.tensors)
        self._tokens = cast("list[str]", self._value(Keys.Tokenizer.LIST) or [])
        self.ends = sorted({end for key in _ENDS if (end := self._end(key)) is not None})
        settings = self._object(GENERATION)
        self.generation_config = transformers.GenerationConfig(**settings) if settings else None

    def _value(self, key: str) -> object:
        return self._fields[key].contents() if key in self._fields else None

    def _check_rotary(self, tensors: Sequence[gguf.ReaderTensor]) -> None:
        """Refuse scaled rotary positions: transformers reads those of ``_SCALED_READ`` alone."""
        name = str(self._value(Keys.General.ARCHITECTURE))
        keys = [f"{name}.rope.{key}" for key in ("scaling.type", "scaling.factor", "scale_linear")]
        scales = [key for key in keys if self._value(key) not in (None, "none", 0, 1)]
        scales += [t.name for t in tensors if "rope_f" in t.name and (t.data != 1).any()]
        if scales and name not in _SCALED_READ:
            reason = f"{self._label} scales rotary positions ({scales[0]}), which is not read here"
            raise ModelError(reason, hint="name the safetensors folder that the file was made of")

    def _object(self, key: str) -> Row:
        return dict(json.loads(str(self._value(key) or "{}")))

    def _end(self, key: str) -> int | None:
        end = self._value(key)
        if end is not None and (type(end) is not int or not 0 <= end < len(self._tokens)):
            raise ModelError(f"{self._label}: {key} is {end!r}, which is no token of the file")
        return end

    def tokenizer(self, read: transformers.PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
        assert isinstance(read, PreTrainedTokenizerFast)
        if RECORD in self._fields and TOKENIZER in self._fields:
            backend = Tokenizer.from_str(str(self._value(TOKENIZER)))
        else:
            backend = self._respelled(read.backend_tokenizer)
        template: object = read.chat_template
        if keys := [key for key in self._fields if key.startswith(_TEMPLATE)]:
            named = {key.removeprefix(_TEMPLATE): self._value(key) for key in keys}
            template = {"default": template} | named if template else named
        special = {name: getattr(read, name) for name in _SPECIAL}
        return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **special)

    def _respelled(self, backend: Tokenizer) -> Tokenizer:
        """Return a tokenizer with the file's added tokens that byte-level words cannot spell.

        transformers spells their spaces and the like in bytes, and adds none of them.
        """
        kinds = cast("list[int]", self._value(Keys.Tokenizer.TOKEN_TYPE) or [])
        data = json.loads(backend.to_str())
        model, is_special = data["model"], {TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
        made = {left + right for left, right in model.get("merges", ())}
        added = {
            i: AddedToken(token, special=is_special[TokenType(kind)], normalized=False)
            for i, (token, kind) in enumerate(zip(self._tokens, kinds, strict=False))
            if kind in is_special and backend.token_to_id(token) is None
            if backend.id_to_token(i) not in made
        }
        if not added or not isinstance(model["vocab"], dict):
            return backend
        words = {i: token.content for i, token in added.items()}
        model["vocab"] = {words.get(i, word): i for word, i in model["vocab"].items()}
        data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] not in words]
        backend = Tokenizer.from_str(json.dumps(data))
        backend.add_tokens([*added.values()])
        return backend

    def record(self, piece_ids: Mapping[str, int]) -> Row:
        """Return the record of the model's training, as in a folder; empty: it was not taught."""
        if record := self._object(RECORD):
            record = {"language_version": LANGUAGE_VERSION, "piece_ids": dict(piece_ids)} | record
            record["taught"] = record.pop("trained_strategy", PASTA)
        return record
