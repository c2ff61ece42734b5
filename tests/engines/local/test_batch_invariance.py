"""Company does not change tokens; without tags the engine decodes as transformers does.

Tokens are compared by the policy of the language's rules for floating point: equal up to a choice
that the run alone made with a margin under 1e-3, and logits within 1e-4 up to there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from tests.architectures import ARCHITECTURES, every_architecture, loaded, own_attention
from tests.fakes.recording_engine import MARGIN, TOLERANCE, Recorded, Recording, is_tied

PROMPTS = ["the dog", "Name three tips and write a short list", "a", "go on, in parallel"]
WAYS = [
    SamplingParams(max_tokens=40),
    SamplingParams(max_tokens=40, temperature=1.0, seed=5),
    SamplingParams(max_tokens=40, temperature=1.0, seed=6, max_threads=2),
    SamplingParams(max_tokens=40, temperature=0.7, top_p=0.9, top_k=50, seed=7),
    SamplingParams(max_tokens=40, repetition_penalty=1.3),
    SamplingParams(max_tokens=40, temperature=1.0, seed=8, mask=False),
]
STRATEGIES = [PositionStrategy.PREDICT, PositionStrategy.CONTINUE]


def requests_for(model: LoadedModel, offset: int) -> list[Request]:
    """Return nine requests, no two alike, another choice of ways for every offset."""
    found = []
    for index in range(9):
        prompt = model.vocabulary.encode_prompt(PROMPTS[(index + offset) % len(PROMPTS)])
        params, positions = WAYS[(index + offset) % len(WAYS)], STRATEGIES[index % 2]
        found.append(Request(prompt=prompt, params=params, positions=positions))
    return found


def ties(model: LoadedModel, alone: list[Recorded], others: list[Recorded]) -> int:
    masks = Recording(model).engine.masks
    return sum(is_tied(one, other, masks) for one, other in zip(alone, others, strict=True))


@every_architecture
def test_a_response_among_eight_others_has_the_tokens_that_it_has_alone(name: str) -> None:
    model = loaded(name)
    requests = requests_for(model, list(ARCHITECTURES).index(name))
    alone = [Recording(model).run([request])[0][0] for request in requests[:4]]
    together = [seen for (seen,) in Recording(model).run(requests)]
    assert any(seen.response.interpreter.threads[1:] for seen in alone)
    assert ties(model, alone, together[:4]) <= 1


def test_ties_are_rare_over_many_responses() -> None:
    model = loaded("llama")
    params = [
        SamplingParams(max_tokens=24, temperature=t, seed=s) for s in range(18) for t in (0, 1)
    ]
    prompts = [model.vocabulary.encode_prompt(f"{n} tips") for n in range(len(params))]
    requests = [Request(prompt=p, params=q) for p, q in zip(prompts, params, strict=True)]
    alone = [Recording(model).run([request])[0][0] for request in requests]
    together = [seen for (seen,) in Recording(model).run(requests)]
    assert ties(model, alone, together) <= 0.01 * len(requests)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_samples_are_the_same_whichever_others_are_asked_for(name: str) -> None:
    model = loaded(name)
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=11)
    prompt = model.vocabulary.encode_prompt("three")
    (many,) = Recording(model).run([Request(prompt=prompt, params=replace(params, n=4))])
    (few,) = Recording(model).run([Request(prompt=prompt, params=replace(params, n=2))])
    assert ties(model, few, many[:2]) == 0
    texts = [seen.answer.text for seen in many if seen.answer]
    assert len(set(texts)) == 4, "samples differ from one another"


@pytest.mark.parametrize("settings", [{"max_batch_tokens": 5}, {"captures": False}])
def test_chunks_of_a_prompt_and_the_way_of_running_change_nothing(settings: dict[str, int]) -> None:
    model = loaded("qwen2")
    requests = requests_for(model, 1)[:4]
    alone = [Recording(model).run([request])[0][0] for request in requests]
    others = [seen for (seen,) in Recording(model, **settings).run(requests)]
    assert ties(model, alone, others) == 0


@every_architecture
def test_without_tags_tokens_are_those_of_generate(name: str) -> None:
    model = loaded(name)
    ids = range(model.vocab_size)
    ordinary = set(range(model.vocabulary.num_tokens)) - set(model.vocabulary.piece_ids.values())
    prompt = model.vocabulary.encode_prompt(PROMPTS[1])
    params = SamplingParams(max_tokens=24)
    ((seen,),) = Recording(model).run([Request(prompt=prompt, params=params, forks=False)])
    with own_attention(model):
        generated = model.model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=24, do_sample=False, suppress_tokens=sorted(set(ids) - ordinary),
            pad_token_id=0, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    tokens = generated.sequences[0, len(prompt) :].tolist()
    for step, token, logits in zip(seen.steps(), tokens, generated.logits, strict=True):
        assert (step.logits_V - logits[0]).abs().max() <= TOLERANCE
        chosen = model.model.generation_config.eos_token_id if step.token is None else step.token
        if token != chosen:
            best = logits[0, sorted(ordinary)].topk(2).values
            assert best[0] - best[1] < MARGIN
            break
    assert seen.answer is not None
    assert len(seen.answer.trace.threads) == 1
    assert seen.answer.trace.critical_path == seen.answer.trace.forward_passes
