"""Rows of the tag pieces that begin anew, for a base whose tokenizer had them and that met none.

The output of such a base has learned of a piece that it never met but one thing: not now.
All those rows end up alike, pointing away from every hidden state, and a gentle finetuning cannot
bring them back: it never learned a sync (``docs/log.md``).

Legend: V tokens of the vocabulary, D dimensions of the hidden state.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from transformers import PreTrainedModel

from pasta_lm.engines.torch.model_folder import token_matrices
from pasta_lm.errors import UsageError

ALIKE = 0.9
"""Cosine to the tags' mean row from which on a row is taken for one that was never met, too."""
SEED = 0
"""Of the draw: every finetuning of a base begins with the same rows."""


@torch.no_grad()
def begin_tags_anew(model: PreTrainedModel, token_ids: Collection[int]) -> None:
    """Draw the rows of the tag pieces as if they were of tokens that the model has met, in place.

    Each is drawn from the normal distribution that has the mean and the deviation, dimension by
    dimension, of the rows that are not like those of the tags: [V, D], the input matrix and the
    output matrix where it is another one. A bias of the output becomes its mean.

    Source: that the distribution of the other rows is where a new row belongs is J. Hewitt,
    "Initializing New Word Embeddings for Pretrained Language Models", 2021.

    Args:
        model: Its weights are float32.
        token_ids: Of the tag pieces.

    Raises:
        UsageError: all rows are like those of the tags.
    """
    ids = sorted(token_ids)
    for matrix in token_matrices(model):
        if matrix.ndim == 1:
            matrix[ids] = matrix.mean()
            continue
        tags_1D = matrix[ids].mean(dim=0, keepdim=True)
        met_ND = matrix[torch.cosine_similarity(matrix, tags_1D, dim=1) < ALIKE]
        if len(met_ND) < 2:
            raise UsageError("model.new_tags: all rows of the base are like those of its tags")
        generator = torch.Generator().manual_seed(SEED)
        drawn = torch.randn(len(ids), matrix.shape[1], generator=generator).to(matrix)
        matrix[ids] = met_ND.mean(dim=0) + met_ND.std(dim=0) * drawn
