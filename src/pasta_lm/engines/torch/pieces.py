"""Teach a model that the tag pieces exist: one token and one row for each.

A new row begins as the mean of the rows of the tokens that spelled its text before, in the input
matrix and in the output matrix. Rows that a model keeps beyond its tokenizer (padded matrices)
are used, never cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm.engines.encoded_document import check_piece_ids
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.errors import VocabularyError
from pasta_lm.language.tags import PIECES

if TYPE_CHECKING:
    from pasta_lm.engines.torch.loading import LoadedModel


def add_pieces(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Mapping[str, int]:
    """Give every tag piece a token of its own, and return the token ids.

    Pieces that the tokenizer has keep their ids, and their rows where the model has them.

    Raises:
        VocabularyError: the tokenizer cannot spell a piece, or gave it an id that was taken.
    """
    before = Vocabulary(tokenizer)
    taken = tokenizer.get_vocab()
    # Also for those already there: it makes them special, which a tag must be.
    tokenizer.add_tokens([_marker(piece) for piece in PIECES], special_tokens=True)
    after = tokenizer.get_vocab()
    piece_ids = {piece: after[piece] for piece in PIECES}
    check_piece_ids(piece_ids)
    _check_not_taken(piece_ids, taken)

    num_rows = _num_rows(model)
    _grow(model, max(piece_ids.values()) + 1)
    for piece, token_id in piece_ids.items():
        if piece not in taken or token_id >= num_rows:
            _set_row_to_mean(model, token_id, _spelling(before, piece))
    return piece_ids


def with_pieces(loaded: LoadedModel) -> LoadedModel:
    """Return a loaded model with tag pieces; its matrices and its tokenizer grow in place.

    Raises:
        VocabularyError: the tokenizer cannot spell a piece.
    """
    tokenizer = loaded.vocabulary.tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    piece_ids = add_pieces(loaded.model, tokenizer)
    return replace(loaded, vocabulary=Vocabulary(tokenizer, piece_ids))


def _marker(piece: str) -> AddedToken:
    return AddedToken(piece, special=True, normalized=False, lstrip=False, rstrip=False)


def _spelling(vocabulary: Vocabulary, piece: str) -> list[int]:
    """Return the tokens that spell a piece as ordinary text."""
    token_ids = vocabulary.encode_text(piece)
    if not token_ids:
        raise VocabularyError(f"the tokenizer has no tokens to spell {piece!r}")
    return token_ids


def _check_not_taken(piece_ids: Mapping[str, int], taken: Mapping[str, int]) -> None:
    """Check that no new piece has the id of another token: ids with gaps lead to that."""
    owners = {token_id: token for token, token_id in taken.items()}
    for piece, token_id in piece_ids.items():
        if piece not in taken and token_id in owners:
            raise VocabularyError(
                f"{piece!r} was given the id {token_id}, which {owners[token_id]!r} has",
                hint="the tokenizer's ids have gaps; number them from 0 without any",
            )


def token_matrices(model: PreTrainedModel) -> list[torch.Tensor]:
    """Return what has a row for each token: both embeddings [V, D] and the output's bias [V]."""
    output = model.get_output_embeddings()
    modules = [model.get_input_embeddings(), output]
    parameters = {
        id(parameter): parameter
        for module in modules
        if module is not None
        for parameter in module.parameters(recurse=False)
    }
    return list(parameters.values())


def _num_rows(model: PreTrainedModel) -> int:
    return min(len(matrix) for matrix in token_matrices(model))


def _grow(model: PreTrainedModel, num_tokens: int) -> None:
    """Make room for ids below ``num_tokens``; a matrix that has it stays as it is."""
    if num_tokens > _num_rows(model):
        model.resize_token_embeddings(num_tokens, mean_resizing=False)


@torch.no_grad()
def _set_row_to_mean(model: PreTrainedModel, token_id: int, old_ids: Sequence[int]) -> None:
    for matrix in token_matrices(model):
        matrix[token_id] = matrix[list(old_ids)].float().mean(dim=0).to(matrix.dtype)
