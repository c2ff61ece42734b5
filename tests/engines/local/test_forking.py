"""Fork when it pays: only the schedule depends on what passes cost, never a token."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.forking import COSTS_FILE, StepCosts, best_width, measure, step_costs
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.interpreter import PositionStrategy
from pasta_lm.strategies.speculation import PromptLookup
from tests.architectures import build, load, loaded
from tests.programs import random_program
from tests.told import decoded, knowing

FREE = StepCosts.of([(1, 10.0), (64, 10.0)])  # rows cost nothing
BANDWIDTH = StepCosts.of([(1, 10.0), (64, 40.0)])  # some, and a pass by itself
STEEP = StepCosts.of([(rows, float(rows**3)) for rows in range(1, 65)])
JUMP = StepCosts.of([(4, 10.0), (5, 40.0), (64, 40.0)])  # as at the edge of a bucket

QWEN = load("qwen2", build("qwen2").double())
"""In float64: where two tokens are all but tied, rounding chooses by the number of rows."""
PROMPT = QWEN.vocabulary.encode_prompt("three tips")
PAYS = SamplingParams(max_tokens=200, temperature=1.0, seed=3, fork="when-it-pays")


def test_costs_lie_on_lines_between_the_measured_ones_and_never_fall() -> None:
    costs = StepCosts.of([(4, 30.0), (1, 10.0), (2, 8.0)])
    assert costs.step_ms == ((1, 10.0), (2, 10.0), (4, 30.0))
    assert [costs(rows) for rows in (0, 1, 2, 3, 4, 6)] == [0.0, 10.0, 10.0, 20.0, 30.0, 50.0]


@pytest.mark.parametrize(
    ("costs", "lengths", "other_rows", "num_responses", "expected"),
    [
        (FREE, [10, 10, 10], 0, 1, 3),
        (BANDWIDTH, [10, 10, 10], 0, 1, 3),
        (BANDWIDTH, [30, 30, 30, 30], 31, 32, 4),  # a pass has a price of its own, however full
        (STEEP, [10, 10, 10], 0, 1, 1),
        (STEEP, [10, 10], 20, 11, 2),  # its own passes count, too
        (JUMP, [10] * 5, 0, 1, 4),
        (JUMP, [10] * 5, 8, 9, 5),
        (STEEP, [10], 0, 1, 1),
        (FREE, [], 0, 1, 0),
    ],
)
def test_blocks_wait_where_rows_cost_more_than_passes(
    costs: StepCosts, lengths: list[int], other_rows: int, num_responses: int, expected: int
) -> None:
    found = best_width(costs, lengths, other_rows=other_rows, num_responses=num_responses)
    assert found == expected


def test_the_promised_lengths_decide_too() -> None:
    costs = StepCosts.of([(1, 10.0), (2, 25.0)])
    assert best_width(costs, [40, 40], other_rows=0, num_responses=1) == 1
    assert best_width(costs, [40, 2], other_rows=0, num_responses=1) == 2, "for two passes only"


@pytest.mark.parametrize("costs", [FREE, STEEP, JUMP])
@pytest.mark.parametrize("seed", range(3))
def test_a_generated_answer_is_the_same_thread_by_thread(costs: StepCosts, seed: int) -> None:
    plain = Request(prompt=PROMPT, params=replace(PAYS, seed=seed, fork="always"))
    (answer,), expected = decoded(QWEN, [plain])
    pays = replace(plain, params=replace(PAYS, seed=seed))
    (found,), told = decoded(QWEN, [pays], costs=costs)
    assert told == expected
    assert len(expected[0].tokens) > 2
    if costs is STEEP:
        assert found.trace.forward_passes > answer.trace.forward_passes
    if costs is FREE:
        assert found.trace.forward_passes == answer.trace.forward_passes


def test_decoded_inline_threads_go_one_after_the_other_in_reading_order() -> None:
    program = random_program(random.Random("inline"), QWEN.vocabulary, num_parts=12)
    params = replace(PAYS, max_tokens=program.answer.num_tokens + 1)
    given = Request(prompt=program.prompt, forced=program.answer, params=params)
    (answer,), _ = decoded(QWEN, [given], costs=STEEP)
    steps = [token.fed_step for token in answer.trace.tokens if token.fed_step is not None]
    num_ends = len(answer.trace.threads) - 1
    assert num_ends >= 3
    assert len(steps) - len(set(steps)) <= num_ends, "only an end is fed beside another thread"
    ends = [thread.end_step or 0 for thread in answer.trace.threads[1:]]
    assert ends == sorted(ends)


@pytest.mark.parametrize("max_tokens", [11, 23, 38, 61])
def test_a_limit_on_all_tokens_cuts_every_thread_where_it_did(max_tokens: int) -> None:
    params = replace(PAYS, max_tokens=max_tokens, ignore_eos=True)
    plain = Request(prompt=PROMPT, params=replace(params, fork="always"))
    (answer,), expected = decoded(QWEN, [plain])
    _, told = decoded(QWEN, [replace(plain, params=params)], costs=STEEP)
    assert told == expected
    assert answer.finish_reason == "length"


def test_programs_among_others_with_guesses_and_preemption_stay_the_same() -> None:
    model, rng = loaded("gemma3"), random.Random("pays")
    plain = []
    for index in range(6):
        program = random_program(rng, model.vocabulary)
        params = SamplingParams(max_tokens=program.answer.num_tokens + 1)
        positions = list(PositionStrategy)[index % 4]
        plain.append(
            Request(
                prompt=program.prompt, forced=program.answer, params=params, positions=positions
            )
        )
    _, expected = decoded(model, plain)
    pays = [replace(one, params=replace(one.params, fork="when-it-pays")) for one in plain]
    assert decoded(model, pays, costs=STEEP)[1] == expected
    both = [replace(one, guess=PromptLookup()) for one in pays]
    assert decoded(model, both, costs=STEEP, preempt_every=5)[1] == expected


def test_guesses_in_threads_that_wait_for_each_other_change_nothing() -> None:
    plain = Request(prompt=PROMPT, params=replace(PAYS, fork="always"))
    (answer,), expected = decoded(QWEN, [plain])
    both = Request(prompt=PROMPT, params=PAYS, guess=knowing(answer, "both"))
    (found,), told = decoded(QWEN, [both], costs=STEEP)
    assert told == expected
    assert found.trace.forward_passes < sum(map(len, told[0].tokens.values()))


def test_costs_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = loaded("llama")
    first = step_costs(model)
    file = tmp_path / "pasta-lm" / COSTS_FILE
    assert file.exists()
    monkeypatch.setattr("pasta_lm.engines.local.forking.measure", None)
    assert step_costs(model) == first
    file.write_text("broken")
    TorchEngine(model, pool_tokens=64)  # measures nothing before a request needs it
    monkeypatch.setattr("pasta_lm.engines.local.forking.measure", lambda loaded: FREE)
    assert step_costs(model) == FREE


def test_a_measurement_has_every_number_of_rows() -> None:
    costs = measure(loaded("gemma3"), rows=(1, 3))
    assert [rows for rows, _ in costs.step_ms] == [1, 3]
    assert all(cost > 0 for _, cost in costs.step_ms)


def test_another_rule_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="fork is 'never', but must be one of always, when-it"):
        SamplingParams(fork="never")  # type: ignore[arg-type]
