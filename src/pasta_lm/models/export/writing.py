"""What both exports share: the model to write, and output that is complete or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm.errors import PastaError, UsageError, VocabularyError, cause
from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.models.folder import PastaConfig, check_same_ids
from pasta_lm.models.load import load_pretrained

_MIB = 2**20
_RESERVE = 64 * _MIB  # for the tokenizer, settings and the file system's own records


@dataclass(frozen=True, slots=True)
class Exportable:
    """A model with its adapter merged, and everything else that a server needs."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    config: PastaConfig | None  # None: the source does not say how it was trained
    piece_ids: Mapping[str, int]  # empty for a model that was not taught the tags

    def written(self, path: Path, num_bytes: int, dtype: str) -> Export:
        """Return the result of its export."""
        config = self.config
        return Export(
            path=path,
            num_parameters=self.model.num_parameters(),
            num_bytes=num_bytes,
            dtype=dtype,
            num_pieces=len(self.piece_ids),
            positions=config.positions if config else None,
            join=config.join if config else None,
        )


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export."""

    path: Path
    num_parameters: int
    num_bytes: int
    dtype: str
    num_pieces: int
    positions: PositionStrategy | None  # those of training; None: unknown
    join: Join | None  # as above


def read_exportable(source: str | Path, dtype: torch.dtype | None) -> Exportable:
    """Read a model, merge its adapter, and make the tag pieces added special tokens.

    Raises:
        ModelNotFoundError: nothing is there, or the base of an adapter is nowhere.
        ModelError: the files cannot be loaded, or the tokenizer has no tokenizer.json.
        VocabularyError: tokens without a row, or tag pieces with other ids than the source says.
    """
    pretrained = load_pretrained(source, dtype=dtype)
    model, tokenizer, piece_ids = pretrained.model, pretrained.tokenizer, pretrained.piece_ids
    tokens = [AddedToken(piece, special=True, normalized=False) for piece in piece_ids]
    if tokens:
        tokenizer.add_tokens(tokens, special_tokens=True)
    check_same_ids(piece_ids, tokenizer.get_vocab())
    num_rows = num_token_rows(model)
    if (last := max(tokenizer.get_vocab().values())) >= num_rows:
        raise VocabularyError(
            f"the tokenizer of {source} has token {last}, and the model has only {num_rows} rows",
            hint="add tokens to tokenizer and model together",
        )
    return Exportable(model, tokenizer, pretrained.config, piece_ids)


def num_token_rows(model: PreTrainedModel) -> int:
    """Return how many token ids can be fed and predicted."""
    matrices = model.get_input_embeddings(), model.get_output_embeddings()
    return min(len(next(matrix.parameters())) for matrix in matrices)


def refuse_existing(out: Path) -> None:
    """Refuse to write over anything.

    Raises:
        UsageError: something is at this path.
    """
    if out.exists():
        raise UsageError(f"{out} exists already", hint="name another place, or delete it first")


@contextmanager
def written_whole(out: Path, num_bytes: int) -> Iterator[Path]:
    """Give a path to write to, which becomes ``out`` at the end, and is deleted after an error.

    Args:
        out: A file or a folder that does not exist.
        num_bytes: The size of its weights; the disk must have room for them.

    Raises:
        UsageError: ``out`` exists.
        PastaError: the disk has too little room, or refuses to be written.
    """
    refuse_existing(out)
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _check_space(out.parent, num_bytes)
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


def _check_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _RESERVE:
        raise PastaError(
            f"{folder} has {free // _MIB:,} MiB free, and the export takes "
            f"{(num_bytes + _RESERVE) // _MIB:,} MiB",
            hint="name another disk, or a smaller dtype",
        )
