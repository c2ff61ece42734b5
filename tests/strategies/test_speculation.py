"""Speculative decoding: guessed tokens change the speed, never the tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pasta_lm.engines.guesses import PromptLookup
from pasta_lm.engines.local.drafting import DraftModel
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.strategies import sequential
from pasta_lm.strategies.requests import DRAFT, LOOKUP
from tests.architectures import build, load, loaded
from tests.fakes.guessers import FunctionGuesser, knowing

MODEL = load("qwen2", build("qwen2").double())
"""In float64: where two tokens are all but tied, rounding chooses by the number of rows."""
PROMPT = MODEL.vocabulary.encode_prompt("the dog and the dog and the cat")
GREEDY = SamplingParams(max_tokens=48)


def engine(**settings: object) -> TorchEngine:
    return TorchEngine(MODEL, **{"pool_tokens": 2048, **settings})  # type: ignore[arg-type]


def decoded(given: Request, **settings: object) -> Answer:
    one = engine(**settings)
    (answer,) = one.generate([given])[0]
    assert one.pool.num_free_pages == one.pool.num_pages
    return answer


def said(answer: Answer) -> list[int | None]:
    return [token.token for token in answer.trace.tokens]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], [4, 9, 1, 2, 3]),
        ([7, 3, 5, 1, 2, 3, 8, 2, 3], [8, 2, 3]),  # two tokens match, three do not
        ([5, 1, 5, 2, 5], [2, 5]),  # the newest place
        ([1, 2, 3], []),
        ([4, 4], [4]),
        ([4], []),
        ([], []),
    ],
)
def test_prompt_lookup_finds_the_tokens_that_followed_the_last_match(
    ids: list[int], expected: list[int]
) -> None:
    assert list(PromptLookup(max_guesses=8).guess(ids)) == expected
    assert list(PromptLookup(max_guesses=2).guess(ids)) == expected[:2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_prompt_lookup_gives_the_sequential_answer(temperature: float, penalty: float) -> None:
    params = replace(GREEDY, temperature=temperature, repetition_penalty=penalty, seed=2)
    alone = decoded(sequential.request(PROMPT, params))
    found = decoded(sequential.request(PROMPT, params, PromptLookup(), LOOKUP))
    assert said(found) == said(alone)
    assert (found.text, found.finish_reason) == (alone.text, alone.finish_reason)
    assert (found.trace.strategy, found.trace.forward_passes) == (LOOKUP, found.trace.critical_path)
    assert found.trace.forward_passes <= alone.trace.forward_passes


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
@pytest.mark.parametrize("pattern", ["all", "none", "some"])
def test_correct_guesses_save_passes_and_wrong_guesses_cost_none(name: str, pattern: str) -> None:
    model, rng = loaded(name), random.Random(pattern)
    prompt = model.vocabulary.encode_prompt("the dog")
    one = TorchEngine(model, pool_tokens=512)
    ((alone,),) = one.generate([sequential.request(prompt, GREEDY)])
    ids = [token for token in said(alone) if token is not None]
    chance = {"all": 1.0, "none": 0.0, "some": 0.7}[pattern]
    wrong = [rng.random() >= chance for _ in ids]

    def guess(seen: Sequence[int]) -> list[int]:
        place = len(seen) - len(prompt)
        told = zip(ids[place : place + 5], wrong[place : place + 5], strict=True)
        return [(token + is_wrong) % model.vocab_size for token, is_wrong in told]

    ((found,),) = one.generate([sequential.request(prompt, GREEDY, FunctionGuesser(guess), LOOKUP)])
    assert said(found) == said(alone)
    num_passes, num_alone = found.trace.forward_passes, alone.trace.forward_passes
    if pattern == "all":
        assert num_passes <= -(-num_alone // 6) + 1
    else:
        assert (num_passes < num_alone) == (pattern == "some")
    assert found.trace.critical_path == num_passes
    places = [(token.slot, token.position) for token in alone.trace.tokens]
    assert [(token.slot, token.position) for token in found.trace.tokens] == places
    assert one.pool.num_free_pages == one.pool.num_pages


def test_limits_and_stop_strings_cut_as_without_guesses() -> None:
    alone = decoded(sequential.request(PROMPT, GREEDY))
    stop = alone.text[9:12]
    for params in (
        replace(GREEDY, max_tokens=1),
        replace(GREEDY, max_tokens=7),
        replace(GREEDY, stop=(stop,)),
    ):
        expected = decoded(sequential.request(PROMPT, params))
        guess = knowing(alone, "all", 1.0, size=16)
        pool_tokens = len(PROMPT) + params.max_tokens
        found = decoded(sequential.request(PROMPT, params, guess, LOOKUP), pool_tokens=pool_tokens)
        assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)
        assert said(found) == said(expected)


def test_guesses_outside_the_vocabulary_are_not_fed() -> None:
    alone = decoded(sequential.request(PROMPT, GREEDY))
    for wrong in (-1, MODEL.vocabulary.num_tokens, 10**9):
        guesser = FunctionGuesser(lambda _, wrong=wrong: [wrong, 5])  # type: ignore[misc]
        found = decoded(sequential.request(PROMPT, GREEDY, guesser, LOOKUP))
        assert said(found) == said(alone)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_of_one_prompt_may_be_guessed_together(temperature: float) -> None:
    params = replace(GREEDY, temperature=temperature, n=3)
    alone = engine().generate([sequential.request(PROMPT, params)])[0]
    found = engine().generate([sequential.request(PROMPT, params, PromptLookup(), LOOKUP)])[0]
    assert [said(one) for one in found] == [said(one) for one in alone]


# --- a draft model


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("paged", [True, False])
def test_guesses_of_a_draft_model_give_the_sequential_answer(same: bool, paged: bool) -> None:
    draft = MODEL if same else load("qwen2", build("qwen2", seed=1))
    guess = DraftModel(draft, max_guesses=3, paged=paged)
    for prompt in (PROMPT, PROMPT[:6], PROMPT):
        alone = decoded(sequential.request(prompt, GREEDY))
        found = decoded(sequential.request(prompt, GREEDY, guess, DRAFT))
        assert said(found) == said(alone)
        if same:  # it is never wrong
            assert found.trace.forward_passes <= -(-alone.trace.forward_passes // 4) + 1


@pytest.mark.parametrize("paged", [True, False])
def test_a_draft_model_is_fed_only_new_tokens_and_guesses_greedily(paged: bool) -> None:
    guess = DraftModel(MODEL, max_guesses=5, paged=paged)
    for length in (4, 5, 9, 3, len(PROMPT)):
        alone = decoded(sequential.request(PROMPT[:length], replace(GREEDY, max_tokens=5)))
        assert list(guess.guess(PROMPT[:length]))[: len(said(alone))] == said(alone)
    assert guess.guess([1] * 5000) == ()


def test_a_draft_model_of_another_tokenizer_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot guess"):
        engine().submit(sequential.request(PROMPT, GREEDY, DraftModel(loaded("gemma")), DRAFT))
