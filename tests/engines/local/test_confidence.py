"""How likely the values of parts and scored choices are: the shares of plain causal passes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, fsum, log, log1p, prod
from typing import Any

import pytest
import torch
from torch import Tensor

from pasta_lm.engines.choices import Choices
from pasta_lm.engines.grammars import Grammars
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Answer, SamplingParams, StructuredOutputs
from pasta_lm.errors import UsageError
from pasta_lm.strategies import parts
from pasta_lm.strategies.fields import fields_of
from pasta_lm.strategies.model import Pasta
from pasta_lm.strategies.questions import CHOOSE, Replies, answered, ask_request
from tests.architectures import ARCHITECTURES, loaded, own_attention
from tests.engines.local.test_grammars import BOOKING, model, tokens_of
from tests.engines.local.test_parts import DRAWN, HOLES, PROMPT, SEEN
from tests.engines.rows.hybrids import hybrid

pytest.importorskip("llguidance")

DOCUMENT, QUESTIONS = "Ada came to London.", ["Who?", "Is it far?", "Why did she come?"]
CHOICES = ("yes", "no", "not", "nothing at all", "unclear", "un")  # some begin others
KINDS = {
    "n": {"type": "integer"}, "x": {"type": "number"}, "s": {"type": "string", "maxLength": 3},
    "b": {"type": "boolean"}, "e": {"enum": ["a", "ab", 1, 12, None]},
    "l": {"type": "array", "items": {"enum": ["x", 7]}, "maxItems": 2},
}  # fmt: skip


def plain(whole: LoadedModel, ids: Sequence[int]) -> Tensor:
    """Return the log-probabilities behind each token of one causal pass, float64 [N, V]."""
    with own_attention(whole), torch.inference_mode():
        logits: Tensor = whole.model(input_ids=torch.tensor([[*ids]])).logits[0]
    return logits.double().log_softmax(dim=-1)


def plain_shares(whole: LoadedModel, question: str, choices: Sequence[str]) -> list[float]:
    content = f"{DOCUMENT}\n\n{CHOOSE.format(', '.join(choices))}\n\n{question}"
    vocabulary, scores = whole.vocabulary, list[float]()
    turns = [{"role": "user", "content": content}]
    prompt = vocabulary.encode_prompt(turns if vocabulary.has_chat_template else f"{content}\n\n")
    members = [vocabulary.encode_text(text) for text in choices]
    for member in members:
        logprobs = plain(whole, [*prompt, *member])[len(prompt) - 1 :]
        score = fsum(float(logprobs[i, token]) for i, token in enumerate(member))
        size = len(member)
        others = {m[size] for m in members if len(m) > size and m[:size] == member}
        scores.append(score + log1p(-fsum(exp(float(logprobs[size, token])) for token in others)))
    weights = [exp(score - max(scores)) for score in scores]
    return [weight / fsum(weights) for weight in weights]


def assert_scored(replies: Replies, whole: LoadedModel, tolerance: float = 1e-4) -> None:
    for reply, question in zip(replies, QUESTIONS, strict=True):
        expected = plain_shares(whole, question, CHOICES)
        assert [*reply.distribution] == [*CHOICES]
        assert [*reply.distribution.values()] == pytest.approx(expected, abs=tolerance)
        assert reply.confidence == max(reply.distribution.values())
        assert reply.distribution[reply.text] == reply.confidence


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_choices_have_the_shares_of_plain_causal_passes_in_one_step(name: str, paged: bool) -> None:
    replies = model(name, paged=paged).ask(DOCUMENT, QUESTIONS, choices=CHOICES)
    assert_scored(replies, loaded(name))
    assert replies.trace.forward_passes == replies.trace.critical_path == 1
    assert (replies.data, replies.unfinished) == ([reply.text for reply in replies], ())
    assert replies.confidence == {q: r.confidence for q, r in zip(QUESTIONS, replies, strict=True)}
    assert len(replies) == len(QUESTIONS)
    assert replies[0].text == replies.data[0]


@pytest.mark.parametrize("name", ["qwen3_next", "jamba", "mixtral", "deepseek_v3"])
def test_choices_of_threads_as_rows_have_the_same_shares(name: str) -> None:
    whole = hybrid(name)
    replies = Pasta(TorchEngine(whole, pool_tokens=4096)).ask(DOCUMENT, QUESTIONS, choices=CHOICES)
    for reply, question in zip(replies, QUESTIONS, strict=True):
        content = f"{DOCUMENT}\n\n{CHOOSE.format(', '.join(CHOICES))}\n\n{question}"
        assert content
        assert sum(reply.distribution.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "settings",
    [{"max_rows": 2}, {"shares_prefixes": True}, {"pool_tokens": 384}, {"captures": False}],
)
def test_neither_company_nor_prefixes_nor_a_small_pool_change_a_share(
    settings: dict[str, Any],
) -> None:
    whole = loaded("gemma2")
    engine = TorchEngine(whole, **{"pool_tokens": 4096, **settings})
    params = SamplingParams(max_threads=2 if "captures" in settings else None)
    asked = [
        ask_request(DOCUMENT, QUESTIONS, whole.vocabulary, params, CHOICES),
        parts.parts_request(PROMPT, HOLES, whole.vocabulary, DRAWN),
        ask_request(DOCUMENT, QUESTIONS, whole.vocabulary, params, CHOICES),
    ]
    for answers in (engine.generate(asked), engine.generate(asked[:1] * 2)):
        for answer in (answers[0][0], answers[-1][0]):
            assert_scored(answered(answer, QUESTIONS, CHOICES), whole)
    (alone,) = engine.generate(asked[1:2])[0]
    assert alone.confidences == pytest.approx(engine.generate(asked)[1][0].confidences, abs=1e-5)


def test_greedy_decoding_under_the_mask_and_scoring_are_two_answers_both_as_told() -> None:
    """A beginning that is likely wins step by step; scoring weighs whole members."""
    whole, engine = loaded("qwen2"), model("qwen2").engine
    choices = ["ab c", "ab d", "ab e", "ba"]
    questions = [f"Question {number}?" for number in range(24)]
    both = []
    for decodes in (False, True):
        request = ask_request(
            DOCUMENT, questions, whole.vocabulary, SamplingParams(), choices, decodes=decodes
        )
        ((answer,),) = engine.generate([request])
        both.append(answered(answer, questions, choices))
    scored, decoded = both
    assert scored.data != decoded.data
    grammars = Grammars(whole.vocabulary, whole.vocab_size, [*whole.eos_ids])
    for number, question in enumerate(questions, start=1):
        shares = plain_shares(whole, question, choices)
        assert scored[number - 1].text == choices[shares.index(max(shares))]
        ids = tokens_of(decoded.answer, number)
        content = f"{DOCUMENT}\n\n{CHOOSE.format(', '.join(choices))}\n\n{question}\n\n"
        seen = whole.vocabulary.encode_prompt(content)
        logprobs = plain(whole, [*seen, *ids])[len(seen) - 1 :]
        matcher = grammars.matcher(StructuredOutputs(choice=tuple(choices)))
        for step, token in enumerate(ids):
            masked = logprobs[step].masked_fill(~matcher.allowed(), float("-inf"))
            assert int(masked.argmax()) == token
            matcher.consume(token)


def plain_confidence(
    whole: LoadedModel, seen: Sequence[int], ids: Sequence[int], form: StructuredOutputs | None
) -> float:
    """Return the product over the tokens, those that end the same value counted together."""
    vocabulary, probability = whole.vocabulary, 1.0
    logprobs = plain(whole, [*seen, *ids])[len(seen) - 1 :]
    tags = [*vocabulary.piece_ids.values()]
    grammars = Grammars(vocabulary, whole.vocab_size, [*whole.eos_ids])
    matcher = None if form is None else grammars.matcher(form)
    for step, token in enumerate(ids):
        allowed = torch.zeros(whole.vocab_size, dtype=torch.bool)
        allowed[: vocabulary.num_tokens] = True
        allowed[tags] = False
        if matcher is not None:
            allowed = matcher.allowed()
            matcher.consume(token)
        shares = logprobs[step].masked_fill(~allowed, float("-inf")).softmax(dim=-1)
        ways = [token]
        if form is not None:
            end = value_of(whole, ids[: step + 1])
            others = (
                (t, value_of(whole, [*ids[:step], t])) for t in allowed.nonzero()[:, 0].tolist()
            )
            ways = [token] if end is None else [t for t, other in others if other == end]
        probability *= fsum(float(shares[way]) for way in ways)
    return probability


def value_of(whole: LoadedModel, ids: Sequence[int]) -> tuple[str, Any] | None:
    """Return a JSON value that surely ends in these tokens, with its text; None: it may go on."""
    is_end = ids[-1] in whole.eos_ids
    text = whole.vocabulary.text([*ids[: len(ids) - is_end]])
    try:
        value, end = json.JSONDecoder().raw_decode(text, len(text) - len(text.lstrip()))
    except ValueError:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if is_number and end == len(text) and not is_end else (text[:end], value)


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_field_is_as_likely_as_in_plain_causal_passes(name: str, seed: int | None) -> None:
    whole, schema = loaded(name), {"properties": {**KINDS, **BOOKING["properties"]}}
    how = {"temperature": 0.0} if seed is None else {"temperature": 1.0, "seed": seed}
    params = SamplingParams(max_tokens=400, **how)  # type: ignore[arg-type]
    schema["$defs"] = BOOKING["$defs"]
    request = parts.fill_request(PROMPT, schema, whole.vocabulary, params)
    ((answer,),) = model(name).engine.generate([request])
    found, known = parts.filled(answer, schema), request.known
    assert [*found.confidence] == [part.name for part in fields_of(schema)]
    for number, (part, start) in enumerate(zip(found.confidence, known, strict=True), start=1):
        ids = decoded(answer, number)
        expected = plain_confidence(
            whole, [*request.prompt, *start.prefix], ids, start.structured_outputs
        )
        if part in found.unfinished:
            assert found.confidence[part] is None
        else:
            assert found.confidence[part] == pytest.approx(expected, abs=1e-4), (part, ids)


def decoded(answer: Answer, number: int) -> list[int]:
    return [token for token in tokens_of(answer, number) if token is not None]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_a_hole_is_as_likely_as_its_tokens(name: str) -> None:
    whole = loaded(name)
    params = replace(DRAWN, repetition_penalty=1.2)
    request = parts.parts_request(PROMPT, HOLES, whole.vocabulary, params)
    ((answer,),) = model(name).engine.generate([request])
    confidence = parts.assembled(answer, HOLES).confidence
    ids = {part.name: decoded(answer, number) for number, part in enumerate(HOLES, start=1)}
    for part in HOLES:
        seen = [*whole.vocabulary.encode_prompt(PROMPT)]
        for piece in SEEN[part.name]:
            seen += ids.get(piece) or whole.vocabulary.encode_text(piece)
        logprobs = plain(whole, [*seen, *ids[part.name]])[len(seen) - 1 :]
        tags = [*whole.vocabulary.piece_ids.values(), *whole.eos_ids]
        logprobs[:, [*tags, *range(whole.vocabulary.num_tokens, whole.vocab_size)]] = -torch.inf
        shares = logprobs.softmax(dim=-1)
        expected = prod(float(shares[i, token]) for i, token in enumerate(ids[part.name]))
        assert confidence[part.name] == pytest.approx(expected, rel=1e-3)


def test_a_part_that_a_limit_cuts_has_no_confidence_and_the_others_have_theirs() -> None:
    schema = {"properties": {"long": {"type": "string", "minLength": 90}, "ok": {"enum": [True]}}}
    answer = model().fill("Book a room.", schema, max_tokens=20)
    assert answer.confidence == {"long": None, "ok": pytest.approx(1, abs=1e-5)}
    replies = model().ask(DOCUMENT, QUESTIONS, max_tokens=6)
    assert [reply.confidence for reply in replies] == [None] * 3
    assert [reply.distribution for reply in replies] == [{}] * 3


@pytest.mark.parametrize(
    ("members", "logprobs", "expected"),
    [
        ([(1,), (2,)], {(): {1: log(0.2), 2: log(0.6)}}, [0.25, 0.75]),
        ([(1,), (1, 2)], {(): {1: log(0.5)}, (1,): {2: log(0.9)}}, [0.1, 0.9]),
        ([(1, 2), (1, 3), (4,)],
         {(): {1: log(0.6), 4: log(0.3)}, (1,): {2: log(0.3), 3: log(0.2)}},
         [0.3, 0.2, 0.5]),
        ([(1,), (1, 2)], {(): {1: -900.0}, (1,): {2: 0.0}}, [0.0, 1.0]),
        ([(7, 8)], {(): {7: -800.0}, (7,): {8: -800.0}}, [1.0]),
    ],
)  # fmt: skip
def test_a_member_has_its_share_of_all_and_ends_where_no_other_goes_on(
    members: Any, logprobs: Mapping[Any, Any], expected: list[float]
) -> None:
    shares = Choices(tuple(members)).shares(logprobs)
    assert [*shares] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("choices", "options", "fault"),
    [
        (["a", "a"], {}, "the choice 'a' stands twice"),
        (["a", ""], {}, "none empty"),
        ("ab", {}, "choices are texts"),
        (["a", 1], {}, "choices are texts"),
        (["a"], {"temperature": 1.0}, "temperature plays no part"),
        (["a"], {"stop": ("a",)}, "stop plays no part"),
        (["a"], {"n": 2}, "n plays no part"),
        (["a"], {"params": SamplingParams(logprobs=1)}, "logprobs plays no part"),
    ],
)
def test_what_is_no_closed_set_or_plays_no_part_is_refused_before_anything_is_decoded(
    choices: Any, options: dict[str, Any], fault: str
) -> None:
    pasta = model()
    with pytest.raises(UsageError, match=fault):
        pasta.ask(DOCUMENT, QUESTIONS, choices=choices, **options)
    assert not pasta.engine.has_work
