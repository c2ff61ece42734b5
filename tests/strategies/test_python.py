"""The Python interface: keywords, lists, streams, and values of a wrong type."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pasta_lm import Finished, Pasta, SamplingParams, ThreadStarted
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.strategies.requests import STRATEGIES, Options
from tests.architectures import loaded

PROMPT = "three tips"
SAMPLED = SamplingParams(max_tokens=60, temperature=1.0)


@pytest.fixture(scope="module")
def model() -> Pasta:
    return Pasta(TorchEngine(loaded("qwen2"), pool_tokens=4096))


def test_keywords_are_the_fields_of_sampling_params(model: Pasta) -> None:
    names = {field.name for field in fields(SamplingParams)}
    others = {"strategy", "positions", "think", "chat_template_kwargs"}
    assert {*Options.__annotations__} - others <= names
    answer = model.generate(PROMPT, SamplingParams(max_tokens=9, seed=3))
    assert model.generate(PROMPT, max_tokens=9, seed=3).text == answer.text
    assert model.generate(PROMPT, SamplingParams(seed=3), max_tokens=9).text == answer.text


def test_a_list_of_prompts_gives_a_list_of_the_same_answers(model: Pasta) -> None:
    messages = [{"role": "user", "content": "go on"}]
    answers = model.generate([PROMPT, messages], SAMPLED)  # type: ignore[list-item]
    alone = [model.generate(PROMPT, SAMPLED), model.generate(messages, SAMPLED)]
    assert [answer.document for answer in answers] == [answer.document for answer in alone]
    assert model.generate([]) == []


@pytest.mark.parametrize("strategy", ["pasta", "sot", "sequential"])
@pytest.mark.parametrize("seed", range(3))
def test_streamed_text_joined_is_the_answer(model: Pasta, strategy: str, seed: int) -> None:
    answer = model.generate(PROMPT, SAMPLED, seed=seed, strategy=strategy)
    texts = list(model.stream_text(PROMPT, SAMPLED, seed=seed, strategy=strategy))
    assert "".join(texts) == answer.text
    assert all(texts)
    events = list(model.stream(PROMPT, SAMPLED, seed=seed, strategy=strategy))
    assert isinstance(events[0], ThreadStarted)
    assert isinstance(events[-1], Finished)
    assert events[-1].answer.text == answer.text


def test_an_answer_prints_as_its_text_and_reprs_are_one_line(model: Pasta) -> None:
    answer = model.generate(PROMPT, SAMPLED)
    assert str(answer) == answer.text
    for value in (model, answer, answer.trace):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 160
    assert repr(answer.trace).endswith(f"{answer.trace.num_tokens} tokens, length>")


@pytest.mark.parametrize(
    ("prompt", "keywords", "message", "hint"),
    [
        (None, {}, "not NoneType", 'generate("Name'),
        (7, {}, "not int", 'generate("Name'),
        ([{"role": "usr", "content": "x"}], {}, "the role 'usr'", "one of system"),
        (PROMPT, {"params": {"max_tokens": 8}}, "not dict", "max_tokens=100"),
        (PROMPT, {"max_token": 8}, "no parameter 'max_token'", "did you mean max_tokens?"),
        (PROMPT, {"max_tokens": "8"}, "wrong type", 'generate("Name'),
        (PROMPT, {"temperature": -1}, "temperature is -1", ""),
        (PROMPT, {"strategy": "quick"}, "unknown strategy 'quick'", "one of pasta"),
        (PROMPT, {"positions": "x", "strategy": "sequential"}, "'x' cannot be", "one of predict"),
        (PROMPT, {"think": False, "chat_template_kwargs": {"thinking": True}}, "contradict", "one"),
        (PROMPT, {"positions": "oracle"}, "replay and training only", "one of predict"),
        (PROMPT, {"strategy": "sot", "positions": "predict"}, "no positions 'predict'", "leave"),
    ],
)
def test_a_wrong_value_is_a_usage_error_with_the_right_call(
    model: Pasta, prompt: Any, keywords: dict[str, Any], message: str, hint: str
) -> None:
    for call in (model.generate, model.samples, model.stream, model.stream_text):
        with pytest.raises(UsageError) as caught:
            call(prompt, **keywords)  # type: ignore[operator]
        assert message in caught.value.message
        assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("prompt", ["", " \n", [{"role": "user", "content": ""}]])
def test_an_empty_prompt_is_refused(model: Pasta, prompt: Any) -> None:
    for call in (model.generate, model.stream):
        with pytest.raises(RequestError, match="the prompt is empty"):
            call(prompt)


def test_strategies_are_those_by_which_the_model_answers(model: Pasta) -> None:
    assert {*STRATEGIES} - {*model.strategies} == {"apar"}
    assert not model.supports("apar")
