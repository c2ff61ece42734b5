"""A stock server and the local engine decode the same tokens with the same model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from threading import Lock

import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.passes.sampling import Choice, TokenMasks, choose, uniform_number
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.engines.servers.cluster import StockServer
from pasta_lm.engines.servers.completions import CompletionsEngine, ServedModel
from pasta_lm.engines.servers.streamed_response import seed_of
from pasta_lm.interpreter.interpreter import EVERYTHING
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.parser import Form
from tests.architectures import build, loaded
from tests.engines.local.test_oracle import programs, recomputing
from tests.fakes.stock_server import Draw, NextToken, StockTestServer
from tests.programs import words_of
from tests.stock import engine_at, playing, tokens_by_thread

Fate = list[tuple[object, ...]]


@dataclass(frozen=True)
class Kind:
    """A way to ask, and what must have happened among many answers."""

    request: Callable[[Sequence[int], SamplingParams], Request]
    num_blocks: float = 0  # a program, at least
    num_syncs: float = 0


def asking(join: Join, **changes: object) -> Callable[[Sequence[int], SamplingParams], Request]:
    def request(prompt: Sequence[int], params: SamplingParams) -> Request:
        plain = PositionStrategy.CONTINUE
        return replace(
            Request(prompt=prompt, params=params, positions=plain, join=join),
            **changes,  # type: ignore[arg-type]
        )

    return request


KINDS = {
    "recompute": Kind(asking(Join.RECOMPUTE), num_blocks=0.3, num_syncs=0.01),
    "shared, no syncs": Kind(asking(Join.SHARED, form=Form.FORKED), num_blocks=0.3),
    "one thread": Kind(asking(Join.SHARED, forks=False)),
}
GREEDY = SamplingParams(max_tokens_per_thread=9, max_blocks=3)
# Sampled without the mask: with it, an illegal token is drawn again, which is the same distribution
# and another random number.
SAMPLED = replace(GREEDY, temperature=0.8, top_p=0.95, top_k=60, mask=False, n=2)
NUM_ENDS = 40
MOST_BLOCKS, MOST_TOKENS = 40, 100  # whose seeds are known


def ending(model: LoadedModel) -> LoadedModel:
    """Return a random model for which some ordinary tokens are ends, so that its answers end."""
    rng = random.Random("ends")
    return replace(
        model, eos_ids={*model.eos_ids, *rng.sample(words_of(model.vocabulary).text, NUM_ENDS)}
    )


def decoder(model: LoadedModel, requests: Sequence[Request]) -> NextToken:
    """Return what decodes by a plain causal pass over all ids, and draws as the local engine."""
    lock, plain = Lock(), build("llama")  # the same weights with the attention of transformers
    masks = TokenMasks(model.vocabulary, model.eos_ids, model.vocab_size, torch.device("cpu"))
    keys = {
        seed_of(*key): key
        for request in (one for one in requests if one.params.temperature > 0)
        for sample in range(request.params.n)
        for path in ((), *((child,) for child in range(MOST_BLOCKS)))
        for index in range(MOST_TOKENS)
        if (key := (request.params.seed or 0, sample, path, index))
    }

    def next_token(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        number = 0.0
        if draw.temperature > 0:
            seed, sample, path, index = keys[draw.seed]
            number = uniform_number(seed, sample, path, index + draw.index)
        params = SamplingParams(temperature=draw.temperature, top_p=draw.top_p, top_k=draw.top_k)
        with lock, torch.inference_mode():
            scores = plain(input_ids=torch.tensor([ids])).logits[0, -1].clone()
            scores[sorted(barred)] = -torch.inf
            scores[sorted(draw.favoured)] += 100
            (token,) = choose(scores[None], [Choice(params, EVERYTHING, number)], masks)
        return token

    return next_token


FEW = (5, 100)
MANY = pytest.param((120, 24), marks=pytest.mark.slow)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("size", [FEW, MANY], ids=["few", "many"])
def test_a_random_model_decodes_the_same_tokens_here_and_there(
    size: tuple[int, int], kind: Kind, params: SamplingParams
) -> None:
    num_programs, max_tokens = size
    model = ending(loaded("llama"))
    requests = [
        kind.request(program.prompt, replace(params, seed=seed, max_tokens=max_tokens))
        for seed, program in enumerate(programs(model, num_programs, "stock"))
    ]
    here = TorchEngine(model, captures=False).generate(requests)
    with StockTestServer(decoder(model, requests), model.eos_ids) as server:
        there = CompletionsEngine(
            [StockServer(server.url)],
            ServedModel(model.vocabulary, model.eos_ids, max_position=model.max_position),
            checks=False,
        ).generate(requests)
    pairs = [
        pair for samples in zip(here, there, strict=True) for pair in zip(*samples, strict=True)
    ]
    for local, remote in pairs:
        own, other = tokens_by_thread(local), tokens_by_thread(remote)
        if local.finish_reason == remote.finish_reason == "stop":
            assert own == other
            assert local.document == remote.document
            assert local.trace.num_recomputed == remote.trace.num_recomputed
        for thread in own.keys() & other.keys():
            # A limit on all tokens cuts threads that have clocks of their own elsewhere.
            length = min(len(own[thread]), len(other[thread]))
            assert own[thread][:length] == other[thread][:length]
    answers = [local for local, _ in pairs]
    assert sum(answer.finish_reason == "stop" for answer in answers) > 0
    num_tokens = sum(len(answer.trace.tokens) for answer in answers)
    assert num_tokens > 10 * num_programs
    assert sum(len(one.trace.threads) - 1 for one in answers) >= kind.num_blocks * num_programs
    assert sum(len(one.trace.syncs) for one in answers) >= kind.num_syncs * num_programs


def fate(answer: Answer) -> Fate:
    """Return where each token came from and was fed; of the last ``</async>`` it may differ."""
    return sorted(
        (token.thread, token.position, token.token, token.depth, token.fed_step, token.decoded_step)
        for token in answer.trace.tokens
        if token.position is not None and token.text
    )


def test_a_given_answer_has_the_same_places_depths_and_steps_here_and_there() -> None:
    model = loaded("llama")
    eos_id = min(model.eos_ids)
    given = programs(model, 8, "places")
    here = TorchEngine(model, captures=False).generate([recomputing(one) for one in given])
    for program, (local,) in zip(given, here, strict=True):
        play = playing(model.vocabulary, eos_id, (program.prompt, program.answer))
        with StockTestServer(play, eos_id) as server:
            asking = engine_at(server, vocabulary=model.vocabulary, eos_id=eos_id)
            request = Request(
                prompt=program.prompt, params=SamplingParams(mask=False),
                positions=PositionStrategy.CONTINUE, join=Join.RECOMPUTE,
            )  # fmt: skip
            ((remote,),) = asking.generate([request])
        assert fate(remote) == fate(local)
        assert remote.document == local.document
        assert remote.trace.critical_path == local.trace.critical_path
        assert remote.trace.num_recomputed == local.trace.num_recomputed
