"""A table of one encoded example, printed before training: tokens, labels, positions, mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from torch import Tensor

from pasta_lm.data.encode import NO_LABEL, EncodedExample
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.train.collate import seen

NUM_HEAD, NUM_TAIL = 4, 3
"""Rows shown at the ends of a longer run of tokens of one thread."""


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
    thread = example.owners[slot] - 1 if example.rows is not None else 0
    return f"thread {thread}" if thread else "main"


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
