"""Losses as pure functions, and the nats of every token of given answers under a model.

Legend: N tokens of a pack, M of them with a label, V tokens of the vocabulary, E pairs of answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.train.collate import collate, labelled_logits

_ROWS = 128
"""Rows of logits that the loss widens to float32 at a time: 25 MB of 50,000 tokens."""
MAX_LOGITS = 20_000_000
"""Logits that ``token_nats`` has in memory at a time: 80 MB in float32."""


def next_token_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross entropy over the tokens that have a label; NaN if none has.

    Logits are [1, N, V], labels int64 [1, N]: what each token predicts, so nothing is shifted.
    With weights, float32 [M] for the M labels, it is the weighted mean.
    """
    parts = zip(logits[0].split(_ROWS), labels[0].split(_ROWS), strict=True)
    # The backward pass computes the softmax again: nothing of all logits is kept in float32.
    again = partial(checkpoint, _cross_entropy, use_reentrant=False, preserve_rng_state=False)
    loss_of = again if logits.requires_grad else _cross_entropy
    nats_M = torch.cat([loss_of(*part) for part in parts])[labels[0] != NO_LABEL]
    return nats_M.mean() if weights is None else (nats_M * weights).sum() / weights.sum()


def _cross_entropy(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    wide = logits_NV if logits_NV.dtype is torch.float64 else logits_NV.float()
    return F.cross_entropy(wide, labels_N, ignore_index=NO_LABEL, reduction="none")


def label_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each token's label, 0 without one: [N], float32 or wider."""
    return -_cross_entropy(logits[0], labels[0])


@dataclass(frozen=True, slots=True)
class PairLogProbs:
    """Log-probabilities of E pairs under the policy and the reference: [E] each, in nats."""

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor

    @property
    def margin(self) -> Tensor:
        """Return log(p(chosen) / p(rejected)) of the policy minus that of the reference: [E]."""
        ours = self.chosen - self.rejected
        return ours - (self.reference_chosen - self.reference_rejected)


def bonbon_loss(pairs: PairLogProbs, alpha: float, beta: float) -> Tensor:
    """Return BoNBoN's loss: likelihood of the better answer and its margin over the worse.

    -alpha log p(chosen) + (1 - alpha) (margin - 1 / (2 beta))^2, the mean over pairs. The paper
    has alpha = 0.005.

    Source: PASTA, the loss of stage two; Gui et al., arXiv 2406.00832.
    """
    return (-alpha * pairs.chosen + (1 - alpha) * (pairs.margin - 1 / (2 * beta)) ** 2).mean()


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
    nats: dict[int, TokenNats] = {}
    with torch.inference_mode():
        for pack in _packs(examples, MAX_LOGITS // loaded.vocab_size):
            chosen = [examples[index] for index in pack]
            nats |= zip(pack, _pack_nats(loaded, chosen), strict=True)
    return [nats[index] for index in range(len(examples))]


def _packs(examples: Sequence[EncodedExample], max_labels: int) -> Iterator[list[int]]:
    """Yield groups of examples by their indices, each with few enough labels."""
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
        yield TokenNats([whole for whole, _ in pairs], [text for _, text in pairs])


def _nats(logits_MV: Tensor, labels_M: Tensor, tags: Sequence[int]) -> Tensor:
    """Return [2, M]: nats of the labels, over all tokens and over all but the tags."""
    whole_M = logits_MV.logsumexp(-1) - logits_MV.gather(1, labels_M[:, None])[:, 0]
    if not tags:
        return torch.stack([whole_M, whole_M])
    logits_MV[:, tags] = -torch.inf
    text_M = logits_MV.logsumexp(-1) - logits_MV.gather(1, labels_M[:, None])[:, 0]
    return torch.stack([whole_M, text_M])
