"""Guesses in the threads of an answer: fewer passes, and nothing else about any thread changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pasta_lm.engines.guesses import PromptLookup
from pasta_lm.engines.local.drafting import DraftModel
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import RequestError
from pasta_lm.interpreter import Join, PositionStrategy
from pasta_lm.strategies import apar
from tests.architectures import build, load, loaded
from tests.fakes.guessers import knowing
from tests.fakes.outcomes import decoded
from tests.programs import random_program

QWEN = load("qwen2", build("qwen2").double())
"""In float64: where two tokens are all but tied, rounding chooses by the number of rows."""
GEMMA = loaded("gemma3")  # for given tokens
PROMPT = QWEN.vocabulary.encode_prompt("three tips, three tips and three more tips")
FREE = [PositionStrategy.PREDICT, PositionStrategy.CONTINUE]


@pytest.mark.parametrize("positions", FREE)
@pytest.mark.parametrize("seed", range(4))
def test_a_generated_answer_is_the_same_thread_by_thread(
    positions: PositionStrategy, seed: int
) -> None:
    params = SamplingParams(max_tokens=150, temperature=float(seed > 0), seed=seed)
    plain = Request(prompt=PROMPT, params=params, positions=positions)
    (answer,), (expected,) = decoded(QWEN, [plain])
    assert len(expected.tokens) > 1
    guess = knowing(answer, f"{seed}")
    (found,), (outcomes,) = decoded(QWEN, [replace(plain, guesser=guess)])
    assert outcomes == expected
    assert found.trace.forward_passes < answer.trace.forward_passes
    assert found.trace.critical_path <= found.trace.forward_passes


@pytest.mark.parametrize("max_tokens", [9, 17, 26, 40, 77])
@pytest.mark.parametrize("seed", range(3))
def test_a_limit_on_all_tokens_cuts_every_thread_where_it_did(max_tokens: int, seed: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed, ignore_eos=True)
    plain = Request(prompt=PROMPT, params=params)
    (answer,), (expected,) = decoded(QWEN, [plain])
    (known,), _ = decoded(QWEN, [replace(plain, params=replace(params, max_tokens=200))])
    (_,), (outcomes,) = decoded(QWEN, [replace(plain, guesser=knowing(known, "cut", 1.0))])
    assert outcomes == expected
    assert answer.finish_reason == "length"


def test_programs_that_are_given_are_decoded_with_guesses_of_prompt_lookup() -> None:
    rng, num_saved = random.Random("given"), 0
    for index in range(10):
        program = random_program(rng, GEMMA.vocabulary)
        blocks = [token for block in program.answer.blocks for token in block]
        plain = Request(
            prompt=(*program.prompt, *blocks),  # so that it finds something
            forced=program.answer,
            positions=[*FREE, PositionStrategy.ROTATE][index % 3],
            params=SamplingParams(max_tokens=program.answer.num_tokens + 1),
        )
        (answer,), (expected,) = decoded(GEMMA, [plain])
        (found,), (outcomes,) = decoded(GEMMA, [replace(plain, guesser=PromptLookup())])
        assert outcomes == expected
        num_saved += answer.trace.forward_passes - found.trace.forward_passes
    assert num_saved > 20


def test_join_recompute_and_several_samples_and_company_change_nothing() -> None:
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=5, n=3)
    continues = PositionStrategy.CONTINUE
    plain = [
        Request(prompt=PROMPT, params=params),
        Request(prompt=PROMPT[:4], params=params, positions=continues, join=Join.RECOMPUTE),
        Request(prompt=PROMPT[:6], params=replace(params, repetition_penalty=1.3)),
        Request(prompt=PROMPT[:5], params=replace(params, stop=("e",), n=2)),
    ]
    answers, expected = decoded(QWEN, plain)
    guess = knowing(answers[0], "company")
    for settings in ({}, {"chunk_tokens": 7}, {"preempt_every": 9}):
        _, outcomes = decoded(QWEN, [replace(one, guesser=guess) for one in plain], **settings)
        assert [one.program for one in outcomes] == [one.program for one in expected]
        assert outcomes[:9] == expected[:9], "a stop string leaves later threads wherever they are"


def test_a_draft_model_guesses_for_every_thread() -> None:
    plain = Request(prompt=PROMPT, params=SamplingParams(max_tokens=120, temperature=1.0, seed=2))
    (answer,), (expected,) = decoded(QWEN, [plain])
    for draft in (QWEN, load("qwen2", build("qwen2", seed=1))):
        guess = DraftModel(draft, max_guesses=3)
        _, (outcomes,) = decoded(QWEN, [replace(plain, guesser=guess)])
        assert outcomes == expected
    greedy = replace(plain, params=SamplingParams(max_tokens=120))
    (answer,), (expected,) = decoded(QWEN, [greedy])
    (found,), (outcomes,) = decoded(QWEN, [replace(greedy, guesser=DraftModel(QWEN))])
    assert outcomes == expected
    assert found.trace.forward_passes < answer.trace.forward_passes


def test_where_blocks_may_be_deferred_nothing_is_guessed() -> None:
    params = SamplingParams(max_tokens=80, temperature=1.0, seed=1, max_threads=2)
    plain = Request(prompt=PROMPT, params=params)
    (answer,), (expected,) = decoded(QWEN, [plain])
    (found,), (outcomes,) = decoded(QWEN, [replace(plain, guesser=knowing(answer, "bound"))])
    assert (outcomes, found.trace.forward_passes) == (expected, answer.trace.forward_passes)


def test_apar_decodes_no_guesses() -> None:
    asked = replace(apar.request(PROMPT, SamplingParams()), guesser=PromptLookup())
    with pytest.raises(RequestError, match="'apar' decodes no guesses"):
        TorchEngine(QWEN, pool_tokens=2048).submit(asked)
