"""What holds for the trace of every decoded answer."""

from __future__ import annotations

import pytest

from pasta_lm.interpreter.positions import PositionStrategy
from tests.architectures import loaded
from tests.engines.local.test_oracle import programs, replay
from tests.fakes.recording_engine import Recording


@pytest.mark.parametrize("strategy", PositionStrategy)
def test_the_trace_tells_of_every_token_once(strategy: PositionStrategy) -> None:
    model = loaded("qwen2")
    many = programs(model, 12, f"{strategy}")
    found = Recording(model).run([replay(p, strategy, max_tokens=400) for p in many])
    for program, (seen,) in zip(many, found, strict=True):
        assert seen.answer is not None
        trace = seen.answer.trace
        assert trace.step_s == sorted(trace.step_s)
        assert trace.critical_path == trace.forward_passes == len(trace.step_s)
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
