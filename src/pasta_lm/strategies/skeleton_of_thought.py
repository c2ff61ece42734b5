"""The Skeleton-of-Thought strategy: decode a skeleton, then expand all of its points in parallel.

Prompt and skeleton are computed once and shared by all points; the prompt of each point is fed in
one pass. If a skeleton has fewer than two points, the prompt is answered sequentially. The
skeleton is not part of the answer.

Our prompts ask for the same as the paper's, but the prompt of a point follows the skeleton, whose
cache entries it sees, instead of repeating question and skeleton.

Source: Ning et al. 2024, "Skeleton-of-Thought", arXiv 2307.15337, section 2, prompts 1 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Expansion, Request, SamplingParams, Start
from pasta_lm.interpreter.placement import num_common
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Block, Document
from pasta_lm.language.tags import bounded_topic
from pasta_lm.strategies import Prompt

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

NAME = "sot"
MIN_POINTS = 2  # a single point would decode in one thread, after a skeleton that saves nothing
MAX_SKELETON_TOKENS = 256  # skeletons are cut here; ten points of five words have about 100 tokens
_POINT = re.compile(r"^[ \t]*(\d+)[.)][ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Wording:
    """The text around a prompt, a skeleton and its points."""

    question: str  # the user's message, with the prompt as {question}
    lead: str  # the beginning of the skeleton: given, not decoded
    point: str  # the prompt of one point, with its {number} and {point}
    is_turn: bool = False  # whether the prompt of a point is a message of the user
    opening: str = ""  # the beginning of a point's text: given, and part of the answer


# For a model that was trained on skeletons and their points.
FINETUNED = Wording("{question}", lead="Skeleton:\n", point="\nPoint {number}: {point}\n")

# For an instruction-tuned model: the paper's two-shot prompt.
PROMPTED = Wording(
    question="""\
You are an organizer who gives only the skeleton of an answer, not its full content. Give the \
skeleton as a list of points, numbered 1., 2., 3. and so on. No point is a full sentence: each is \
very short, 3 to 5 words. Most skeletons have 3 to 10 points.

Question:
What are the typical types of Chinese dishes?
Skeleton:
1. Dumplings.
2. Noodles.
3. Dim sum.
4. Hot pot.
5. Fried rice.

Question:
What can one person do to reduce carbon emissions?
Skeleton:
1. Save energy at home.
2. Travel by train.
3. Eat less meat.
4. Buy used things.

Now give the skeleton of the answer to this question.
{question}
Skeleton:""",
    lead="1.",  # given, as in the paper: the model begins with a list, not with a remark about it
    point="""\
Now write out one point of your skeleton and no other: point {number}. Continue it in one or two \
short sentences, and do not go on to the next point.""",
    is_turn=True,
    opening="{number}. {point}:",  # given; behind a full stop of the point many models end
)


class Stages:
    """Both stages of one prompt as token ids."""

    def __init__(
        self, prompt: Prompt, vocabulary: Vocabulary, wording: Wording,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        self._vocabulary, self._wording = vocabulary, wording
        encode = partial(vocabulary.encode_prompt, chat_template_kwargs=chat_template_kwargs)
        alone, question = encode(prompt), prompt
        if isinstance(prompt, str):
            question = wording.question.format(question=prompt)
        else:  # the last of several messages is the question
            content = wording.question.format(question=prompt[-1]["content"])
            question = [*prompt[:-1], {**prompt[-1], "content": content}]
        self.prompt = (*encode(question), *vocabulary.encode_text(wording.lead))
        """Precedes the skeleton."""
        # The fallback reuses the cache of the tokens with which both prompts begin, except for its
        # last token, which is fed again: its logits choose the first token of the answer.
        num_shared = num_common(alone[:-1], self.prompt)
        self.fallback = Start(prefix=tuple(alone[num_shared:]), num_seen=num_shared)
        """Begins the sequential answer, if there are too few points."""

    def starts(self, skeleton: str) -> list[Start]:
        points = read_points(self._wording.lead + skeleton)  # the lead may hold the first number
        if len(points) < MIN_POINTS:
            return [self.fallback]
        return [self._start(*point, is_first=index == 0) for index, point in enumerate(points)]

    def _start(self, number: int, point: str, *, is_first: bool) -> Start:
        vocabulary, wording = self._vocabulary, self._wording
        prompt = wording.point.format(number=number, point=point)
        opening = wording.opening.format(number=number, point=point.rstrip(".:"))
        encode = vocabulary.encode_reply if wording.is_turn else vocabulary.encode_text
        prefix = (*encode(prompt), *vocabulary.encode_text(opening))
        # A given point begins a line; a trained model decodes its line breaks itself.
        text = opening if is_first or not opening else f"\n{opening}"
        return Start(prefix=prefix, topic=bounded_topic(point), text=text)


def request(
    prompt: Prompt, vocabulary: Vocabulary, params: SamplingParams,
    chat_template_kwargs: Mapping[str, object] | None = None, *, wording: Wording = FINETUNED,
) -> Request:  # fmt: skip
    stages = Stages(prompt, vocabulary, wording, chat_template_kwargs)
    expansion = Expansion(starts=stages.starts, max_main_tokens=MAX_SKELETON_TOKENS)
    # Points begin after main has ended, by the expansion: there is no gap, and tags are masked.
    return Request(
        prompt=stages.prompt, params=params, positions=PositionStrategy.CONTINUE, forks=False,
        expansion=expansion, strategy=NAME,
    )  # fmt: skip


def read_points(skeleton: str) -> list[tuple[int, str]]:
    """Return the numbered lines of a skeleton; of lines with the same number the first."""
    points: dict[int, str] = {}
    for number, text in _POINT.findall(skeleton):
        # A model may repeat its list until it is cut; each point is to be expanded once.
        points.setdefault(int(number), text)
    return list(points.items())


def blocks_of(document: Document) -> tuple[Block, ...]:
    """Return the blocks of an answer by points; a ``ValueError`` if anything stands outside."""
    blocks = tuple(item for item in document.items if isinstance(item, Block))
    if len(blocks) < len(document.items):
        raise ValueError("an answer by points has text or syncs outside its blocks")
    return blocks


def skeleton_of(blocks: Sequence[Block]) -> str:
    if len(blocks) < MIN_POINTS:
        return ""  # ends the skeleton at once, and the sequential answer begins
    return "\n".join(f"{number}. {block.topic}" for number, block in enumerate(blocks, start=1))
