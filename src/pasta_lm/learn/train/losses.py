"""One forward pass over a pack: attention, logits, losses, and the nats of every label.

Attention function and mask are those of decoding. Each example of a pack attends to itself only.
Legend: N tokens of a pack, M of them with a label, L of one example, V tokens of the vocabulary,
E pairs of answers; H query heads, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pasta_lm.engines.local.attention import (
    LayerCall,
    additive,
    attend,
    attend_by_products,
    in_window,
    is_plain,
    visible,
)
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample

_ROWS = 128
"""Rows of logits that the loss widens to float32 at a time: 25 MB of 50,000 tokens."""
MAX_LOGITS = 20_000_000
"""Logits that ``token_nats`` has in memory at a time: 80 MB in float32."""


class TrainingPass:
    """The attention of one pack; gradients flow."""

    def __init__(self, pack: Sequence[EncodedExample]) -> None:
        self._pack = pack
        self._lengths = [len(example) for example in pack]
        self._seen: dict[int, Tensor] = {}
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        """Attend within each example; return [H, N, D], dtype of the queries."""
        parts = zip(*(t.split(self._lengths, dim=1) for t in (q_HND, k_GND, v_GND)), strict=True)
        outs = [self._attend(index, call, *part) for index, part in enumerate(parts)]
        return torch.cat(outs, dim=1)

    def _attend(
        self, index: int, call: LayerCall, q_HLD: Tensor, k_GLD: Tensor, v_GLD: Tensor
    ) -> Tensor:
        if v_GLD.dtype is torch.bfloat16 and v_GLD.device.type == "cpu":
            # With all scores in memory it is twice as fast there as torch's attention. Under
            # autocast the rotation has widened queries and keys.
            mask = self._mask(index, call.window, v_GLD)
            return attend_by_products(call, q_HLD.to(v_GLD), k_GLD.to(v_GLD), v_GLD, mask)
        if self._pack[index].rows is None and call.window is None and is_plain(call):
            out: Tensor = F.scaled_dot_product_attention(
                q_HLD[None],
                k_GLD[None],
                v_GLD[None],
                is_causal=True,
                scale=call.scaling,
                enable_gqa=len(q_HLD) != len(k_GLD),
            )
            return out[0]
        mask = self._mask(index, call.window, q_HLD)
        return attend(call, q_HLD, k_GLD, v_GLD, mask)

    def _mask(self, index: int, window: int | None, like: Tensor) -> Tensor:
        key = (index, window)
        if key not in self._masks:
            if index not in self._seen:
                self._seen[index] = seen(self._pack[index]).to(like.device)
            visible_LL = self._seen[index]
            if window is not None:
                positions = _tensor(self._pack[index].positions).to(like.device)
                visible_LL = visible_LL & in_window(positions, positions, window)
            self._masks[key] = additive(visible_LL, like.dtype)
        return self._masks[key]


def seen(example: EncodedExample) -> Tensor:
    """Return bool [L, L]: where a row's token sees a column's, before any layer's window."""
    slots = torch.arange(len(example))
    if example.rows is None:
        return slots[:, None] >= slots
    cutoffs_LO = torch.tensor(example.rows)[_tensor(example.row_of)]
    return visible(slots, cutoffs_LO, _tensor(example.owners))


def collate(
    packs: Sequence[Sequence[EncodedExample]], decision_weight: float = 1.0
) -> dict[str, Any]:
    """Flatten packs into one forward pass: int64 [1, N] each, labels not to be shifted again.

    ``loss_weights``, float32 [1, N], are there if main's decisions do not weigh 1.
    """
    pack = [example for pack in packs for example in pack]
    batch = {
        "input_ids": torch.cat([_tensor(e.token_ids) for e in pack])[None],
        "position_ids": torch.cat([_tensor(e.positions) for e in pack])[None],
        "shift_labels": torch.cat([_tensor(e.labels) for e in pack])[None],
        "pasta_pass": TrainingPass(pack),
        "record_ids": [e.id for e in pack],
    }
    if decision_weight != 1:
        batch["loss_weights"] = torch.cat([_weights(e, decision_weight) for e in pack])[None]
    return batch


def labelled_weights(batch: Mapping[str, Any]) -> Tensor | None:
    """Return the weights [M] of the M labels of a batch, or None if each weighs 1."""
    if "loss_weights" not in batch:
        return None
    weights: Tensor = batch["loss_weights"][batch["shift_labels"] != NO_LABEL]
    return weights


def labelled_logits(model: nn.Module, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the logits [1, M, V] and labels [1, M] of the M tokens of a batch with a label."""
    labels = batch["shift_labels"]
    learned = (labels[0] != NO_LABEL).nonzero()[:, 0]
    out = model(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        pasta_pass=batch["pasta_pass"],
        use_cache=False,
        logits_to_keep=learned,
    )
    return out.logits, labels[:, learned]


def _tensor(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _weights(example: EncodedExample, decision_weight: float) -> Tensor:
    weights = torch.ones(len(example))
    weights[_tensor(example.decisions)] = decision_weight
    return weights


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
    """Return the mean of -alpha log p(chosen) + (1 - alpha) (margin - 1 / (2 beta))^2.

    Source: PASTA, the loss of stage two (alpha = 0.005); BoNBoN, Gui et al., arXiv 2406.00832.
    """
    return (-alpha * pairs.chosen + (1 - alpha) * (pairs.margin - 1 / (2 * beta)) ** 2).mean()


class TokenNats(NamedTuple):
    """Nats of the labels of one example, in token order; 0.0 where there is no label."""

    nats: list[float]
    """-log p(label)."""
    given_text: list[float]
    """-log p(label | no tag): the tag pieces left out of the softmax; infinite for a tag."""


def token_nats(loaded: LoadedModel, examples: Sequence[EncodedExample]) -> list[TokenNats]:
    """Return the nats of every label of some examples, in order.

    Sums are in float32 whatever the model's dtype; in bfloat16 single logits have three digits.
    """
    with torch.inference_mode():
        packs = _packs(examples, MAX_LOGITS // loaded.vocab_size)
        return [nats for pack in packs for nats in _pack_nats(loaded, pack)]


def _packs(examples: Sequence[EncodedExample], max_labels: int) -> Iterator[list[EncodedExample]]:
    """Yield groups of successive examples, each with few enough labels."""
    pack: list[EncodedExample] = []
    num_labels = 0
    for example in examples:
        num_own = len(example) - example.num_prompt + 1
        if pack and num_labels + num_own > max_labels:
            yield pack
            pack, num_labels = [], 0
        pack.append(example)
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
