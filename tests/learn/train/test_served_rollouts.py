"""Rollouts on stock servers: the samples of the local engine, and servers with an old model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pasta_lm.errors import UsageError
from pasta_lm.learn.data.preferences import PromptWithReference, Rollout, Sampling, roll_out
from pasta_lm.learn.train.preference import Round, check_newest
from pasta_lm.models.folder import FILE_NAME
from pasta_lm.strategies.model import Pasta, Servers
from tests.learn.train.preferences import save_tiny
from tests.stock_model import serving

PROMPTS = [PromptWithReference(f"q{number}", f"Question {number}?") for number in range(3)]
# Nearly greedy: then a token that is asked for again is the one that the local engine draws.
SAMPLING = Sampling(model="m", baseline="b", samples=2, temperature=1e-4, max_tokens=30, seed=3)


def sampled(path: Path, model: Pasta, baseline: Pasta) -> list[Rollout]:
    models = (model, baseline)
    return roll_out(path, PROMPTS, SAMPLING, lambda: models, lambda *_: None)


def test_servers_give_the_rollouts_of_the_local_engine(tmp_path: Path) -> None:
    folder = Path(save_tiny(tmp_path / "model"))
    config = json.loads((folder / FILE_NAME).read_text())
    exact = {**config, "positions": "continue", "join": "recompute"}
    (folder / FILE_NAME).write_text(json.dumps(exact))
    local = Pasta.from_pretrained(folder, dtype="float32", pool_tokens=8192)
    here = sampled(tmp_path / "here.jsonl", local, local)
    with serving(folder) as server:
        served = Servers(addresses=server.url, allow_inexact=True).holding(folder)
        there = sampled(tmp_path / "there.jsonl", served, local)
    num_compared = 0
    for one, other in zip(here, there, strict=True):
        assert one.baseline.text == other.baseline.text
        for ours, theirs in zip(one.samples, other.samples, strict=True):
            assert ours.finish_reason == theirs.finish_reason
            if ours.finish_reason == "stop":  # else threads of other clocks are cut elsewhere
                assert ours.program == theirs.program
                assert ours.critical_path == theirs.critical_path
                num_compared += 1
    assert num_compared > 0


def round_of(number: int) -> Round:
    return Round(number, Path("out"), "runs/out/round-1/model")


def test_from_the_second_round_on_servers_must_name_the_newest_model() -> None:
    old, new = ("base", "/models/base"), ("tuned", "/elsewhere/out/round-1/model")
    check_newest(round_of(1), {"http://a": old})
    check_newest(round_of(2), {"http://a": new, "http://b": new})
    with pytest.raises(UsageError, match="http://b serves base") as caught:
        check_newest(round_of(2), {"http://a": new, "http://b": old})
    assert "--resume" in (caught.value.hint or "")
