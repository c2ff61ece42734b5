"""Join ``recompute`` in the local engine: each logit is that of a plain causal pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import Join, PositionStrategy
from tests.architectures import loaded
from tests.engines.local.naive import naive_logits
from tests.engines.local.test_oracle import architectures, check, programs, replay
from tests.fakes.recording_engine import TOLERANCE, Recorded, Recording
from tests.plain_sequences import plain_sequences, seen_sequence
from tests.programs import Program


def recomputing(program: Program, **params: int | None) -> Request:
    request = replay(program, PositionStrategy.CONTINUE, **params)
    return replace(request, join=Join.RECOMPUTE)


def check_plain(model: LoadedModel, seen: Recorded, num_checked: int) -> None:
    """Hold the last logits of a response against plain causal passes over what they saw."""
    for slot, logits in list(zip(seen.slots, seen.logits, strict=True))[-num_checked:]:
        plain = Entries.of_prompt(seen_sequence(seen.entries, slot))
        expected = naive_logits(model.model, plain)[-1]
        assert torch.allclose(logits, expected, atol=TOLERANCE, rtol=0)


@architectures
def test_programs_meet_the_logits_of_a_masked_pass_and_of_plain_causal_ones(name: str) -> None:
    model = loaded(name)
    many = programs(model, 4, f"recompute {name}", num_parts=12)
    requests = [recomputing(p, max_threads=(None, 2)[i % 2]) for i, p in enumerate(many)]
    found = [seen for (seen,) in Recording(model, max_batch_tokens=16).run(requests)]
    assert sum(seen.response.trace.num_recomputed for seen in found) > 10
    check(model, found)
    for seen in found:
        check_plain(model, seen, num_checked=8)


def test_each_thread_decodes_behind_the_plain_sequence_of_the_written_form() -> None:
    model = loaded("llama")
    for program in programs(model, 3, "written", num_parts=10):
        ((seen,),) = Recording(model).run([recomputing(program)])
        expected = plain_sequences(model.vocabulary, program.prompt, program.answer)
        sequences = {seen_sequence(seen.entries, slot) for slot in seen.slots}
        assert sequences <= {program.prompt, *expected.values()}
        check_plain(model, seen, num_checked=len(seen.slots))


def test_samples_that_are_preempted_meet_the_same_logits() -> None:
    model = loaded("llama")
    params = SamplingParams(max_tokens=60, temperature=1.0, n=3, seed=3)
    positions, join = PositionStrategy.CONTINUE, Join.RECOMPUTE
    requests = [
        Request(prompt=p.prompt, params=params, positions=positions, join=join)
        for p in programs(model, 3, "moved llama")
    ]
    found = [one for samples in Recording(model).run(requests, preempt_every=7) for one in samples]
    assert all(one.num_preemptions > 3 for one in found)
    assert sum(one.response.trace.num_recomputed for one in found) > 0
    check(model, found)
    for seen in found:
        check_plain(model, seen, num_checked=5)


def test_a_pool_of_just_the_largest_need_is_enough() -> None:
    model = loaded("llama")
    (program,) = programs(model, 1, "tight", num_parts=16)
    request = recomputing(program)
    engine = TorchEngine(model, pool_tokens=request.max_entries, captures=False)
    ((answer,),) = engine.generate([request])
    assert answer.trace.num_recomputed
    smaller = TorchEngine(model, pool_tokens=request.max_entries // 2, captures=False)
    with pytest.raises(RequestError, match="twice with join"):
        smaller.submit(request)
