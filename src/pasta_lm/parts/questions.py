"""Questions about one document: answered in words, or by the likeliest of a closed set.

A question is a thread that sees the document and no other. Choices are scored: by the first token
of that thread, and of a further one behind each beginning that several choices share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, prod
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.engines import Prompt
from pasta_lm.engines.request import Answer, Request, SamplingParams, Start, StructuredOutputs
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.placement import num_common
from pasta_lm.language.tags import bounded_topic
from pasta_lm.parts.declared import PartsAnswer, request_of, texts_of
from pasta_lm.parts.values import scores_of

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

CHOOSE = "Answer with one of: {}."
MAX_CHOICES = 64
Ids = tuple[int, ...]
Scored = Mapping[Ids, StructuredOutputs]  # what the choices behind each shared beginning go on as


def check_choices(choices: Sequence[str], params: SamplingParams) -> None:
    """Refuse (``UsageError``) what is no closed set, and settings that scoring does not read."""
    if isinstance(choices, str) or not all(text and isinstance(text, str) for text in choices):
        raise UsageError(f"choices are texts, none empty, not {choices!r}"[:200])
    if not 2 <= len(choices) <= MAX_CHOICES:
        raise UsageError(f"{len(choices)} choices, but 2 to {MAX_CHOICES} are scored")
    if doubled := [text for text, number in Counter(choices).items() if number > 1]:
        raise UsageError(f"the choice {doubled[0]!r} stands twice")
    if params.temperature or params.penalises or params.logit_bias or params.stop:
        reason = "temperature, penalties, biases and stops play no part where choices are scored"
        raise UsageError(reason, hint="leave them out, or ask without choices")


def _beginnings(members: Sequence[Ids]) -> list[Ids]:
    """Return the beginnings that choices share, the empty one among them."""
    whole = Counter(member[:size] for member in members for size in range(len(member) + 1))
    return sorted(beginning for beginning, number in whole.items() if number > 1)


def ask_request(
    document: Prompt, questions: Sequence[str], vocabulary: Vocabulary, params: SamplingParams,
    choices: Sequence[str] = (), *, decodes: bool = False,
) -> Request:  # fmt: skip
    """Return the request that answers questions about a document.

    ``choices``, which the prompt names behind the document, are scored; or decoded (``decodes``),
    each answer held to them, where no logits can be read.
    """
    if not questions:
        raise UsageError("there are no questions")
    if not isinstance(document, str):
        raise RequestError("questions are about a text, not about messages")
    if choices:
        document = f"{document}\n\n{CHOOSE.format(', '.join(choices))}"
    texts = [f"{document}\n\n{question}" for question in questions]
    prompts = [
        vocabulary.encode_prompt([{"role": "user", "content": text}])
        if vocabulary.has_chat_template
        else vocabulary.encode_prompt(f"{text}\n\n")
        for text in texts
    ]
    num_shared = min(num_common(ids[:-1], prompts[0][:-1]) for ids in prompts)  # each feeds a token
    if num_shared == 0:
        raise UsageError("the document is empty")
    scored = {} if decodes or not choices else _scored(choices, vocabulary)
    if scored:
        params = replace(params, max_tokens=1 + len(questions) * len(scored))
    form = StructuredOutputs(choice=tuple(choices)) if choices else None
    starts = [
        Start(
            prefix=(*lead[num_shared:], *beginning), topic=bounded_topic(question) or "?",
            stop=params.stop, structured_outputs=scored.get(beginning, form),
            is_scored=bool(scored),
        )
        for question, lead in zip(questions, prompts, strict=True)
        for beginning in scored or [()]
    ]  # fmt: skip
    return request_of(prompts[0][:num_shared], starts, params)


def _scored(choices: Sequence[str], vocabulary: Vocabulary) -> Scored:
    members = [tuple(vocabulary.encode_text(text)) for text in choices]
    ends = {b: [m[len(b) :] for m in members if m[: len(b)] == b] for b in _beginnings(members)}
    if any("\ufffd" in vocabulary.text(beginning) for beginning in ends):
        reason = "choices whose first characters share bytes cannot be scored with this model"
        raise UsageError(reason, hint="name them with other words")
    return {
        beginning: StructuredOutputs(choice=tuple(map(vocabulary.text, rests)))
        for beginning, rests in ends.items()
    }


class QuestionReply(NamedTuple):
    """The answer to one question."""

    text: str
    confidence: float | None = None  # the probability of the choice
    distribution: Mapping[str, float] = {}  # over all choices


@dataclass(frozen=True, slots=True)
class Replies(PartsAnswer):
    """The answers to questions; by index each with its probability where choices were scored."""

    replies: tuple[QuestionReply, ...] = ()

    def __len__(self) -> int:
        return len(self.replies)

    def __getitem__(self, index: int) -> QuestionReply:
        return self.replies[index]


def answered(
    answer: Answer, questions: Sequence[str], vocabulary: Vocabulary, choices: Sequence[str] = (),
    *, decodes: bool = False,
) -> Replies:  # fmt: skip
    """Read the texts, or the likeliest choices."""
    if choices and not decodes:
        distributions = _distributions(answer, choices, vocabulary)
        replies = [
            QuestionReply(max(d, key=d.__getitem__), max(d.values()), d) for d in distributions
        ]
        cut: tuple[str, ...] = ()
    else:
        pairs = texts_of(answer)
        replies = [QuestionReply(text.strip()) for text, _ in pairs]
        cut = tuple(name for name, (_, ended) in zip(questions, pairs, strict=True) if not ended)
    texts = [reply.text for reply in replies]
    known = {name: reply.confidence for name, reply in zip(questions, replies, strict=True)}
    return Replies(texts, "\n\n".join(texts), cut, answer, known, replies=tuple(replies))


def _distributions(
    answer: Answer, choices: Sequence[str], vocabulary: Vocabulary
) -> Iterator[dict[str, float]]:
    members = [tuple(vocabulary.encode_text(text)) for text in choices]
    beginnings, scores = _beginnings(members), scores_of(answer)
    firsts = [{token: exp(p) for token, p in scores[thread][0].top} for thread in sorted(scores)]
    for index in range(0, len(firsts), len(beginnings)):
        tops = dict(zip(beginnings, firsts[index:], strict=False))
        shares = [_share(member, members, tops, vocabulary) for member in members]
        yield {
            text: share / (sum(shares) or 1) for text, share in zip(choices, shares, strict=True)
        }


def _share(
    member: Ids, members: Sequence[Ids], tops: Mapping[Ids, Mapping[int, float]],
    vocabulary: Vocabulary,
) -> float:  # fmt: skip
    """Return the probability of a choice: at each shared beginning its share of what goes on."""

    def share(beginning: Ids) -> float:
        size, top = len(beginning), tops[beginning]
        ways = {m[size : size + 1] for m in members if m[:size] == beginning}
        end = sum(p for token, p in top.items() if not vocabulary.token_bytes(token))
        likely = {way: top.get(way[0], 0.0) if way else end for way in ways}
        return likely[member[size : size + 1]] / (sum(likely.values()) or 1)

    return prod(share(member[:n]) for n in range(len(member) + 1) if member[:n] in tops)
