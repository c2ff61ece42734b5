"""Collate a pack of examples into one forward pass; show one example as a table.

Attention function and mask are those of decoding. Each example of a pack attends to itself only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from pasta_lm.engines.local.attention import (
    LayerCall,
    additive,
    attend,
    attend_by_products,
    in_window,
    is_plain,
    visible,
)
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.models.vocabulary import Vocabulary

NUM_HEAD, NUM_TAIL = 4, 3
"""Rows shown at the ends of a longer run of tokens of one thread."""
# Legend: N tokens of a pack, L of one example, H query heads, G key/value heads, D head size.


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
            out: Tensor = torch.nn.functional.scaled_dot_product_attention(
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
    """Flatten packs into one forward pass; main's decisions weigh as given, other labels 1.

    Returns:
        ``input_ids``, ``position_ids`` and ``shift_labels``, int64 [1, N] each (labels are not to
        be shifted again), ``pasta_pass`` for the attention, and ``record_ids`` for errors;
        ``loss_weights``, float32 [1, N], if a label does not weigh 1.
    """
    pack = [example for pack in packs for example in pack]
    weighted = {}
    if decision_weight != 1:
        weighted["loss_weights"] = torch.cat([_weights(e, decision_weight) for e in pack])[None]
    return {
        "input_ids": torch.cat([_tensor(e.token_ids) for e in pack])[None],
        "position_ids": torch.cat([_tensor(e.positions) for e in pack])[None],
        "shift_labels": torch.cat([_tensor(e.labels) for e in pack])[None],
        "pasta_pass": TrainingPass(pack),
        "record_ids": [e.id for e in pack],
        **weighted,
    }


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


def example_table(example: EncodedExample, vocabulary: Vocabulary, eos_id: int) -> str:
    """Return a table with one line per token: its thread, position, label and visible entries.

    The middle of long runs of one thread is left out. The last column counts the entries of each
    thread that the token attends to, itself included.
    """
    num_learned = sum(label != NO_LABEL for label in example.labels)
    head = f"{example.id}: {len(example)} tokens, {example.num_prompt} of them the prompt's, "
    lines = [
        f"{head}{num_learned} are predicted",
        f"{'slot':>5} {'pos':>5}  {'thread':<10}{'token':<20}{'predicts':<20}sees",
    ]
    visible_LL = seen(example)
    for _, run in groupby(range(len(example)), key=lambda slot: _thread(example, slot)):
        for slot in _folded(list(run)):
            if slot is None:
                lines.append(f"{'...':>5}")
            else:
                lines.append(_line(example, slot, visible_LL[slot], vocabulary, eos_id))
    return "\n".join(lines)


def _thread(example: EncodedExample, slot: int) -> str:
    if slot < example.num_prompt:
        return "prompt"
    owner = 0 if example.rows is None else example.owners[slot]
    if example.rows is None or owner in example.main_owners:
        return "main"
    return f"thread {owner - sum(other < owner for other in example.main_owners)}"


def _folded(slots: Sequence[int]) -> Iterator[int | None]:
    if len(slots) <= NUM_HEAD + NUM_TAIL + 1:
        yield from slots
        return
    yield from slots[:NUM_HEAD]
    yield None
    yield from slots[-NUM_TAIL:]


def _line(
    example: EncodedExample, slot: int, visible_L: Tensor, vocabulary: Vocabulary, eos_id: int
) -> str:
    label = example.labels[slot]
    predicts = "-" if label == NO_LABEL else _token(label, vocabulary, eos_id)
    token = _token(example.token_ids[slot], vocabulary, eos_id)
    counts = Counter(_thread(example, other) for other in visible_L.nonzero()[:, 0].tolist())
    sees = ", ".join(f"{name} {number}" for name, number in counts.items())
    start = f"{slot:>5} {example.positions[slot]:>5}  {_thread(example, slot):<10}"
    return f"{start}{token:<20}{predicts:<20}{sees}"


def _token(token_id: int, vocabulary: Vocabulary, eos_id: int) -> str:
    if token_id == eos_id:
        return "end of text"
    piece = {number: piece for piece, number in vocabulary.piece_ids.items()}.get(token_id)
    return piece or repr(vocabulary.token_text(token_id))
