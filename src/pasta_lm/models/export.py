"""Write a model and its adapter as one folder that transformers, vLLM and SGLang load.

All exports share the model to write, and output that is complete or not there at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from pasta_lm.errors import ModelError, PastaError, UsageError, VocabularyError, cause
from pasta_lm.models.checkpoint import first_line
from pasta_lm.models.folder import check_same_ids, write_pasta_config
from pasta_lm.models.load import DTYPES, Pretrained, load_pretrained, rope_parameters
from pasta_lm.models.pieces import mark_special, num_token_rows

_MIB = 2**20
_RESERVE = 64 * _MIB  # for the tokenizer, settings and the file system's own records


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export."""

    path: Path
    source: Pretrained
    num_bytes: int
    dtype: str


def export_merged(source: str | Path, out: Path, dtype: str = "bfloat16") -> Export:
    """Write a model folder without adapters, complete or not at all.

    It has the weights as safetensors, the tokenizer with the tag pieces as special tokens, the chat
    template, ``generation_config.json`` and, if the source says how it was trained,
    ``pasta_config.json``. Tied matrices stay tied; padded ones stay padded.
    """
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    refuse_existing(out)
    pretrained = read_exportable(source, DTYPES[dtype])
    num_bytes = sum(weight.nbytes for weight in pretrained.model.parameters())
    with written_whole(out, num_bytes) as part:
        _write_folder(pretrained, part)
    return Export(out, pretrained, sum(file.stat().st_size for file in out.iterdir()), dtype)


def read_exportable(source: str | Path, dtype: torch.dtype | None) -> Pretrained:
    """Load a model whose tokens all have a row, and make its tag pieces special tokens."""
    pretrained = load_pretrained(source, dtype=dtype)
    tokenizer, piece_ids = pretrained.tokenizer, pretrained.piece_ids
    mark_special(tokenizer, [*piece_ids])
    check_same_ids(piece_ids, tokenizer.get_vocab())
    num_rows = num_token_rows(pretrained.model)
    if (last := max(tokenizer.get_vocab().values())) >= num_rows:
        raise VocabularyError(
            f"the tokenizer of {source} has token {last}, and the model has only {num_rows} rows",
            hint="add tokens to tokenizer and model together",
        )
    return pretrained


def refuse_existing(out: Path) -> None:
    """Refuse to write over anything."""
    if out.exists():
        raise UsageError(f"{out} exists already", hint="name another place, or delete it first")


@contextmanager
def written_whole(out: Path, num_bytes: int) -> Iterator[Path]:
    """Give a path to write to, which becomes ``out`` at the end, and is deleted after an error.

    The disk must have room for the bytes of the weights.
    """
    refuse_existing(out)
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free, needed = shutil.disk_usage(out.parent).free, num_bytes + _RESERVE
        if free < needed:
            raise PastaError(
                f"{out.parent} has {free // _MIB:,} MiB free, and the export takes "
                f"{needed // _MIB:,} MiB",
                hint="name another disk, or a smaller dtype",
            )
        yield part
        refuse_existing(out)
        part.rename(out)
    except OSError as exc:
        raise PastaError(
            f"{out} cannot be written: {cause(exc)}", hint="check the disk and its permissions"
        ) from exc
    finally:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)


def _write_folder(pretrained: Pretrained, folder: Path) -> None:
    try:
        pretrained.model.save_pretrained(folder)
        pretrained.tokenizer.save_pretrained(folder)
    except ValueError as exc:  # such as settings of generation that contradict each other
        raise ModelError(f"transformers refuses to save the model: {first_line(exc)}") from exc
    except SafetensorError as exc:  # a full disk is not an OSError there
        raise OSError(cause(exc)) from exc
    if pretrained.config is not None:
        write_pasta_config(folder, pretrained.config)
    _change(folder / "config.json", _settings_of_version_4(pretrained.model))
    # Version 5 of transformers writes the name of a class that version 4 does not have.
    _change(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def _settings_of_version_4(model: PreTrainedModel) -> dict[str, object]:
    """Return settings under their names in version 4 of transformers, which some servers have.

    It knows no ``rope_parameters``, and would silently fall back to another base frequency.
    """
    settings: dict[str, object] = {"torch_dtype": str(model.dtype).removeprefix("torch.")}
    rope, *others = rope_parameters(model.config)
    if "rope_theta" in rope and not others:  # else there is none, or one for each kind of layer
        settings["rope_theta"] = rope["rope_theta"]
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        if scaling.get("rope_type", "default") != "default":
            settings["rope_scaling"] = scaling
    return settings


def _change(file: Path, settings: dict[str, object]) -> None:
    data = json.loads(file.read_text("utf-8")) | settings
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
