"""Answer as Skeleton-of-Thought does: decode a skeleton, then expand all of its points at once.

The prefix of all points, prompt and skeleton, is computed once; what asks for a point is fed in
one pass. A prompt whose skeleton has fewer than two points is answered sequentially after all, and
a router can tell beforehand which prompts have no skeleton. The skeleton is no part of the answer.

Source: Ning et al. 2024, "Skeleton-of-Thought", arXiv 2307.15337, sections 2 and 4 (router).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.engines.encoded_document import EncodedDocument
from pasta_lm.engines.request import Expansion, Request, SamplingParams, Start
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Block, Document
from pasta_lm.language.tags import bounded_topic
from pasta_lm.strategies import sequential
from pasta_lm.strategies.skeleton_prompts import FINETUNED, Wording

if TYPE_CHECKING:
    from pasta_lm.engines.vocabulary import Vocabulary

NAME, ROUTED = "sot", "sot-router"
LEAST_POINTS = 2
"""With fewer there is nothing to expand at once."""
MAX_SKELETON_TOKENS = 256
"""Where a skeleton ends at the latest: ten points of five words have about a hundred."""

Prompt = str | Sequence[Mapping[str, str]]
Router = Callable[[str], bool]
"""Tells whether the answer to a prompt should begin with a skeleton."""

_POINT = re.compile(r"^[ \t]*(\d+)[.)][ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


class Point(NamedTuple):
    """One point of a skeleton."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Stages:
    """Both stages of one prompt as token ids.

    Attributes:
        prompt: What a skeleton is decoded after.
        fallback: How the sequential answer begins.
    """

    prompt: tuple[int, ...]
    fallback: Start
    _vocabulary: Vocabulary
    _wording: Wording

    @classmethod
    def of(cls, prompt: Prompt, vocabulary: Vocabulary, wording: Wording) -> Stages:
        """Return the stages of a prompt.

        Args:
            prompt: What the user says; of messages, the last one is the question.
            vocabulary: The model's.
            wording: What it reads around the prompt.
        """
        alone = vocabulary.encode_prompt(prompt)
        asked = vocabulary.encode_prompt(_asked(prompt, wording))
        whole = (*asked, *vocabulary.encode_text(wording.lead))
        pairs = zip(alone[:-1], whole, strict=False)  # one is fed anew: its logits are wanted
        num_shared = next((i for i, (a, b) in enumerate(pairs) if a != b), len(alone) - 1)
        num_shared = min(num_shared, len(whole))
        fallback = Start(prefix=tuple(alone[num_shared:]), num_seen=num_shared)
        return cls(whole, fallback, vocabulary, wording)

    def starts(self, skeleton: str) -> list[Start]:
        """Return how each point begins; of no skeleton, how the sequential answer does."""
        points = read_points(self._wording.lead + skeleton)
        if len(points) < LEAST_POINTS:
            return [self.fallback]
        return [self.start(point, is_first=index == 0) for index, point in enumerate(points)]

    def start(self, point: Point, *, is_first: bool) -> Start:
        """Return how a point begins."""
        vocabulary, wording = self._vocabulary, self._wording
        asked = wording.point.format(number=point.number, point=point.text)
        opening = wording.opening.format(number=point.number, point=point.text)
        encode = vocabulary.encode_reply if wording.is_turn else vocabulary.encode_text
        prefix = (*encode(asked), *vocabulary.encode_text(opening))
        text = opening if is_first or not opening else f"\n{opening}"
        return Start(prefix=prefix, topic=bounded_topic(point.text), text=text)


def request(
    prompt: Prompt,
    vocabulary: Vocabulary,
    params: SamplingParams,
    *,
    wording: Wording = FINETUNED,
    router: Router | None = None,
) -> Request:
    """Return what to ask of an engine.

    Args:
        prompt: What the user says: a text, or messages.
        vocabulary: The model's.
        params: How to sample. ``max_tokens`` counts the skeleton and what points are given.
        wording: What the model reads around the prompt.
        router: Which prompts get a skeleton; None: all.
    """
    if router is not None and not router(_question(prompt)):
        alone = sequential.request(vocabulary.encode_prompt(prompt), params)
        return replace(alone, strategy=NAME)
    stages = Stages.of(prompt, vocabulary, wording)
    return Request(
        prompt=stages.prompt,
        params=params,
        positions=PositionStrategy.CONTINUE,
        forks=False,
        expansion=Expansion(starts=stages.starts, max_main_tokens=MAX_SKELETON_TOKENS),
        strategy=NAME,
    )


def replay(
    prompt: Prompt,
    document: Document,
    vocabulary: Vocabulary,
    params: SamplingParams,
    *,
    wording: Wording = FINETUNED,
) -> Request:
    """Return the request that decodes a given answer, each of its blocks a point.

    Raises:
        ValueError: something of the answer stands outside its blocks.
    """
    blocks = blocks_of(document)
    forced = EncodedDocument(
        main=tuple(vocabulary.encode_text(skeleton_of(blocks))),
        blocks=tuple(tuple(vocabulary.encode_text(block.plain_text)) for block in blocks),
    )
    asked = request(prompt, vocabulary, params, wording=wording)
    return replace(asked, forced=forced)


def read_points(skeleton: str) -> list[Point]:
    """Return the points of a skeleton: its numbered lines; of one number the first."""
    points: dict[int, Point] = {}
    for number, text in _POINT.findall(skeleton):
        points.setdefault(int(number), Point(int(number), text))
    return list(points.values())


def blocks_of(document: Document) -> tuple[Block, ...]:
    """Return the points of an answer as a model is to write them: blocks, and nothing else.

    Raises:
        ValueError: something of the answer stands outside its blocks.
    """
    blocks = tuple(item for item in document.items if isinstance(item, Block))
    if len(blocks) < len(document.items):
        raise ValueError("an answer by points has text or syncs outside its blocks")
    return blocks


def skeleton_of(blocks: Sequence[Block]) -> str:
    """Return the skeleton of an answer's points; a single point has none."""
    if len(blocks) < LEAST_POINTS:
        return ""
    return "\n".join(f"{number}. {block.topic}" for number, block in enumerate(blocks, start=1))


def _question(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def _asked(prompt: Prompt, wording: Wording) -> Prompt:
    question = wording.question.format(question=_question(prompt))
    if isinstance(prompt, str):
        return question
    return [*prompt[:-1], {**prompt[-1], "content": question}]
