"""Questions about one document: answered in words, or by the likeliest of a closed set.

Each question is a thread that sees the document and nothing of the others. Choices are scored, all
in one pass, so that an answer comes with a distribution over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from pasta_lm.engines.choices import Choices
from pasta_lm.engines.request import Answer, Request, SamplingParams, Start, StructuredOutputs
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.placement import num_common
from pasta_lm.language.tags import bounded_topic
from pasta_lm.strategies.parts import PartsAnswer, request_of, texts_of

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

CHOOSE = "Answer with one of: {}."
UNCHANGED = {"max_blocks", "max_threads", "max_tokens", "seed"}
"""Settings that a request may have when choices are scored: no other plays a part."""


def check_choices(choices: Sequence[str], params: SamplingParams) -> None:
    """Refuse (``UsageError``) what is no closed set, and settings that scoring does not read."""
    if isinstance(choices, str) or not all(choices):
        raise UsageError(f"choices are texts, none empty, not {choices!r}"[:200])
    if doubled := [text for text in choices if [*choices].count(text) > 1]:
        raise UsageError(f"the choice {doubled[0]!r} stands twice")
    plain, names = SamplingParams(), {setting.name for setting in fields(params)} - UNCHANGED
    if changed := sorted(name for name in names if getattr(params, name) != getattr(plain, name)):
        reason = f"{changed[0]} plays no part where choices are scored"
        raise UsageError(reason, hint="leave it out, or ask without choices")


def ask_request(
    document: str, questions: Sequence[str], vocabulary: Vocabulary, params: SamplingParams,
    choices: Sequence[str] = (), *, decodes: bool = False,
) -> Request:  # fmt: skip
    """Return the request that answers questions about a document.

    ``choices``, which the prompt names behind the document, are scored in one pass for all
    questions; or decoded, each held to them.
    """
    if not questions:
        raise UsageError("there are no questions")
    members, form = tuple(tuple(vocabulary.encode_text(text)) for text in choices), None
    if choices:
        document = f"{document}\n\n{CHOOSE.format(', '.join(choices))}"
        form = StructuredOutputs(choice=tuple(choices)) if decodes else None
    if members and not decodes:
        num_tokens = 1 + len(questions) * max(map(len, members))
        params = replace(params, temperature=0.0, stop=(), max_tokens=num_tokens)
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
    leads, topics = (ids[num_shared:] for ids in prompts), map(bounded_topic, questions)
    starts = [
        Start(
            prefix=tuple(lead),
            topic=topic or "?",
            stop=params.stop,
            structured_outputs=form,
            choices=Choices(members) if members and not decodes else None,
        )  # fmt: skip
        for lead, topic in zip(leads, topics, strict=True)
    ]
    return request_of(prompts[0][:num_shared], starts, params)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one question."""

    text: str
    confidence: float | None = None  # its probability, or its share among choices
    distribution: Mapping[str, float] = field(default_factory=dict)  # of scored choices


@dataclass(frozen=True, slots=True)
class Replies(PartsAnswer):
    """The answers to questions; by index each with its confidence."""

    replies: tuple[Reply, ...] = ()

    def __len__(self) -> int:
        return len(self.replies)

    def __iter__(self) -> Iterator[Reply]:
        return iter(self.replies)

    def __getitem__(self, index: int) -> Reply:
        return self.replies[index]


def answered(answer: Answer, questions: Sequence[str], choices: Sequence[str] = ()) -> Replies:
    replies, cut = list[Reply](), list[str]()
    threads = enumerate(zip(questions, texts_of(answer), strict=True), start=1)
    for number, (question, (text, has_ended)) in threads:
        cut += [] if has_ended else [question]
        shares = zip(choices, answer.shares.get(number, ()), strict=False)
        confidence = answer.confidences.get(number) if has_ended else None
        replies.append(Reply(text.strip(), confidence, dict(shares)))
    texts = [reply.text for reply in replies]
    known = zip(questions, (reply.confidence for reply in replies), strict=True)
    return Replies(texts, "\n\n".join(texts), tuple(cut), answer, dict(known), tuple(replies))
