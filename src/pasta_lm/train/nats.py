"""Nats of every predicted token of given answers: teacher forcing with the mask of training.

No gradients, no sampling. Evaluation measures held-out answers with it, under a model's own
visibility or sequentially, and reads generated answers with another model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pasta_lm.data.encode import NO_LABEL, EncodedExample
from pasta_lm.engines.torch.loading import LoadedModel
from pasta_lm.train.collate import collate, labelled_logits

# Legend: M labelled tokens of a pack, V tokens of the vocabulary.

MAX_LOGITS = 20_000_000
"""Logits that are in memory at a time: 80 MB in float32."""


class TokenNats(NamedTuple):
    """Nats of the labels of one example, in the order of its tokens; 0.0 where there is no label.

    Attributes:
        nats: -log p(label).
        given_text: -log p(label | no tag): the same with the tag pieces left out of the softmax;
            equal to ``nats`` for a model without tag pieces, infinite for a label that is a tag.
    """

    nats: list[float]
    given_text: list[float]


def token_nats(loaded: LoadedModel, examples: Sequence[EncodedExample]) -> list[TokenNats]:
    """Return the nats of every label of some examples, in order.

    Sums are in float32 whatever the model's dtype; in bfloat16 single logits have three digits.
    """
    found: dict[int, TokenNats] = {}
    with torch.inference_mode():
        for pack in _packs(examples, MAX_LOGITS // loaded.vocab_size):
            chosen = [examples[index] for index in pack]
            found |= zip(pack, _pack_nats(loaded, chosen), strict=True)
    return [found[index] for index in range(len(examples))]


def _packs(examples: Sequence[EncodedExample], max_labels: int) -> Iterator[list[int]]:
    """Yield indices of examples whose labels fit together; a longer example is alone."""
    pack: list[int] = []
    num_labels = 0
    for index, example in enumerate(examples):
        num_own = len(example) - example.num_prompt + 1
        if pack and num_labels + num_own > max_labels:
            yield pack
            pack, num_labels = [], 0
        pack.append(index)
        num_labels += num_own
    if pack:
        yield pack


def _pack_nats(loaded: LoadedModel, pack: Sequence[EncodedExample]) -> Iterator[TokenNats]:
    batch = collate([pack])
    for key in ("input_ids", "position_ids", "shift_labels"):
        batch[key] = batch[key].to(loaded.device)
    logits, labels = labelled_logits(loaded.model, batch)
    nats_2M = _nats(logits[0].float(), labels[0], sorted(loaded.vocabulary.piece_ids.values()))
    rows = iter(nats_2M.T.tolist())
    for example in pack:
        pairs = [next(rows) if label != NO_LABEL else (0.0, 0.0) for label in example.labels]
        yield TokenNats([nats for nats, _ in pairs], [given for _, given in pairs])


def _nats(logits_MV: Tensor, labels_M: Tensor, tags: Sequence[int]) -> Tensor:
    """Return [2, M]: nats of the labels, over all tokens and over all but the tags."""
    whole_M = logits_MV.logsumexp(-1) - logits_MV.gather(1, labels_M[:, None])[:, 0]
    if not tags:
        return torch.stack([whole_M, whole_M])
    logits_MV[:, tags] = -torch.inf
    given_M = logits_MV.logsumexp(-1) - logits_MV.gather(1, labels_M[:, None])[:, 0]
    return torch.stack([whole_M, given_M])
