"""Requests for declared parts, and the values of their answers; any model will do, taught or not.

The fields of a JSON schema, or holes in given text. The prompt is
computed once; each part is a thread whose tokens are those of a sequential request for what it
sees: the prompt, its own lead, and leads and texts of the parts that it waits for (``after``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import chain, repeat, takewhile
from typing import TYPE_CHECKING, Any

from pasta_lm.engines import Prompt
from pasta_lm.engines.request import (
    Answer,
    Expansion,
    Finished,
    Request,
    SamplingParams,
    Start,
    StreamEvent,
    TextDelta,
    ThreadEnded,
)
from pasta_lm.engines.schemas import Schema, checked_schema
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.placement import num_common
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language.tags import bounded_topic
from pasta_lm.parts.fields import Part, fields_of
from pasta_lm.parts.form import SchemaForm
from pasta_lm.parts.values import Spans, confidence_of, spans_of

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

NAME = "parts"
MAX_REST = 16  # tokens of text that stands behind a finished part inside the same token
Texts = Iterable[tuple[str, bool]]  # of parts, each with whether it ended by itself


def check_fields(schema: Schema, after: Mapping[str, Sequence[str]]) -> None:
    """Refuse (``UsageError``) fields that cannot be decoded, before a model is loaded."""
    fields = _waiting(schema, after)
    _waits(fields)
    for part in fields:
        try:
            checked_schema(part.schema or {})
        except UsageError as exc:
            raise UsageError(f"field {part.name}: {exc.message}", hint=exc.hint) from exc


def fill_request(
    prompt: Prompt, schema: Schema, vocabulary: Vocabulary, params: SamplingParams, *,
    after: Mapping[str, Sequence[str]] | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Request:  # fmt: skip
    """Return the request that decodes the fields of a schema; ``max_tokens`` is of the values.

    The last message shows the form of a schema that has words; a text is continued as it stands.
    ``after`` has the names of fields that a field waits for; an object stands for all its fields.
    """
    parts = _waiting(schema, after or {})
    return parts_request(_shown(prompt, schema), parts, vocabulary, params, chat_template_kwargs)


def _shown(prompt: Prompt, schema: Schema) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    text, form = prompt[-1].get("content"), SchemaForm(schema)
    if not (isinstance(text, str) and form.has_words) or form.text in text:
        return prompt
    return [*prompt[:-1], {**prompt[-1], "content": f"{text}\n\nForm: {form.text}"}]


def _waiting(schema: Schema, after: Mapping[str, Sequence[str]]) -> list[Part]:
    fields, waits = fields_of(schema), dict[int, list[str]]()
    for name, others in after.items():
        for index in _named(name, fields):
            waits.setdefault(index, []).extend(others)
    return [replace(part, after=tuple(waits.get(i, ()))) for i, part in enumerate(fields)]


def _named(name: str, parts: Sequence[Part]) -> list[int]:
    indices = [i for i, part in enumerate(parts) if f"{part.name}.".startswith(f"{name}.")]
    if not indices:
        names = ", ".join(part.name for part in parts)
        raise UsageError(f"no part is named {name!r}", hint=f"one of {names}")
    return indices


def _waits(parts: Sequence[Part]) -> list[list[int]]:
    names = [part.name for part in parts]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two parts have the name {doubled[0]!r}", hint="give each its own")
    direct = [{i for name in part.after for i in _named(name, parts)} for part in parts]
    whole: dict[int, set[int]] = {}
    try:
        for index in TopologicalSorter(dict(enumerate(direct))).static_order():
            whole[index] = direct[index].union(*(whole[other] for other in direct[index]))
    except CycleError as exc:
        circle = " after ".join(names[index] for index in reversed(exc.args[1]))
        raise UsageError(f"parts wait for each other: {circle}") from exc
    return [sorted(whole[index]) for index in range(len(parts))]


Seen = list[tuple[str, int]]
"""What a part sees behind the prompt: given texts, each with the part whose text stands behind."""


def parts_request(
    prompt: Prompt, parts: Sequence[Part], vocabulary: Vocabulary, params: SamplingParams,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Request:  # fmt: skip
    """Return the request that decodes the holes of a text; ``max_tokens`` is of all together."""
    structures, waits = [part.structure() for part in parts], _waits(parts)
    ids = tuple(vocabulary.encode_prompt(prompt, chat_template_kwargs=chat_template_kwargs))
    all_seen = [_seen(parts, [*after, number]) for number, after in enumerate(waits)]
    starts = []
    for part, wanted, seen, after in zip(parts, structures, all_seen, waits, strict=True):
        lead = tuple(vocabulary.encode_text(seen[0][0]))
        others = [all_seen[other] for other in after]
        start = Start(  # without given text the last token of the prompt is fed again
            prefix=() if after else lead or ids[-1:],
            num_seen=None if after or lead else len(ids) - 1,
            topic=bounded_topic(part.name) or "part", structured_outputs=wanted,
            stop=(*params.stop, *part.stops), max_tokens=part.max_tokens, after=tuple(after),
            behind=partial(_behind, parts, seen, vocabulary) if after else None,
            max_fed=_max_fed(seen, others, vocabulary, params) if after else 0,
        )  # fmt: skip
        starts.append(start)
    return request_of(ids, starts, params)


def _seen(parts: Sequence[Part], indices: Sequence[int]) -> Seen:
    seen, path = Seen(), tuple[str, ...]()
    for index in indices:
        seen.append((parts[index].lead_behind(path), index))
        path = parts[index].path
    return seen


def _behind(
    parts: Sequence[Part], seen: Seen, vocabulary: Vocabulary, decoded: Sequence[Sequence[int]]
) -> list[int]:
    """Return the ids of what a part sees, with the tokens that the parts before it decoded.

    A token that goes on behind the end of its part is encoded anew, with the given text.
    """
    ids, rest = list[int](), ""
    for (lead, index), tokens in zip(seen, (*decoded, ()), strict=True):
        ids += vocabulary.encode_text(rest + lead)
        text = vocabulary.text(tokens)
        text = text[: parts[index].read(text)[1]]
        beginnings = ((n, vocabulary.text(tokens[:n])) for n in range(len(tokens), -1, -1))
        num_kept, kept = next(pair for pair in beginnings if text.startswith(pair[1]))
        ids += tokens[:num_kept]
        rest = text[len(kept) :]
    return ids


def _max_fed(
    seen: Seen, others: Sequence[Seen], vocabulary: Vocabulary, params: SamplingParams
) -> int:
    """Return the most tokens that a part feeds and no part before it has fed."""
    left = seen[max(num_common(seen, other) for other in others) :]
    num_given = sum(len(vocabulary.encode_text(text)) + MAX_REST for text, _ in left)
    return num_given + (params.max_tokens if len(left) > 1 else 0)


def request_of(
    prompt: Sequence[int], starts: Sequence[Start], params: SamplingParams
) -> Request:  # fmt: skip
    if len(starts) > params.max_blocks:
        raise UsageError(
            f"{len(starts)} parts, but at most {params.max_blocks} are decoded in one answer",
            hint="ask for fewer at a time, or raise max_blocks (limits.blocks of a server)",
        )
    return Request(
        prompt=prompt, params=params, positions=PositionStrategy.CONTINUE, forks=False,
        expansion=Expansion(starts=lambda _: starts, max_main_tokens=0, known=tuple(starts)),
        strategy=NAME, scores_forms=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartsAnswer:
    """The values or texts of all parts."""

    data: Any  # an object, or an instance of the pydantic model; of questions their answers
    text: str  # the object as JSON; given text with its holes filled; of questions their answers
    unfinished: tuple[str, ...]  # cut or unreadable: not in ``data``, or as far as they go
    answer: Answer  # all that was decoded, with its log-probabilities
    confidence: Mapping[str, float | None] = field(default_factory=dict)
    """The probability of each value among all that its form allows; None: it has none."""
    spans: Spans = field(default_factory=dict)  # where the texts of fields stand in the prompt

    @property
    def trace(self) -> Trace:
        return self.answer.trace


def filled(
    answer: Answer, schema: Schema, prompt: Prompt = "", vocabulary: Vocabulary | None = None
) -> PartsAnswer:
    """Return the values of fields, with their places in the prompt or in its last message.

    Their probabilities need the vocabulary.
    """
    parts = fields_of(schema)
    data, cut = object_of(parts, chain(texts_of(answer), repeat(("", False))))
    document = prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or "")
    known = {} if vocabulary is None else confidence_of(answer, parts, vocabulary)
    return PartsAnswer(data, as_json(data), cut, answer, known, spans_of(parts, data, document))


def object_of(parts: Sequence[Part], texts: Texts) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the values of parts by name or by their keys, and the names of unfinished ones."""
    data, unfinished = dict[str, Any](), list[str]()
    for part, (text, has_ended) in zip(parts, texts, strict=False):
        value, end = part.read(text)
        if part.schema is not None:  # digits could go on, unless something stands behind them
            has_ended = end is not None and (has_ended or bool(text[end:].strip()))
        unfinished += [] if has_ended else [part.name]
        if has_ended or part.schema is None:
            place, (*outer, last) = data, part.path or (part.name,)
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = value
    return data, tuple(unfinished)


def as_json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False).encode(errors="backslashreplace").decode()


def assembled(answer: Answer, parts: Sequence[Part], vocabulary: Vocabulary) -> PartsAnswer:
    texts = texts_of(answer)
    data, unfinished = object_of(parts, texts)
    pairs = zip(parts, texts, strict=True)
    whole = "".join(part.lead + text[: part.read(text)[1]] for part, (text, _) in pairs)
    return PartsAnswer(data, whole, unfinished, answer, confidence_of(answer, parts, vocabulary))


def texts_of(answer: Answer) -> list[tuple[str, bool]]:
    texts = [block.plain_text for block in answer.document.blocks]
    ends = [thread.finish_reason == FinishReason.STOP for thread in answer.trace.threads[1:]]
    return [*zip(texts, ends, strict=True)]


class FilledText:
    """One sample's object as JSON, its fields in their order, as far as it is certain.

    A field comes when it has ended: one that a limit cuts is left out, and the text stays valid.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema, self._fields = schema, fields_of(schema)
        self._texts: dict[int, str] = defaultdict(str)  # by thread
        self._stopped: dict[int, bool] = {}  # whether an ended thread stopped, and was not cut
        self._sent = ""

    def feed(self, events: Sequence[StreamEvent]) -> str:
        """Take all events of the sample in one step and return the text that is now certain."""
        for event in events:
            match event:
                case Finished(answer=answer):
                    return filled(answer, self._schema).text[len(self._sent) :]
                case TextDelta(thread=thread, text=text):
                    self._texts[thread] += text
                case ThreadEnded(thread=thread, reason=reason):
                    self._stopped[thread] = reason is FinishReason.STOP
        ended = takewhile(lambda thread: thread in self._stopped, range(1, len(self._fields) + 1))
        texts = [(self._texts[thread], self._stopped[thread]) for thread in ended]
        known = as_json(object_of(self._fields, texts)[0]).rstrip("}")
        text, self._sent = known[len(self._sent) :], known
        return text
