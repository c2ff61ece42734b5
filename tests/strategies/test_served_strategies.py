"""Strategies besides pasta decode on a stock server what they decode locally."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pasta_lm.engines.request import SamplingParams
from pasta_lm.models.folder import FILE_NAME
from pasta_lm.strategies.model import Pasta, Servers
from tests.learn.train.preferences import save_tiny
from tests.stock import tokens_by_thread
from tests.stock_model import serving

PROMPTS = ("Name three rivers.", "How do I sleep better? Give tips.")
PARAMS = SamplingParams(max_tokens=60, max_tokens_per_thread=12)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pasta, Pasta]]:
    """Return a model in the local engine, and the same on a server."""
    folder = Path(save_tiny(tmp_path_factory.mktemp("models") / "model"))
    config = json.loads((folder / FILE_NAME).read_text())
    exact = {**config, "positions": "continue", "join": "recompute"}
    (folder / FILE_NAME).write_text(json.dumps(exact))
    with serving(folder) as server:
        served = Servers(addresses=server.url, allow_inexact=True).holding(folder)
        yield Pasta.from_pretrained(folder, pool_tokens=4096), served


@pytest.mark.parametrize("strategy", ["sequential", "prompt-lookup", "sot"])
def test_a_strategy_decodes_the_same_here_and_there(
    models: tuple[Pasta, Pasta], strategy: str
) -> None:
    ends = strategy == "sot"  # random weights end at once, and a skeleton goes on behind its end
    params = replace(PARAMS, ignore_eos=not ends)
    num_threads = 0
    for prompt in PROMPTS:
        one, other = (model.generate(prompt, params, strategy=strategy) for model in models)
        assert one.trace.strategy == other.trace.strategy
        assert one.finish_reason == other.finish_reason
        if one.finish_reason == "stop":
            assert one.program == other.program
        here, there = tokens_by_thread(one), tokens_by_thread(other)
        for thread in here.keys() & there.keys():
            # A limit on all tokens cuts threads that have clocks of their own elsewhere.
            length = min(len(here[thread]), len(there[thread]))
            assert here[thread][:length] == there[thread][:length]
            num_threads += length > 0
    assert num_threads > 0
    local, served = models
    assert local.strategies == served.strategies


def test_a_model_that_is_closed_gives_up_what_was_submitted(models: tuple[Pasta, Pasta]) -> None:
    for model in models:
        with model:
            model.engine.submit(model.request(PROMPTS[0], replace(PARAMS, ignore_eos=True)))
            assert model.engine.has_work
        assert not model.engine.has_work
