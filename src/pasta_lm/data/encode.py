"""Encode a prompt and its annotated answer as token ids, labels, positions and visibility rows.

The paper's three changes to next-token training, with the definitions that decoding uses:
visibility and positions come from ``interpreter.placement``, tag ids from the vocabulary. Slots
follow the order of the written form.

Source: PASTA, section 4.2 (mask, positions, labels); ``docs/architecture.md``, rules of training.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from pasta_lm.engines.annotated import Record
from pasta_lm.engines.encoded_document import EncodedDocument
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.placement import Placer
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.thread import Thread
from pasta_lm.interpreter.visibility import Row
from pasta_lm.language.document import NUM_BLOCK_TAGS
from pasta_lm.language.events import Text
from pasta_lm.language.lexer import LexemeKind
from pasta_lm.language.parser import Form, Parser
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN

NO_LABEL = -100
"""Label of a token that predicts nothing; PyTorch's losses ignore it."""


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """One encoded prompt with its answer in written form; N tokens, O owners.

    Attributes:
        id: The record's.
        token_ids: [N], prompt first; the end-of-text is predicted, never fed.
        labels: [N]; the token that each token predicts, or ``NO_LABEL``. Not to be shifted.
        positions: [N].
        owners: [N]; the owner of each token's KV entry.
        row_of: [N]; the index in ``rows`` of each token's visibility.
        rows: Each [O]; the first slot of each owner that cannot be seen. None: the answer has no
            tags, and the mask is causal.
        num_prompt: Number of tokens of the prompt.
    """

    id: str
    token_ids: array[int]
    labels: array[int]
    positions: array[int]
    owners: array[int]
    row_of: array[int]
    rows: tuple[tuple[int, ...], ...] | None
    num_prompt: int

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.token_ids)


def encode_example(
    record: Record,
    vocabulary: Vocabulary,
    eos_id: int,
    strategy: PositionStrategy = PositionStrategy.PREDICT,
    form: Form = Form.MAIN,
) -> EncodedExample:
    """Encode one record; an answer without tags becomes ordinary next-token training.

    Args:
        record: A prompt and its answer; missing lengths are counted.
        vocabulary: The model's; with tag pieces if the answer has tags.
        eos_id: The end-of-text.
        strategy: The positions of main after a promise and at a sync.
        form: How main announces a block: MAIN, by a promise; FORKED, by APAR's single piece.

    Raises:
        UsageError: ``rotate``, whose keys have several positions each; or FORKED with a strategy
            that needs promised lengths.
        InputError: the prompt has no tokens, or a block has tags inside.
        VocabularyError: the answer has tags and the model has none, or its tokenizer changes text.
    """
    if strategy is PositionStrategy.ROTATE:
        raise UsageError(
            "positions 'rotate' cannot be trained",
            hint="train with 'predict': until a sync the two are the same",
        )
    if form is Form.FORKED and strategy is not PositionStrategy.CONTINUE:
        raise UsageError(f"forks promise no length: positions {strategy.value!r} need one")
    prompt = checked_prompt(record, vocabulary)
    encoded = vocabulary.encode_document(record.document, form)
    if not encoded.blocks and not record.document.num_syncs:
        return plain_example(record.id, prompt, encoded.main, eos_id)
    return _Writer(prompt, vocabulary, strategy, form).write(record.id, encoded, eos_id)


def checked_prompt(record: Record, vocabulary: Vocabulary) -> list[int]:
    """Return a record's prompt as ids, after checking that the record can be trained on.

    Raises:
        InputError: the prompt has no tokens, or a block has tags inside.
        VocabularyError: the tokenizer changes the answer.
    """
    vocabulary.check_round_trip(record.document.plain_text)
    prompt = vocabulary.encode_prompt([{"role": "user", "content": record.prompt}])
    if not prompt:
        raise InputError(f"record {record.id}: its prompt has no tokens to answer after")
    inside = (item for block in record.document.blocks for item in block.items)
    if not all(isinstance(item, Text) for item in inside):
        raise InputError(f"record {record.id}: a block with tags inside cannot be trained")
    return prompt


def plain_example(
    name: str, prompt: Sequence[int], answer: Sequence[int], eos_id: int
) -> EncodedExample:
    """Return an example of ordinary next-token training."""
    token_ids = array("i", [*prompt, *answer])
    labels = array("i", [*[NO_LABEL] * (len(prompt) - 1), *answer, eos_id])
    positions = array("i", range(len(token_ids)))
    nothing = array("i")
    return EncodedExample(name, token_ids, labels, positions, nothing, nothing, None, len(prompt))


class _Writer:
    """Feeds an answer in the order of its written form; an engine feeds it in the order of time."""

    def __init__(
        self,
        prompt: Sequence[int],
        vocabulary: Vocabulary,
        strategy: PositionStrategy,
        form: Form,
    ) -> None:
        self._vocabulary = vocabulary
        opens = LexemeKind.PROMISE_OPEN
        self._forks_with = opens if form is Form.FORKED else LexemeKind.PROMISE_CLOSE
        self._entries = Entries.of_prompt(prompt)
        self._main = self._thread(None)
        self._placer = Placer(self._entries, strategy, self._main)
        self._labels = array("i", [NO_LABEL] * len(prompt))
        self._last_of_main = len(prompt) - 1

    def write(self, name: str, encoded: EncodedDocument, eos_id: int) -> EncodedExample:
        num_prompt = len(self._entries)
        blocks = iter(encoded.blocks)
        unjoined: list[Thread] = []
        for token in encoded.main:
            self._labels[self._last_of_main] = token
            self._last_of_main = len(self._entries)
            self._labels.append(NO_LABEL)
            lexeme = self._vocabulary.id_to_lexeme(token)
            if lexeme is not None and lexeme.kind is LexemeKind.SYNC:
                self._placer.feed_sync(self._main, token, unjoined)
                unjoined = []
            elif lexeme is not None and lexeme.kind is self._forks_with:
                unjoined.append(self._fork(token, lexeme.units, next(blocks)))
            else:
                self._placer.feed(self._main, token)
        self._labels[self._last_of_main] = eos_id
        return example_of(name, self._entries, self._labels, num_prompt)

    def _fork(self, token: int, units: int | None, block: Sequence[int]) -> Thread:
        """Feed a promise's last token, then the whole block."""
        child = self._thread(self._main)
        child.units, child.block_length = units, len(block) + NUM_BLOCK_TAGS
        self._placer.feed(self._main, token, promised=child)
        close = self._vocabulary.piece_id(ASYNC_CLOSE)
        fed = (self._vocabulary.piece_id(ASYNC_OPEN), *block, close)
        for block_token, label in zip(fed, (*block, close, NO_LABEL), strict=True):
            self._placer.feed(child, block_token)
            self._labels.append(label)
        return child

    def _thread(self, parent: Thread | None) -> Thread:
        owner = self._entries.new_owner()
        form = Form.MAIN if parent is None else Form.BLOCK
        return Thread(id=owner - 1, owner=owner, parser=Parser(form), parent=parent)


def example_of(name: str, entries: Entries, labels: array[int], num_prompt: int) -> EncodedExample:
    """Return the fed entries and their labels as an example."""
    items, num_owners = entries.items, entries.num_owners
    numbers: dict[int, int] = {}
    rows: list[Row] = []
    for entry in items:
        if id(entry.row) not in numbers:
            numbers[id(entry.row)] = len(rows)
            rows.append(entry.row)
    # No slot is beyond the last; the bound keeps unlimited cutoffs within 32 bits.
    bound = len(items)
    return EncodedExample(
        id=name,
        token_ids=array("i", [entry.token for entry in items]),
        labels=labels,
        positions=array("i", [entry.position for entry in items]),
        owners=array("i", [entry.owner for entry in items]),
        row_of=array("i", [numbers[id(entry.row)] for entry in items]),
        rows=tuple(
            tuple(min(row.cutoff(owner), bound) for owner in range(num_owners)) for row in rows
        ),
        num_prompt=num_prompt,
    )
