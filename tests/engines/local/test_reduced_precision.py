"""bfloat16: the fast path against the oracle, and its error against that of the model itself."""

from __future__ import annotations

import copy
import random
from functools import cache

import pytest
import torch

from pasta_lm.engines.cpu import library
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.machine import has_amx
from tests.architectures import build, load, loaded, own_attention
from tests.engines.local.naive import naive_logits
from tests.engines.local.test_oracle import programs, replay
from tests.fakes.recording_engine import Recorded, Recording
from tests.programs import random_program

NAMES = ["llama", "mistral", "gemma2", "gemma3", "smollm3", "cohere2"]
architectures = pytest.mark.parametrize("name", NAMES)


@cache
def halved(name: str) -> LoadedModel:
    return load(name, copy.deepcopy(build(name)).bfloat16())


@cache
def seen_by(name: str) -> list[Recorded]:
    model = halved(name)
    pairs = zip(programs(model, 3, name), PositionStrategy, strict=True)
    requests = [replay(program, strategy) for program, strategy in pairs]
    return [seen for (seen,) in Recording(model).run(requests)]


def errors(name: str, seen: Recorded) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the logits met, those of the oracle in bfloat16, and those in float32."""
    half, whole = halved(name), loaded(name)
    expected = naive_logits(half.model, seen.entries)[seen.slots]
    exact = naive_logits(whole.model, seen.entries)[seen.slots]
    return torch.stack(seen.logits), expected, exact


@architectures
def test_the_fast_path_is_as_near_to_the_oracle_as_bfloat16_allows(name: str) -> None:
    for seen in seen_by(name):
        found, expected, exact = errors(name, seen)
        assert torch.isfinite(found).all()
        noise = (expected - exact).square().mean().sqrt()
        assert (found - expected).square().mean().sqrt() <= 1.5 * noise


@architectures
def test_its_error_is_at_most_half_more_than_that_of_the_models_own_attention(name: str) -> None:
    half, whole = halved(name), loaded(name)
    prompt = random_program(random.Random(f"plain {name}"), half.vocabulary).prompt
    params = SamplingParams(max_tokens=64, temperature=1.0, ignore_eos=True)
    requests = [Request(prompt=prompt, params=params, forks=False)]
    ((seen,),) = Recording(half).run(requests)
    tokens = torch.tensor([[entry.token for entry in seen.entries.items]])
    with own_attention(half), own_attention(whole), torch.inference_mode():
        own = half.model(tokens, use_cache=False).logits[0, seen.slots].float()
        exact = whole.model(tokens, use_cache=False).logits[0, seen.slots]
    ours = (torch.stack(seen.logits) - exact).square().mean().sqrt()
    assert ours <= 1.5 * (own - exact).square().mean().sqrt()


def test_a_bfloat16_model_keeps_bfloat16_keys_and_gives_float32_logits() -> None:
    recording = Recording(halved("llama"))
    assert {memory.dtype for memory in recording.engine.pool.keys} == {torch.bfloat16}
    request = Request(prompt=[5, 6], params=SamplingParams(max_tokens=3))
    ((seen,),) = recording.run([request])
    assert {row.dtype for row in seen.logits} == {torch.float32}


@pytest.mark.skipif(library.functions() is None or has_amx(), reason="products of torch")
@pytest.mark.parametrize("settings", [{}, {"max_batch_tokens": 7}, {"shares_prefixes": True}])
def test_company_chunks_and_cached_beginnings_change_no_bit_of_compiled_passes(
    settings: dict[str, int],
) -> None:
    model = halved("wide_llama")
    beginning = [*range(5, 45)]
    requests = [
        Request(prompt=[*beginning, *range(5, 9 + 5 * n)], params=params)
        for n in range(8)
        for params in [SamplingParams(max_tokens=40, temperature=n % 2, seed=n)]
    ]
    alone = [Recording(model).run([request])[0][0] for request in requests]
    together = Recording(model, **settings)
    for _ in range(2):  # the second time behind what the first has cached
        for seen, (other,) in zip(alone, together.run(requests), strict=True):
            for step, again in zip(seen.steps(), other.steps(), strict=True):
                assert step.token == again.token
                assert torch.equal(step.logits_V, again.logits_V)
