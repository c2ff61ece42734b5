"""One forward pass over a pack: attention, output head, losses, and the nats of every label.

Attention function and mask are those of decoding. Each example of a pack attends to itself only.
Legend: N tokens of a pack, M of them with a label, R of these in one part, L tokens of one example,
V of the vocabulary, E pairs of answers, B plain texts of at most P tokens; H query heads,
G key/value heads, D head or hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from pasta_lm.engines.passes import attention
from pasta_lm.journal import Row
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.models.vocabulary import Vocabulary

MAX_LOGITS = 20_000_000  # Logits that stand in memory at a time: 80 MB in float32.
Batch = Row  # The arguments of one forward pass and of its loss, as ``collate`` makes them.
OfRows = Callable[[Tensor, Tensor], Tensor]
"""Takes logits [R, V] and labels [R]; returns values [..., R]."""


class TrainingPass:
    """The attention of one pack; gradients flow."""

    def __init__(self, pack: Sequence[EncodedExample]) -> None:
        self._pack = pack
        self._lengths = [len(example) for example in pack]
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    @cached_property
    def texts(self) -> tuple[Tensor, Tensor]:
        """Return the pack's plain texts as slots of it, int64 [B, P], and where tokens stand in it.

        They are padded behind, where nothing that is read from left to right sees it. A token is
        in all texts that go on behind it; one slot of it is given, int64 [N] of B * P.
        """
        pairs = zip(accumulate(self._lengths, initial=0), self._pack, strict=False)
        texts = [slots + start for start, example in pairs for slots in plain_texts(example)]
        padded_BP = pad_sequence(texts, batch_first=True)
        slots_N = torch.empty(sum(self._lengths), dtype=torch.int64)
        for number, slots in enumerate(texts):
            slots_N[slots] = number * padded_BP.shape[1] + torch.arange(len(slots))
        return padded_BP, slots_N

    def attend(
        self, call: attention.LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor
    ) -> Tensor:
        """Attend within each example; return [H, N, D], dtype of the queries."""
        parts = zip(*(t.split(self._lengths, dim=1) for t in (q_HND, k_GND, v_GND)), strict=True)
        outs = [self._attend(index, call, *part) for index, part in enumerate(parts)]
        return torch.cat(outs, dim=1)

    def _attend(
        self, index: int, call: attention.LayerCall, q_HLD: Tensor, k_GLD: Tensor, v_GLD: Tensor
    ) -> Tensor:
        if v_GLD.dtype is torch.bfloat16 and v_GLD.device.type == "cpu":
            # With all scores in memory it is twice as fast there as torch's attention. Under
            # autocast the rotation has widened queries and keys.
            mask = self._mask(index, call.window, v_GLD)
            return attention.attend_by_products(call, q_HLD.to(v_GLD), k_GLD.to(v_GLD), v_GLD, mask)
        if attention.is_plain(call):
            k_GLD, v_GLD = attention.for_each_head(q_HLD, k_GLD, v_GLD)
        if self._pack[index].rows is None and call.window is None and attention.is_plain(call):
            out: Tensor = F.scaled_dot_product_attention(
                q_HLD[None], k_GLD[None], v_GLD[None], is_causal=True, scale=call.scaling,
                enable_gqa=len(q_HLD) != len(k_GLD),
            )  # fmt: skip
            return out[0]
        return attention.attend(call, q_HLD, k_GLD, v_GLD, self._mask(index, call.window, q_HLD))

    def _mask(self, index: int, window: int | None, like: Tensor) -> Tensor:
        key = (index, window)
        if key not in self._masks:
            example = self._pack[index]
            visible_LL = seen(example)
            if window is not None:
                positions = _tensor(example.positions)
                visible_LL = visible_LL & attention.in_window(positions, positions, window)
            self._masks[key] = attention.additive(visible_LL.to(like.device), like.dtype)
        return self._masks[key]


def seen(example: EncodedExample) -> Tensor:
    """Return bool [L, L]: where a row's token sees a column's, before any layer's window."""
    slots = torch.arange(len(example))
    if example.rows is None:
        return slots[:, None] >= slots
    cutoffs_LO = torch.tensor(example.rows)[_tensor(example.row_of)]
    return attention.visible(slots, cutoffs_LO, _tensor(example.owners))


def plain_texts(example: EncodedExample) -> list[Tensor]:
    """Return the slots of the plain texts, from left to right, that together are an example."""
    seen_LL, positions = seen(example), _tensor(example.positions)
    lasts = (seen_LL.sum(0) == 1).nonzero()[:, 0]  # nothing but itself sees it
    texts = [seen_LL[last].nonzero()[:, 0] for last in lasts]
    texts = [slots[positions[slots].argsort()] for slots in texts]
    assert all(positions[slots].tolist() == [*range(len(slots))] for slots in texts)
    return texts


def collate(
    packs: Sequence[Sequence[EncodedExample]],
    decision_weight: float = 1.0,
    first_promise_weight: float | None = None,
) -> Batch:
    """Flatten packs into one forward pass: int64 [1, N] each, labels not to be shifted again.

    ``loss_weights``, float32 [M], are there if a label does not weigh 1: main's decisions, and
    among them the first promise of an answer (None: as any decision).
    """
    pack = [example for pack in packs for example in pack]
    labels = torch.cat([_tensor(example.labels) for example in pack])
    batch = {
        "input_ids": torch.cat([_tensor(example.token_ids) for example in pack])[None],
        "position_ids": torch.cat([_tensor(example.positions) for example in pack])[None],
        "shift_labels": labels[None],
        "pasta_pass": TrainingPass(pack),
        "record_ids": [example.id for example in pack],
    }
    first = decision_weight if first_promise_weight is None else first_promise_weight
    if decision_weight != 1 or first != 1:
        weights = torch.cat([_weights(example, decision_weight, first) for example in pack])
        batch["loss_weights"] = weights[labels != NO_LABEL]
    return batch


def _weights(example: EncodedExample, decision_weight: float, first: float) -> Tensor:
    weights = torch.ones(len(example))
    weights[_tensor(example.decisions)] = decision_weight
    if example.rows is not None:  # it has blocks, and nothing is decided before the first promise
        weights[_tensor(example.decisions[:1])] = first
    return weights


def _tensor(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def over_labels(model: PreTrainedModel, batch: Batch, of_rows: OfRows) -> Tensor:
    """Apply a function to the logits of the labelled tokens, part by part; return [..., M].

    The output head and the function run together on so many rows that their logits are few, and
    again in the backward pass: all logits of a pack, 2 GB of a large vocabulary, never exist.
    """
    base, learned = model.base_model, (batch["shift_labels"][0] != NO_LABEL).nonzero()[:, 0]
    if reads_texts(model):
        texts_BP, slots_N = batch["pasta_pass"].texts
        out = base(input_ids=batch["input_ids"][0, texts_BP], use_cache=False)
        hidden_MD = out.last_hidden_state.flatten(0, 1)[slots_N[learned.cpu()]]
    else:
        inputs = {name: batch[name] for name in ("input_ids", "position_ids", "pasta_pass")}
        out = base(**inputs, use_cache=False)
        hidden_MD = out.last_hidden_state[0, learned]
    first_token = batch["input_ids"][:, :1]  # not read

    def of_part(hidden_RD: Tensor, labels_R: Tensor) -> Tensor:
        # By the model's own forward, which may scale or cap its logits.
        forward = base.forward
        base.forward = lambda *_, **__: type(out)(last_hidden_state=hidden_RD[None])
        try:
            return of_rows(model(input_ids=first_token, use_cache=False).logits[0], labels_R)
        finally:
            base.forward = forward

    num_rows = max(1, MAX_LOGITS // len(model.get_output_embeddings().weight))
    tensors = hidden_MD, batch["shift_labels"][0, learned]
    parts = zip(*(tensor.split(num_rows) for tensor in tensors), strict=True)
    again = partial(checkpoint, of_part, use_reentrant=False)
    return torch.cat([(again if torch.is_grad_enabled() else of_part)(*part) for part in parts], -1)


def reads_texts(model: PreTrainedModel) -> bool:
    """Return whether a model reads plain texts by its own attention, without our mask."""
    return bool(model.config._attn_implementation != attention.NAME)


def label_nats(logits_RV: Tensor, labels_R: Tensor) -> Tensor:
    """Return -log p(label) of each row: [R], float32 or wider."""
    wide = logits_RV if logits_RV.dtype is torch.float64 else logits_RV.float()
    nats_R: Tensor = F.cross_entropy(wide, labels_R, reduction="none")
    return nats_R


def weighted_mean(nats_M: Tensor, weights_M: Tensor | None) -> Tensor:
    return nats_M.mean() if weights_M is None else (nats_M * weights_M).sum() / weights_M.sum()


def bonbon_loss(chosen_E: Tensor, margin_E: Tensor, alpha: float, beta: float) -> Tensor:
    """Return the mean of -alpha log p(chosen) + (1 - alpha) (margin - 1 / (2 beta))^2.

    The margin is log(p(chosen) / p(rejected)) minus that of the reference, in nats.

    Source: PASTA, the loss of stage two (alpha = 0.005); BoNBoN, Gui et al., arXiv 2406.00832.
    """
    return (-alpha * chosen_E + (1 - alpha) * (margin_E - 1 / (2 * beta)) ** 2).mean()


class TokenNats(NamedTuple):
    """Nats of the labels of one example, in token order; 0.0 where there is no label."""

    nats: list[float]  # -log p(label).
    given_text: list[float]
    """-log p(label | no tag): the tag pieces left out of the softmax; infinite for a tag."""


def token_nats(
    model: PreTrainedModel, vocabulary: Vocabulary, examples: Sequence[EncodedExample]
) -> list[TokenNats]:
    """Return the nats of every label of some examples, in order.

    Sums are in float32 whatever the model's dtype; in bfloat16 single logits have three digits.
    """
    tags = _tensor(sorted(vocabulary.piece_ids.values())).to(model.device)

    def both(logits_RV: Tensor, labels_R: Tensor) -> Tensor:
        whole_R = label_nats(logits_RV, labels_R)
        text_RV = logits_RV.float().index_fill(1, tags, -torch.inf)
        return torch.stack([whole_R, label_nats(text_RV, labels_R)])

    def read(example: EncodedExample) -> TokenNats:
        batch = on_device(collate([[example]]), model.device)
        rows = iter(over_labels(model, batch, both).T.tolist())
        pairs = [next(rows) if label != NO_LABEL else (0.0, 0.0) for label in example.labels]
        return TokenNats(*map(list, zip(*pairs, strict=True)))

    with torch.inference_mode():
        return list(map(read, examples))


def on_device(batch: Batch, device: torch.device) -> Batch:
    return {key: v.to(device) if isinstance(v, Tensor) else v for key, v in batch.items()}
