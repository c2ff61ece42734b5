"""What both exports share: the model to write, and output that is complete or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from pasta_lm.errors import PastaError, UsageError, VocabularyError, cause
from pasta_lm.models.folder import check_same_ids
from pasta_lm.models.load import Pretrained, load_pretrained
from pasta_lm.models.pieces import mark_special

_MIB = 2**20
_RESERVE = 64 * _MIB  # for the tokenizer, settings and the file system's own records


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export."""

    path: Path
    source: Pretrained
    num_bytes: int
    dtype: str


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


def num_token_rows(model: PreTrainedModel) -> int:
    """Return how many token ids can be fed and predicted."""
    matrices = model.get_input_embeddings(), model.get_output_embeddings()
    return min(len(next(matrix.parameters())) for matrix in matrices)


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
