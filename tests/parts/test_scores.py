"""How likely values and choices are: the shares of plain causal passes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from pasta_lm.engines.grammars import Grammars
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Answer, SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.parts import declared as parts
from pasta_lm.parts.fields import fields_of
from pasta_lm.parts.questions import CHOOSE, Replies, answered, ask_request
from pasta_lm.strategies.model import Pasta
from tests.architectures import every_architecture, loaded, own_attention
from tests.engines.local.test_grammars import BOOKING, model, tokens_of
from tests.engines.rows.hybrids import hybrid
from tests.thinking import saying

pytest.importorskip("llguidance")

DOCUMENT, QUESTIONS = "Ada came to London.", ["Who?", "Is it far?", "Why did she come?"]
CHOICES = ("yes", "no", "not", "nothing at all", "unclear", "un")  # some begin others
KINDS = {
    "n": {"type": "integer"}, "x": {"type": "number"}, "s": {"type": "string", "maxLength": 3},
    "b": {"type": "boolean"}, "e": {"enum": ["a", "ab", 1, 12, None]},
    "l": {"type": "array", "items": {"enum": ["x", 7]}, "maxItems": 2},
}  # fmt: skip


def plain(whole: LoadedModel, ids: Sequence[int]) -> Tensor:
    """Return the logits behind each token of one causal pass, float64 [N, V]."""
    own = nullcontext() if whole.reader else own_attention(whole)
    with own, torch.inference_mode():
        logits: Tensor = whole.model(input_ids=torch.tensor([[*ids]]), use_cache=False).logits[0]
    return logits.double()


def plain_shares(whole: LoadedModel, question: str) -> list[float]:
    """Return how likely each choice is: what goes on where several do, one token at a time."""
    text = f"{DOCUMENT}\n\n{CHOOSE.format(', '.join(CHOICES))}\n\n{question}"
    has_template = whole.vocabulary.has_chat_template
    turns = [{"role": "user", "content": text}]
    prompt = whole.vocabulary.encode_prompt(turns if has_template else f"{text}\n\n")
    members = [whole.vocabulary.encode_text(text) for text in CHOICES]

    def share(member: list[int], logits_NV: Tensor, size: int) -> float:
        logits_V = logits_NV[len(prompt) - 1 + size]
        ways = {tuple(m[size : size + 1]) for m in members if m[:size] == member[:size]}
        weight = {way: float(logits_V[[*way] or [*whole.eos_ids]].exp().sum()) for way in ways}
        return weight[tuple(member[size : size + 1])] / sum(weight.values())

    passes = [(member, plain(whole, [*prompt, *member])) for member in members]
    return [prod(share(*pair, size) for size in range(len(pair[0]) + 1)) for pair in passes]


def assert_scored(replies: Replies, whole: LoadedModel, tolerance: float = 1e-4) -> None:
    assert len(replies) == len(QUESTIONS)
    for number, question in enumerate(QUESTIONS):
        text, confidence, distribution = replies[number]
        assert [*distribution] == [*CHOICES]
        expected = plain_shares(whole, question)
        assert [*distribution.values()] == pytest.approx(expected, abs=tolerance)
        assert confidence == distribution[text] == max(distribution.values())
        assert (replies.data[number], replies.confidence[question]) == (text, confidence)


@pytest.mark.parametrize("paged", [False, True])
@every_architecture
def test_choices_have_the_shares_of_plain_causal_passes_in_one_step(name: str, paged: bool) -> None:
    replies = model(name, paged=paged).ask(DOCUMENT, QUESTIONS, choices=CHOICES)
    assert_scored(replies, loaded(name))
    assert (replies.trace.forward_passes, replies.unfinished) == (1, ())
    assert replies.trace.finish_reason == "stop"


def test_a_temperature_that_the_model_s_authors_set_plays_no_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pasta = model()
    plain = pasta.ask(DOCUMENT, QUESTIONS, choices=CHOICES)
    warm = {"temperature": 0.7, "repetition_penalty": 1.1}
    monkeypatch.setitem(vars(pasta.engine.loaded), "sampling", warm)  # in place of the kept value
    assert pasta.ask(DOCUMENT, QUESTIONS, choices=CHOICES).replies == plain.replies
    assert pasta.sampling_params().temperature == 0.7


def test_choices_of_threads_as_rows_have_the_same_shares() -> None:
    whole = hybrid("jamba")
    replies = Pasta(TorchEngine(whole, pool_tokens=4096)).ask(DOCUMENT, QUESTIONS, choices=CHOICES)
    assert_scored(replies, whole, tolerance=3e-2)


@pytest.mark.parametrize(
    "settings", [{"max_rows": 2}, {"shares_prefixes": True}, {"pool_tokens": 384}]
)
def test_neither_company_nor_prefixes_nor_a_small_pool_change_a_share(settings: Any) -> None:
    whole = loaded("gemma2")
    engine = TorchEngine(whole, **{"pool_tokens": 4096, **settings})
    request = ask_request(DOCUMENT, QUESTIONS, whole.vocabulary, SamplingParams(), CHOICES)
    filling = parts.fill_request("Book.", BOOKING, whole.vocabulary, SamplingParams(max_tokens=40))
    for answers in engine.generate([request, filling, request])[::2]:
        assert_scored(answered(answers[0], QUESTIONS, whole.vocabulary, CHOICES), whole)


def value_of(whole: LoadedModel, ids: Sequence[int]) -> str | None:
    """Return the text of a JSON value that surely ends in these tokens; None: it may go on."""
    is_end = ids[-1] in whole.eos_ids
    text = whole.vocabulary.text([*ids[: len(ids) - is_end]])
    try:
        value, end = json.JSONDecoder().raw_decode(text, len(text) - len(text.lstrip()))
    except ValueError:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    may_go_on = is_number and end == len(text) and not is_end
    is_whole = re.fullmatch(r" ?[,}\]\n]?", text[end:])
    return text[:end] if is_whole and not may_go_on else None


def plain_confidence(
    whole: LoadedModel, answer: Answer, number: int, seen: Sequence[int], form: Any
) -> float:
    """Return the product over a thread's tokens; those that end the same value count together."""
    ids = [token for token in tokens_of(answer, number) if token is not None]
    ids += [] if value_of(whole, ids) else [min(whole.eos_ids)]
    grammars = Grammars(whole.vocabulary, whole.vocab_size, [*whole.eos_ids])
    logits, matcher, probability = plain(whole, [*seen, *ids]), grammars.matcher(form), 1.0
    for step, token in enumerate(ids):
        if step and value_of(whole, ids[:step]):
            break  # it is certain, whatever follows
        allowed = matcher.allowed()
        matcher.consume(token)
        behind = logits[len(seen) - 1 + step].masked_fill(~allowed, -torch.inf).softmax(dim=-1)
        end = value_of(whole, ids[: step + 1])
        others = allowed.nonzero()[:, 0].tolist() if end else []
        ways = [t for t in others if value_of(whole, [*ids[:step], t]) == end] or [token]
        probability *= float(behind[ways].sum())
    return probability


@pytest.mark.parametrize("seed", [None, 1])
@every_architecture
def test_a_field_is_as_likely_as_in_plain_causal_passes(name: str, seed: int | None) -> None:
    whole, schema = loaded(name), {"properties": {**KINDS, **BOOKING["properties"]}}
    schema["$defs"] = BOOKING["$defs"]
    params = SamplingParams(max_tokens=400, temperature=0.0 if seed is None else 1.0, seed=seed)
    request = parts.fill_request("Ada came.", schema, whole.vocabulary, params)
    ((answer,),) = model(name).engine.generate([request])
    filled = parts.filled(answer, schema, "", whole.vocabulary)
    for number, (field, start) in enumerate(zip(fields_of(schema), request.known, strict=True), 1):
        likely = filled.confidence[field.name]
        if field.name in filled.unfinished:
            assert likely is None
            continue
        seen = [*request.prompt, *start.prefix]
        expected = plain_confidence(whole, answer, number, seen, start.structured_outputs)
        assert likely == pytest.approx(expected, abs=1e-4), field.name


def test_a_value_that_cannot_be_read_has_no_probability() -> None:
    filled = saying("qwen3", "", '{"a": 1, "a": 2}').fill("Book.", {"properties": {"o": {}}})
    assert (filled.unfinished, filled.confidence) == (("o",), {"o": None})


@pytest.mark.parametrize(
    ("choices", "options", "fault"),
    [
        (["a", "a"], {}, "the choice 'a' stands twice"), (["a", ""], {}, "none empty"),
        ("ab", {}, "choices are texts"), (["a", 1], {}, "choices are texts"),
        (["a"], {}, "1 choices, but 2 to 64"),
        *((["a", "b"], options, "play no part where choices are scored")
          for options in ({"temperature": 1.0}, {"stop": ("a",)})),
    ],
)  # fmt: skip
def test_what_is_no_closed_set_or_plays_no_part_is_refused_before_anything_is_decoded(
    choices: Any, options: Any, fault: str
) -> None:
    pasta = model()
    with pytest.raises(UsageError, match=fault):
        pasta.ask(DOCUMENT, QUESTIONS, choices=choices, **options)
    assert not pasta.engine.has_work
