"""A stock server and the local engine decode the same tokens with the same model."""

from __future__ import annotations

from collections.abc import Sequence, Set
from threading import Lock

import torch

from pasta_lm.engines.completions import CompletionsEngine, ServedModel
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.engines.torch.engine import TorchEngine
from pasta_lm.engines.torch.loading import LoadedModel
from pasta_lm.engines.torch.naive import naive_logits
from pasta_lm.interpreter import Entries, Join, PositionStrategy
from pasta_lm.remote.streaming import StockServer
from pasta_lm.testing.stock_server import Draw, NextToken, StockTestServer
from tests.engines.torch.test_join import recomputing
from tests.engines.torch.test_oracle import programs
from tests.models import loaded
from tests.stock import engine_at, playing, tokens_by_thread

Fate = list[tuple[object, ...]]


def decoder(model: LoadedModel) -> NextToken:
    """Return greedy decoding by a plain causal pass over all ids."""
    lock = Lock()

    def next_token(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        with lock:
            (logits,) = naive_logits(model.model, Entries.of_prompt(ids), wanted=[len(ids) - 1])
        logits = logits.clone()  # it was made in inference mode
        # Rows beyond the tokenizer are no tokens.
        logits[model.vocabulary.num_tokens :] = -torch.inf
        logits[sorted(barred)] = -torch.inf
        return int(logits.argmax())

    return next_token


def test_a_random_model_decodes_the_same_tokens_here_and_there() -> None:
    model = loaded("llama")
    params = SamplingParams(max_tokens=50, max_tokens_per_thread=9)
    requests = [
        Request(
            prompt=program.prompt,
            params=params,
            positions=PositionStrategy.CONTINUE,
            join=Join.RECOMPUTE,
        )
        for program in programs(model, 10, "stock")
    ]
    here = TorchEngine(model, captures=False).generate(requests)
    with StockTestServer(decoder(model), min(model.eos_ids)) as server:
        there = CompletionsEngine(
            [StockServer(server.url)],
            ServedModel(model.vocabulary, model.eos_ids, max_position=model.max_position),
            checks=False,
        ).generate(requests)
    num_blocks = num_syncs = num_compared = 0
    for (local,), (remote,) in zip(here, there, strict=True):
        own, other = tokens_by_thread(local), tokens_by_thread(remote)
        for thread in own.keys() & other.keys():
            # A limit on all tokens cuts threads that have clocks of their own elsewhere.
            length = min(len(own[thread]), len(other[thread]))
            assert own[thread][:length] == other[thread][:length]
            num_compared += length
        if local.finish_reason == remote.finish_reason == "stop":
            assert own == other
        num_blocks += len(own.keys() & other.keys()) - 1
        num_syncs += min(len(local.trace.syncs), len(remote.trace.syncs))
    assert num_compared > 200
    assert num_blocks > 5
    assert num_syncs > 0


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
                prompt=program.prompt,
                params=SamplingParams(mask=False),
                positions=PositionStrategy.CONTINUE,
                join=Join.RECOMPUTE,
            )
            ((remote,),) = asking.generate([request])
        assert fate(remote) == fate(local)
        assert remote.document == local.document
        assert remote.trace.critical_path == local.trace.critical_path
        assert remote.trace.num_recomputed == local.trace.num_recomputed
