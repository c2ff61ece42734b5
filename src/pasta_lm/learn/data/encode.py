"""Encode a prompt and its annotated answer as token ids, labels, positions and visibility rows.

Training uses the definitions of decoding: ``interpreter.placement`` gives visibility and
positions. Tokens are stored in the order of the written form.

Source: PASTA, section 4.2 (mask, positions, labels).
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, count, islice
from typing import Literal

from pasta_lm.engines.request import Request, Start
from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.placement import Entries, Placer
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.thread import Thread
from pasta_lm.language.document import NUM_BLOCK_TAGS, Block
from pasta_lm.language.events import Text
from pasta_lm.language.lexer import LexemeKind
from pasta_lm.language.parser import Form, Parser
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN
from pasta_lm.learn.data.annotated import Record
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.models.thinking import think_kwargs
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.strategies.skeleton_of_thought import FINETUNED, Stages, blocks_of, skeleton_of

Thoughts = Literal["none", "context", "loss"]
NO_LABEL = -100  # Label of a token that predicts nothing; PyTorch's losses ignore it.
NUM_BOUNDARIES = 8
"""Boundaries of an answer without blocks that are decisions; a label follows the marker of an item,
and that a preface, so that the first promise stands at one of them."""


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """One encoded prompt with its answer in written form; N tokens, O owners.

    With join ``recompute`` each sync adds an owner of main's, and feeds entries again.
    """

    id: str
    token_ids: array[int]  # [N], prompt first; the end-of-text is predicted, never fed.
    labels: array[int]  # [N]; the token that each predicts, or ``NO_LABEL``. Not to be shifted.
    positions: array[int]
    owners: array[int]  # [N]; the owner of each token's KV entry.
    row_of: array[int]  # [N]; the index in ``rows`` of each token's visibility.
    rows: tuple[tuple[int, ...], ...] | None  # Each [O], first unseen slots; None: causal.
    num_prompt: int
    main_owners: tuple[int, ...] = ()
    fed_again: array[int] = field(default_factory=lambda: array("i"))  # Slots.
    decisions: array[int] = field(default_factory=lambda: array("i"))  # Slots; blocks' ends too.

    def __len__(self) -> int:
        return len(self.token_ids)


def encode_example(
    record: Record, vocabulary: Vocabulary, eos_id: int,
    strategy: PositionStrategy = PositionStrategy.PREDICT, *, form: Form = Form.MAIN,
    join: Join = Join.SHARED, thoughts: Thoughts = "none",
) -> EncodedExample:  # fmt: skip
    """Encode one record; an answer without tags becomes ordinary next-token training.

    With form FORKED main announces a block by APAR's single piece instead of a promise. A record's
    thought is left out, read as context, or learnt with the answer.
    """
    if form is Form.FORKED and strategy is not PositionStrategy.CONTINUE:
        raise UsageError(f"forks promise no length: positions {strategy.value!r} need one")
    thought = None if thoughts == "none" else record.reasoning
    prompt = _checked_prompt(record, vocabulary, thinks=thought is not None)
    num_asked = len(prompt)
    if thought is not None:
        prompt += vocabulary.encode_thought(thought, prompt)
    encoded = vocabulary.encode_document(record.document, form)
    if encoded.blocks or record.document.num_syncs:
        writer = _Writer(prompt, vocabulary, eos_id, strategy, join)
        example = writer.write_blocks(record.id, encoded, form)
    else:
        plain = _plain_example(record.id, prompt, encoded.main, eos_id)
        slots = compress(count(len(prompt) - 1), decisions_of(encoded.main, vocabulary))
        example = replace(plain, decisions=array("i", slots))
    if thoughts == "loss":  # a prompt has the first slots
        example.labels[num_asked - 1 : len(prompt) - 1] = array("i", prompt[num_asked:])
    return example


def encode_points(
    record: Record, vocabulary: Vocabulary, eos_id: int,
    strategy: PositionStrategy = PositionStrategy.CONTINUE,
) -> EncodedExample:  # fmt: skip
    """Encode one record whose blocks are points; a record without blocks is encoded as plain text.

    Main writes the skeleton after the prompt; every point sees both and its own request, and
    writes its part of the answer. For an answer of a single point the skeleton is empty: main ends
    at once, and the answer starts again after the prompt. Text outside points is an InputError.
    """
    prompt = _checked_prompt(record, vocabulary)
    if not record.document.blocks:
        answer = vocabulary.encode_text(record.document.plain_text)
        return _plain_example(record.id, prompt, answer, eos_id)
    try:
        blocks = blocks_of(record.document)
    except ValueError as exc:
        raise InputError(f"record {record.id}: {exc}") from exc
    stages = Stages(record.messages, vocabulary, FINETUNED)
    writer = _Writer(stages.prompt, vocabulary, eos_id, strategy)
    return writer.write_points(record.id, blocks, stages)


def encode_parts(
    name: str, request: Request, texts: Mapping[int, str], vocabulary: Vocabulary
) -> EncodedExample:  # fmt: skip
    """Encode a request of parts with texts by their numbers, each up to the mark behind a value."""
    assert request.expansion is not None
    starts = [request.expansion.known[number] for number in texts]
    writer = _Writer(request.prompt, vocabulary, NO_LABEL, request.positions)  # a mark ends a part
    return writer.write_threads(name, starts, texts.values())


def _checked_prompt(record: Record, vocabulary: Vocabulary, *, thinks: bool = False) -> list[int]:
    vocabulary.check_round_trip(record.document.plain_text)
    prompt = vocabulary.encode_prompt(record.messages, chat_template_kwargs=think_kwargs(thinks))
    if not prompt:
        raise InputError(f"record {record.id}: its prompt has no tokens to answer after")
    inside = (item for block in record.document.blocks for item in block.items)
    if not all(isinstance(item, Text) for item in inside):
        raise InputError(f"record {record.id}: a block with tags inside cannot be trained")
    return prompt


def _plain_example(
    name: str, prompt: Sequence[int], answer: Sequence[int], eos_id: int
) -> EncodedExample:
    token_ids = array("i", [*prompt, *answer])
    labels = array("i", [*[NO_LABEL] * (len(prompt) - 1), *answer, eos_id])
    positions = array("i", range(len(token_ids)))
    nothing = array("i")
    return EncodedExample(name, token_ids, labels, positions, nothing, nothing, None, len(prompt))


class _Writer:
    """Feeds an answer in the order of its written form; an engine feeds it in the order of time."""

    def __init__(
        self, prompt: Sequence[int], vocabulary: Vocabulary, eos_id: int,
        strategy: PositionStrategy, join: Join = Join.SHARED,
    ) -> None:  # fmt: skip
        self._vocabulary, self._eos_id = vocabulary, eos_id
        self._num_prompt = len(prompt)
        self._entries = Entries.of_prompt(prompt)
        self._main = self._thread(None)
        self._main_owners = [self._main.owner]
        self._fed_again = array("i")
        self._placer = Placer(self._entries, strategy, self._main, join)
        self._labels = array("i", [NO_LABEL] * len(prompt))
        self._decisions = array("i")
        self._last_of_main = len(prompt) - 1

    def _thread(self, parent: Thread | None) -> Thread:
        owner, form = self._entries.new_owner(), Form.MAIN if parent is None else Form.BLOCK
        thread = Thread(id=owner - 1, owner=owner, parser=Parser(form), parent=parent)
        if parent is not None:
            parent.children.append(thread)  # in reading order: a sync may read them again
        return thread

    def write_blocks(self, name: str, encoded: EncodedDocument, form: Form) -> EncodedExample:
        """Feed main, and each block whole after the promise or fork that announces it."""
        forks_with = LexemeKind.PROMISE_OPEN if form is Form.FORKED else LexemeKind.PROMISE_CLOSE
        blocks = iter(encoded.blocks)
        unjoined: list[Thread] = []
        flags = decisions_of(encoded.main, self._vocabulary)
        for token, is_decision in zip(encoded.main, flags, strict=False):
            self._label_main(token, is_decision)
            lexeme = self._vocabulary.id_to_lexeme(token)
            if lexeme is not None and lexeme.kind is LexemeKind.SYNC:
                self._sync(token, unjoined)
                unjoined = []
            elif lexeme is not None and lexeme.kind is forks_with:
                unjoined.append(self._fork(token, lexeme.units, next(blocks)))
            else:
                self._feed_main(token)
        self._label_main(self._eos_id, flags[-1])
        return self._example(name)

    def _label_main(self, label: int, is_decision: bool) -> None:
        self._labels[self._last_of_main] = label
        if is_decision:
            self._decisions.append(self._last_of_main)

    def _feed_main(self, token: int, promised: Thread | None = None) -> None:
        self._last_of_main = self._placer.feed(self._main, token, promised=promised).slot
        self._labels.append(NO_LABEL)

    def _sync(self, token: int, joined: Sequence[Thread]) -> None:
        """Feed a sync; what its join feeds again before it is predicted no second time."""
        self._last_of_main = self._placer.feed_sync(self._main, token, joined).slot
        self._fed_again.extend(range(len(self._labels), self._last_of_main))
        self._labels.extend([NO_LABEL] * (len(self._entries) - len(self._labels)))
        if self._main.owner != self._main_owners[-1]:
            self._main_owners.append(self._main.owner)

    def _fork(self, token: int, units: int | None, block: Sequence[int]) -> Thread:
        child = self._thread(self._main)
        child.units, child.block_length = units, len(block) + NUM_BLOCK_TAGS
        self._feed_main(token, promised=child)
        close = self._vocabulary.piece_id(ASYNC_CLOSE)
        self._decisions.append(len(self._labels) + len(block))  # else blocks run on
        fed = (self._vocabulary.piece_id(ASYNC_OPEN), *block, close)
        for block_token, label in zip(fed, (*block, close, NO_LABEL), strict=True):
            self._feed(child, block_token, label)
        return child

    def _feed(self, thread: Thread, token: int, label: int = NO_LABEL) -> None:
        self._placer.feed(thread, token)
        self._labels.append(label)

    def write_points(self, name: str, blocks: Sequence[Block], stages: Stages) -> EncodedExample:
        skeleton = skeleton_of(blocks)
        starts = stages.starts(skeleton)
        if len(starts) != len(blocks):
            raise InputError(f"record {name}: a point without a topic is in no skeleton")
        self._decode(self._main, skeleton)
        return self.write_threads(name, starts, [block.plain_text for block in blocks])

    def write_threads(
        self, name: str, starts: Iterable[Start], texts: Iterable[str]
    ) -> EncodedExample:  # fmt: skip
        for start, text in zip(starts, texts, strict=True):
            thread = self._thread(self._main)
            self._placer.start(thread, start.num_seen)
            for token in start.prefix:
                self._feed(thread, token)
            self._decode(thread, text)
        return self._example(name)

    def _decode(self, thread: Thread, text: str) -> None:
        """Feed decoded tokens; each predicts the next one, and the last one the end-of-text."""
        for token in self._vocabulary.encode_text(text):
            self._labels[-1] = token
            self._feed(thread, token)
        self._labels[-1] = self._eos_id

    def _example(self, name: str) -> EncodedExample:
        items, owners = self._entries.items, range(self._entries.num_owners)
        rows = {id(entry.row): entry.row for entry in items}
        numbers = {row: number for number, row in enumerate(rows)}
        bound = len(items)  # no slot is beyond the last; unlimited cutoffs exceed 32 bits
        cutoffs = (tuple(min(row.cutoff(o), bound) for o in owners) for row in rows.values())
        return EncodedExample(
            id=name,
            token_ids=array("i", [entry.token for entry in items]),
            labels=self._labels,
            positions=array("i", [entry.position for entry in items]),
            owners=array("i", [entry.owner for entry in items]),
            row_of=array("i", [numbers[id(entry.row)] for entry in items]), rows=tuple(cutoffs),
            num_prompt=self._num_prompt, main_owners=tuple(self._main_owners),
            fed_again=self._fed_again, decisions=array("i", sorted(self._decisions)),
        )  # fmt: skip


def decisions_of(main: Sequence[int], vocabulary: Vocabulary) -> list[bool]:
    """Return flags of the labels of main that decide the structure of an answer.

    A decision is a tag, a topic or the end-of-text. In an answer without blocks the first
    ``NUM_BOUNDARIES`` tokens at a boundary, where a promise could have stood, are decisions as
    well: the first of a line, and white space after punctuation other than a comma.

    Our own definition: the paper weighs all labels alike. The last flag is that of the end-of-text.
    """
    kinds = [lexeme and lexeme.kind for lexeme in map(vocabulary.id_to_lexeme, main)]
    if any(kinds):
        # APAR's forks have no topic, and no piece that would close it.
        before_topic = LexemeKind.PROMISE_OPEN if LexemeKind.PROMISE_CLOSE in kinds else None
        flags, newest = [], None
        for kind in kinds:
            newest = kind or newest
            flags.append(kind is not None or newest is before_topic is not None)
        return [*flags, True]
    texts = list(map(vocabulary.token_text, main))
    boundaries = compress(count(), map(_is_boundary, ["\n", *texts], texts))
    first = set(islice(boundaries, NUM_BOUNDARIES))
    return [*(index in first for index in range(len(main))), True]


def _is_boundary(before: str, text: str) -> bool:
    if before.rstrip(" ").endswith("\n"):
        return True
    mark = before[-1]
    is_mark = mark != "," and unicodedata.category(mark).startswith("P")
    return is_mark and text[:1].isspace()
