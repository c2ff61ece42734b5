"""What holds for every decoded answer: its layout, its critical path, its trace."""

from __future__ import annotations

from functools import cache

import pytest

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Trace
from tests.architectures import loaded
from tests.engines.local.test_oracle import programs, replay
from tests.fakes.recording_engine import Recorded, Recording
from tests.learn.data.examples import met_by
from tests.programs import Program
from tests.reference import Name, Place, critical_path, reference

MODEL = "qwen2"
NUM_PROGRAMS = 12
strategies = pytest.mark.parametrize("strategy", PositionStrategy)


@cache
def replayed(strategy: PositionStrategy, max_threads: int | None) -> list[tuple[Program, Recorded]]:
    """Return programs decoded together, each with what was seen."""
    model = loaded(MODEL)
    many = programs(model, NUM_PROGRAMS, f"{strategy}")
    requests = [replay(p, strategy, max_tokens=400, max_threads=max_threads) for p in many]
    return [(p, one) for p, (one,) in zip(many, Recording(model).run(requests), strict=True)]


def trace_of(seen: Recorded) -> Trace:
    assert seen.answer is not None
    return seen.answer.trace


def places(seen: Recorded) -> dict[Name, Place]:
    met = met_by(seen)
    return {name: Place(position, sees) for name, (_, position, sees) in met.items()}


@strategies
@pytest.mark.parametrize("max_threads", [None, 1, 2])
def test_every_token_stands_and_sees_as_the_written_form_says(
    strategy: PositionStrategy, max_threads: int | None
) -> None:
    for program, seen in replayed(strategy, max_threads):
        expected = reference(program.shape(loaded(MODEL).vocabulary), strategy)
        found = places(seen)
        assert found == {name: expected[name] for name in found}
        assert len(found) >= len(program.prompt) + len(program.answer.main)


@strategies
def test_the_critical_path_is_the_number_of_forward_passes(strategy: PositionStrategy) -> None:
    for program, seen in replayed(strategy, None):
        trace = trace_of(seen)
        expected = critical_path(program.shape(loaded(MODEL).vocabulary))
        assert trace.critical_path == trace.forward_passes == expected
        assert len(trace.step_s) == expected
        assert trace.step_s == sorted(trace.step_s)


@pytest.mark.parametrize("positions", [PositionStrategy.PREDICT, PositionStrategy.CONTINUE])
def test_generated_answers_have_a_real_critical_path(positions: PositionStrategy) -> None:
    model = loaded(MODEL)
    params = SamplingParams(max_tokens=80, temperature=1.0, n=6)
    prompt = model.vocabulary.encode_prompt("three tips")
    (samples,) = Recording(model).run([Request(prompt=prompt, params=params, positions=positions)])
    assert sum(len(seen.response.interpreter.threads) - 1 for seen in samples) > 5
    for seen in samples:
        trace = trace_of(seen)
        assert trace.critical_path == trace.forward_passes
        assert trace.num_illegal == 0
        assert trace.finish_reason in ("stop", "length")


@strategies
def test_the_trace_tells_of_every_token_once(strategy: PositionStrategy) -> None:
    for program, seen in replayed(strategy, None):
        trace = trace_of(seen)
        lanes: dict[int, list[int | None]] = {thread.id: [] for thread in trace.threads}
        for token in trace.tokens:
            lanes[token.thread].append(token.token)
        assert tuple(lanes[0]) == program.answer.main
        assert [tuple(lane[1:-1]) for number, lane in lanes.items() if number] == list(
            program.answer.blocks
        )
        fed = [token for token in trace.tokens if token.slot is not None]
        slots = sorted(token.slot or 0 for token in fed)
        assert slots == list(range(len(program.prompt), len(seen.entries)))
        for token in fed:
            assert token.fed_step is not None
            assert token.fed_step > token.decoded_step
            assert token.depth is not None
            assert 1 <= token.depth <= token.fed_step + 1
            assert seen.entries[token.slot or 0].token == token.token
            assert seen.entries[token.slot or 0].position == token.position
