"""The tag pieces of a model: their tokens, and a row for each token in the matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
import transformers
from tokenizers import AddedToken

from pasta_lm.errors import VocabularyError
from pasta_lm.language.tags import PIECES
from pasta_lm.models.encoded import check_piece_ids
from pasta_lm.models.vocabulary import Vocabulary


def tag_pieces(tokenizer: transformers.PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the ids of all tag pieces if the tokenizer has every one of them, else nothing."""
    vocab = tokenizer.get_vocab()
    return {piece: vocab[piece] for piece in PIECES} if vocab.keys() >= {*PIECES} else {}


def add_pieces(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerFast
) -> Mapping[str, int]:
    """Give every tag piece a token and a row of its own, and return the token ids.

    A new row is the mean of the rows that spelled the piece's text before, in the input and in the
    output matrix. Pieces that the tokenizer has keep their ids, and their rows if the model has
    them. Rows that a model keeps beyond its tokenizer (padded matrices) are used, never cut off.
    """
    before, taken = Vocabulary(tokenizer), tokenizer.get_vocab()
    mark_special(tokenizer, PIECES)  # also those already there: a tag must be special
    piece_ids = tag_pieces(tokenizer)
    check_piece_ids(piece_ids)
    owners = {token_id: token for token, token_id in taken.items()}
    for piece, token_id in piece_ids.items():
        if piece not in taken and token_id in owners:
            reason = f"{piece!r} was given the id {token_id}, which {owners[token_id]!r} has"
            hint = "the tokenizer's ids have gaps; number them from 0 without any"
            raise VocabularyError(reason, hint=hint)
    num_rows = num_token_rows(model)
    if (last := max(piece_ids.values())) >= num_rows:
        model.resize_token_embeddings(last + 1, mean_resizing=False)
        for token_id in {*range(num_rows, last)} - {*piece_ids.values()}:
            # A token that the model never had a row for: as likely as the average one.
            _set_row_to_mean(model, token_id, range(num_rows))
    for piece, token_id in piece_ids.items():
        if piece not in taken or token_id >= num_rows:
            spelling = before.encode_text(piece)
            if not spelling:
                raise VocabularyError(f"the tokenizer has no tokens to spell {piece!r}")
            _set_row_to_mean(model, token_id, spelling)
    return piece_ids


def mark_special(tokenizer: transformers.PreTrainedTokenizerFast, pieces: Sequence[str]) -> None:
    tokens = [AddedToken(piece, special=True, normalized=False) for piece in pieces]
    tokenizer.add_tokens(tokens, special_tokens=True)


def num_token_rows(model: transformers.PreTrainedModel) -> int:
    return min(map(len, _with_token_rows(model)))


def token_matrices(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the matrices with a row for each token [V, d], by name; tied ones once."""
    modules = [model.get_input_embeddings()]
    if not model.config.get_text_config().tie_word_embeddings:
        modules.append(model.get_output_embeddings())
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(module)]: module.get_parameter("weight") for module in modules}


def _with_token_rows(model: transformers.PreTrainedModel) -> list[torch.Tensor]:
    """Return the tensors with a row a token: both embeddings [V, D] and the output's bias [V]."""
    modules = [model.get_input_embeddings(), model.get_output_embeddings()]
    tensors = [module.parameters(recurse=False) for module in modules if module is not None]
    return list({id(tensor): tensor for tensor in chain(*tensors)}.values())  # tied matrices once


@torch.no_grad()
def _set_row_to_mean(
    model: transformers.PreTrainedModel, token_id: int, old_ids: Sequence[int]
) -> None:
    for matrix in _with_token_rows(model):
        matrix[token_id] = matrix[list(old_ids)].float().mean(dim=0).to(matrix.dtype)
