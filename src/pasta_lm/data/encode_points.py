"""Encode a prompt and its answer by points, to finetune a model for Skeleton-of-Thought.

Main writes the skeleton after the prompt; every point sees both and its own request, and writes
its part of the answer. For an answer of a single point the skeleton is empty: main ends at once,
and the answer starts again after the prompt. Positions and visibility are those of the engine.

Source: Ning et al. 2024, "Skeleton-of-Thought", arXiv 2307.15337; no finetuned form is published.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from pasta_lm.data.encode import (
    NO_LABEL,
    EncodedExample,
    checked_prompt,
    example_of,
    plain_example,
)
from pasta_lm.engines.annotated import Record
from pasta_lm.engines.request import Start
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.errors import InputError
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.placement import Placer
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.thread import Thread
from pasta_lm.language.document import Block
from pasta_lm.language.parser import Form, Parser
from pasta_lm.strategies.skeleton_of_thought import FINETUNED, Stages, blocks_of, skeleton_of


def encode_points(
    record: Record,
    vocabulary: Vocabulary,
    eos_id: int,
    strategy: PositionStrategy = PositionStrategy.CONTINUE,
) -> EncodedExample:
    """Encode one record whose blocks are points; a record without blocks is encoded as plain text.

    Args:
        record: A prompt and its answer: blocks with no text between them, or no block.
        vocabulary: The model's; it needs no tag pieces.
        eos_id: The end-of-text, which ends the skeleton, each point and the answer.
        strategy: Any; without promises all strategies give the same positions.

    Raises:
        InputError: the prompt has no tokens, or the answer has text outside its points.
        VocabularyError: the tokenizer changes text.
    """
    prompt = checked_prompt(record, vocabulary)
    if not record.document.blocks:
        answer = vocabulary.encode_text(record.document.plain_text)
        return plain_example(record.id, prompt, answer, eos_id)
    try:
        blocks = blocks_of(record.document)
    except ValueError as exc:
        raise InputError(f"record {record.id}: {exc}") from exc
    user = [{"role": "user", "content": record.prompt}]
    stages = Stages.of(user, vocabulary, FINETUNED)
    return _Writer(stages, vocabulary, eos_id, strategy).write(record.id, blocks)


class _Writer:
    """Feeds the skeleton, then the points."""

    def __init__(
        self, stages: Stages, vocabulary: Vocabulary, eos_id: int, strategy: PositionStrategy
    ) -> None:
        self._stages = stages
        self._encode = vocabulary.encode_text
        self._eos_id = eos_id
        self._entries = Entries.of_prompt(stages.prompt)
        self._main = self._thread(None)
        self._placer = Placer(self._entries, strategy, self._main)
        self._labels = array("i", [NO_LABEL] * len(stages.prompt))

    def write(self, name: str, blocks: Sequence[Block]) -> EncodedExample:
        skeleton = skeleton_of(blocks)
        starts = self._stages.starts(skeleton)
        if len(starts) != len(blocks):
            raise InputError(f"record {name}: a point without a topic is in no skeleton")
        self._decode(self._main, self._encode(skeleton))
        for block, start in zip(blocks, starts, strict=True):
            self._begin(start, self._encode(block.plain_text))
        return example_of(name, self._entries, self._labels, len(self._stages.prompt))

    def _begin(self, start: Start, text: Sequence[int]) -> None:
        thread = self._thread(self._main)
        self._placer.start(thread, start.num_seen)
        for token in start.prefix:
            self._placer.feed(thread, token)
            self._labels.append(NO_LABEL)
        self._decode(thread, text)

    def _decode(self, thread: Thread, tokens: Sequence[int]) -> None:
        """Feed decoded tokens; each predicts the next one, and the last one the end-of-text."""
        for token in tokens:
            self._labels[-1] = token
            self._placer.feed(thread, token)
            self._labels.append(NO_LABEL)
        self._labels[-1] = self._eos_id

    def _thread(self, parent: Thread | None) -> Thread:
        owner = self._entries.new_owner()
        return Thread(id=owner - 1, owner=owner, parser=Parser(Form.BLOCK), parent=parent)
