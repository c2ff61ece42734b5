"""While more threads decode than a pass may have rows, blocks wait; no token changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pasta_lm.engines.guesses import PromptLookup
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from tests.architectures import build, load, loaded
from tests.engines.local.test_oracle import programs, replay
from tests.fakes.guessers import knowing
from tests.fakes.outcomes import decoded

QWEN = load("qwen2", build("qwen2").double())
PROMPT = QWEN.vocabulary.encode_prompt("the dog and the cat")
SAMPLED = SamplingParams(max_tokens=200, temperature=1.0, seed=3)


def given(seed: object) -> Request:
    (program,) = programs(QWEN, 1, f"{seed}", num_parts=12)
    return replay(program, PositionStrategy.PREDICT)


@pytest.mark.parametrize("max_rows", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_answer_has_the_same_tokens(max_rows: int, seed: int) -> None:
    request = Request(prompt=PROMPT, params=replace(SAMPLED, seed=seed))
    (answer,), expected = decoded(QWEN, [request])
    (bounded,), outcomes = decoded(QWEN, [request], max_rows=max_rows)
    assert outcomes == expected
    assert len(answer.trace.threads) > 2
    assert bounded.trace.forward_passes >= answer.trace.forward_passes


@pytest.mark.parametrize("max_tokens", [11, 23, 38, 61])
def test_a_limit_on_all_tokens_cuts_every_thread_at_the_same_token(max_tokens: int) -> None:
    params = replace(SAMPLED, max_tokens=max_tokens, ignore_eos=True)
    request = Request(prompt=PROMPT, params=params)
    (answer,), expected = decoded(QWEN, [request])
    assert decoded(QWEN, [request], max_rows=1)[1] == expected
    assert answer.finish_reason == "length"


def test_threads_go_one_after_the_other_in_reading_order_in_passes_of_one_row() -> None:
    (answer,), _ = decoded(QWEN, [given("inline")], max_rows=1)
    steps = [token.fed_step for token in answer.trace.tokens if token.fed_step is not None]
    num_blocks = len(answer.trace.threads) - 1
    assert num_blocks >= 3
    assert len(steps) - len(set(steps)) <= num_blocks, "only an end is fed beside another thread"
    ends = [thread.end_step or 0 for thread in answer.trace.threads[1:]]
    assert ends == sorted(ends)


@pytest.mark.parametrize("max_rows", [1, 4, 7])
def test_no_pass_has_more_rows_and_every_response_has_one(max_rows: int) -> None:
    rows: list[int] = []  # of this pass, the numbers of the responses
    requests = [given(index) for index in range(4)]
    engine = TorchEngine(
        QWEN, pool_tokens=4096, max_rows=max_rows, captures=False,
        on_logits=lambda response, live, choice, logits: rows.append(id(response)),
    )  # fmt: skip
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        decoding = {
            id(response)
            for active in engine.active.values()
            for response in active.responses
            if any(response.interpreter.runnable()) and active.has_decoded
        }
        rows.clear()
        engine.step()
        assert decoding <= {*rows}
        assert len(rows) <= max(max_rows, len(requests))


def test_programs_among_others_with_guesses_and_preemption_stay_the_same() -> None:
    model = loaded("gemma3")
    many = enumerate(programs(model, 6, "pays"))
    plain = [replay(program, list(PositionStrategy)[index % 3]) for index, program in many]
    _, expected = decoded(model, plain)
    assert decoded(model, plain, max_rows=1)[1] == expected
    guessed = [replace(request, guesser=PromptLookup()) for request in plain]
    assert decoded(model, guessed, max_rows=8, preempt_every=5)[1] == expected


def test_guesses_in_threads_that_wait_for_each_other_change_nothing() -> None:
    plain = Request(prompt=PROMPT, params=SAMPLED)
    (answer,), expected = decoded(QWEN, [plain])
    guessed = replace(plain, guesser=knowing(answer, "both"))
    (found,), outcomes = decoded(QWEN, [guessed], max_rows=1)
    assert outcomes == expected
    assert found.trace.forward_passes < sum(map(len, outcomes[0].tokens.values()))
