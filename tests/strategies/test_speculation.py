"""Speculative decoding: guessed tokens change the speed, and nothing else about any thread."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pasta_lm.engines.guesses import MAX_GUESSES, prompt_lookup
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Answer, Guesser, Request, SamplingParams
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.strategies.requests import LOOKUP, apar_request, sequential_request
from tests.architectures import build, load, loaded
from tests.fakes.guessers import knowing
from tests.fakes.recording_engine import decoded
from tests.programs import random_program

MODEL = load("qwen2", build("qwen2").double())
"""In float64: where two tokens are all but tied, rounding chooses by the number of rows."""
GEMMA = loaded("gemma3")  # for given tokens
PROMPT = MODEL.vocabulary.encode_prompt("the dog and the dog and the cat")
TIPS = MODEL.vocabulary.encode_prompt("three tips, three tips and three more tips")
GREEDY = SamplingParams(max_tokens=48)
FREE = [PositionStrategy.PREDICT, PositionStrategy.CONTINUE]


def guessed(plain: Request, guesser: Guesser, **settings: object) -> tuple[Answer, Answer]:
    """Return an answer without and with guesses, which are the same for each token."""
    (answer,), expected = decoded(MODEL, [plain])
    (found,), outcomes = decoded(MODEL, [replace(plain, guesser=guesser)], **settings)
    assert outcomes == expected
    return answer, found


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
    assert list(prompt_lookup(ids)) == expected[:MAX_GUESSES]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_prompt_lookup_gives_the_sequential_answer(temperature: float, penalty: float) -> None:
    params = replace(GREEDY, temperature=temperature, repetition_penalty=penalty, seed=2)
    plain = sequential_request(PROMPT, params, strategy=LOOKUP)
    alone, found = guessed(plain, prompt_lookup)
    assert (found.trace.strategy, found.trace.forward_passes) == (LOOKUP, found.trace.critical_path)
    assert found.trace.forward_passes <= alone.trace.forward_passes


@pytest.mark.parametrize("pattern", ["all", "none", "some"])
def test_correct_guesses_save_passes_and_wrong_guesses_cost_none(pattern: str) -> None:
    rng, plain = random.Random(pattern), sequential_request(PROMPT, GREEDY)
    ((alone,),) = TorchEngine(MODEL, pool_tokens=512).generate([plain])
    ids = [token.token for token in alone.trace.tokens if token.token is not None]
    chance = {"all": 1.0, "none": 0.0, "some": 0.7}[pattern]
    wrong = [rng.random() >= chance for _ in ids]

    def guess(seen: Sequence[int]) -> list[int]:
        place = len(seen) - len(PROMPT)
        told = zip(ids[place : place + 5], wrong[place : place + 5], strict=True)
        return [(token + is_wrong) % MODEL.vocab_size for token, is_wrong in told]

    _, found = guessed(plain, guess)
    num_passes, num_alone = found.trace.forward_passes, alone.trace.forward_passes
    if pattern == "all":
        assert num_passes <= -(-num_alone // 6) + 1
    else:
        assert (num_passes < num_alone) == (pattern == "some")
    assert found.trace.critical_path == num_passes
    slots = [[token.slot for token in answer.trace.tokens] for answer in (alone, found)]
    assert slots[0] == slots[1]


@pytest.mark.parametrize("wrong", [-1, MODEL.vocabulary.num_tokens, 10**9])
def test_guesses_outside_the_vocabulary_are_not_fed(wrong: int) -> None:
    guessed(sequential_request(PROMPT, GREEDY), lambda _: [wrong, 5])


@pytest.mark.parametrize("positions", FREE)
@pytest.mark.parametrize("seed", range(4))
def test_a_generated_answer_is_the_same_thread_by_thread(
    positions: PositionStrategy, seed: int
) -> None:
    params = SamplingParams(max_tokens=150, temperature=float(seed > 0), seed=seed)
    plain = Request(prompt=TIPS, params=params, positions=positions)
    (answer,), (expected,) = decoded(MODEL, [plain])
    assert len(expected.tokens) > 1
    _, found = guessed(plain, knowing(answer, f"{seed}"))
    assert found.trace.forward_passes < answer.trace.forward_passes
    assert found.trace.critical_path <= found.trace.forward_passes


@pytest.mark.parametrize("max_tokens", [9, 17, 26, 40, 77])
@pytest.mark.parametrize("seed", range(3))
def test_a_limit_on_all_tokens_cuts_every_thread_where_it_did(max_tokens: int, seed: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed, ignore_eos=True)
    plain = Request(prompt=TIPS, params=params)
    (known,), _ = decoded(MODEL, [replace(plain, params=replace(params, max_tokens=200))])
    answer, _ = guessed(plain, knowing(known, "cut", 1.0))
    assert answer.finish_reason == "length"


def test_programs_that_are_given_are_decoded_with_guesses_of_prompt_lookup() -> None:
    rng, num_saved = random.Random("given"), 0
    for index in range(10):
        program = random_program(rng, GEMMA.vocabulary)
        blocks = [token for block in program.answer.blocks for token in block]
        plain = Request(
            prompt=(*program.prompt, *blocks),  # so that it finds something
            forced=program.answer,
            positions=FREE[index % 2],
            params=SamplingParams(max_tokens=program.answer.num_tokens + 1),
        )
        (answer,), (expected,) = decoded(GEMMA, [plain])
        (found,), (outcomes,) = decoded(GEMMA, [replace(plain, guesser=prompt_lookup)])
        assert outcomes == expected
        num_saved += answer.trace.forward_passes - found.trace.forward_passes
    assert num_saved > 20


def test_join_recompute_and_several_samples_and_company_change_nothing() -> None:
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=5, n=3)
    continues = PositionStrategy.CONTINUE
    plain = [
        Request(prompt=TIPS, params=params),
        Request(prompt=TIPS[:4], params=params, positions=continues, join=Join.RECOMPUTE),
        Request(prompt=TIPS[:6], params=replace(params, repetition_penalty=1.3)),
        Request(prompt=TIPS[:5], params=replace(params, stop=("e",), n=2)),
    ]
    answers, expected = decoded(MODEL, plain)
    guess = knowing(answers[0], "company")
    for settings in ({}, {"chunk_tokens": 7}, {"preempt_every": 9}):
        _, outcomes = decoded(MODEL, [replace(one, guesser=guess) for one in plain], **settings)
        assert outcomes == expected


def test_where_blocks_may_be_deferred_nothing_is_guessed() -> None:
    params = SamplingParams(max_tokens=80, temperature=1.0, seed=1, max_threads=2)
    plain = Request(prompt=TIPS, params=params)
    (known,), _ = decoded(MODEL, [plain])
    answer, found = guessed(plain, knowing(known, "bound"))
    assert found.trace.forward_passes == answer.trace.forward_passes


def test_apar_decodes_no_guesses() -> None:
    asked = replace(apar_request(TIPS, SamplingParams()), guesser=prompt_lookup)
    with pytest.raises(RequestError, match="'apar' decodes no guesses"):
        TorchEngine(MODEL, pool_tokens=2048).submit(asked)
