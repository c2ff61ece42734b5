"""``pasta bench load``: the same text under every load, and latencies that count from arrival."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pasta_lab.evaluate import continuous_batching
from pasta_lab.evaluate.continuous_batching import ContinuousBatching
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import PastaError, RequestError
from pasta_lm.measure.engine_load import LoadBenchmark, decode
from pasta_lm.models.encoded import EncodedDocument
from tests.architectures import loaded
from tests.cli.conftest import Pasta

RESPONSE = (
    'Two. <promise topic="a" tokens="1"/><async>One two three.</async> '
    '<promise topic="b" tokens="1"/><async>Six seven eight.</async><sync/> Done.'
)
ROW = {"id": "x", "messages": [{"role": "user", "content": "Count."}], "response": RESPONSE}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what passes cost be kept here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    file = tmp_path / "answers.jsonl"
    plain = {**ROW, "id": "y", "response": "No block at all."}
    file.write_text("".join(f"{json.dumps(row)}\n" for row in (ROW, plain)))
    return file


def test_both_strategies_decode_every_load(
    pasta: Pasta, answers: Path, taught_folder: Path
) -> None:
    flags = ("--model", taught_folder, "--requests", "1,5", "--json")
    result = pasta("bench", "load", answers, *flags)
    assert (result.code, result.err) == (0, "")
    found: dict[str, Any] = result.json
    assert (found["kind"], found["num_answers"], found["rate"]) == ("replayed", 1, None)
    assert [load["requests"] for load in found["loads"]] == [1, 5]
    for load in found["loads"]:
        for name in ("sequential", "pasta", "pasta, when it pays"):
            assert load[name]["tokens_per_s"] > 0
            latency = load[name]["latency_s"]
            assert latency["p50"] <= latency["p90"] <= latency["p99"] <= load[name]["wall_s"]
        assert load["speedup"] > 0
        assert load["speedup_when_it_pays"] > 0
        assert load["pasta"]["forward_passes"] < load["sequential"]["forward_passes"]
        peer = load["continuous-batching"]
        assert peer["tokens_per_s"] > 0
        assert peer["latency_s"]["p50"] <= peer["wall_s"]


def test_the_table_names_the_conditions(pasta: Pasta, answers: Path, untaught_folder: Path) -> None:
    flags = ("--model", untaught_folder, "--requests", "2", "--rate", "500", "--peers", "none")
    result = pasta("bench", "load", answers, *flags)
    assert (result.code, result.err) == (0, "")
    assert "2 sequential" in result.out
    assert "2 pasta" in result.out
    assert "2 pasta, when it pays" in result.out
    assert "continuous-batching" not in result.out
    assert "replayed: " in result.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--requests", "0"), "--requests must be numbers from 1"),
        (("--requests", "a"), "--requests is 'a', no list of numbers"),
        (("--rate", "0"), "--rate is 0.0, but must be above 0"),
        (("--peers", "vllm"), "unknown peer 'vllm'"),
    ],
)
def test_bad_settings_are_usage_errors(
    pasta: Pasta, answers: Path, taught_folder: Path, flags: tuple[str, ...], message: str
) -> None:
    result = pasta("bench", "load", answers, "--model", taught_folder, *flags)
    assert result.code == 2
    assert message in result.err


def test_a_model_that_the_peer_does_not_take_has_figures_all_the_same(
    pasta: Pasta, answers: Path, taught_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: object, pool_tokens: int) -> None:
        raise ValueError("no such attention")

    monkeypatch.setattr(continuous_batching, "opened", refuse)
    result = pasta("bench", "load", answers, "--model", taught_folder, "--requests", "1", "--json")
    assert result.code == 0
    (load,) = result.json["loads"]
    assert load["continuous-batching"] is None
    assert load["pasta"]["tokens_per_s"] > 0


def test_a_peer_that_fails_ends_the_benchmark_with_its_reason() -> None:
    class Failing:
        def add_request(self, prompt: list[int], **settings: object) -> str:
            return "req_0"

        def get_result(self, timeout: float) -> SimpleNamespace:
            return SimpleNamespace(error="no memory", request_id="req_0")

    with pytest.raises(PastaError, match="no memory"):
        ContinuousBatching(Failing()).decode([((1,), 2)], [0.0])


def test_a_peer_that_stopped_ends_the_benchmark() -> None:
    stopped = SimpleNamespace(
        add_request=lambda prompt, **settings: "req_0",
        get_result=lambda timeout: None,
        is_running=lambda: False,
    )
    with pytest.raises(PastaError, match="stopped"):
        ContinuousBatching(stopped).decode([((1,), 2)], [0.0])


def test_answers_without_two_blocks_are_refused(
    pasta: Pasta, taught_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "plain.jsonl"
    file.write_text(json.dumps({**ROW, "response": "No block."}))
    result = pasta("bench", "load", file, "--model", taught_folder)
    assert result.code == 2
    assert "no answer has two blocks" in result.err


def test_arrivals_are_those_of_the_rate_and_the_same_for_every_strategy() -> None:
    settings = LoadBenchmark(rate=4.0)
    arrivals = settings.arrivals(4001)
    assert arrivals == settings.arrivals(4001)
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0.0
    assert arrivals[-1] / 4000 == pytest.approx(1 / 4.0, rel=0.05)
    assert LoadBenchmark(rate=inf).arrivals(3) == [0.0, 0.0, 0.0]


def test_a_latency_counts_from_the_arrival_and_not_from_the_start() -> None:
    engine = TorchEngine(loaded("llama"))
    forced = EncodedDocument(main=(10, 11, 12), blocks=())
    one = Request(prompt=(5, 6, 7), params=SamplingParams(max_tokens=4), forced=forced, forks=False)
    run = decode(engine, [one, one], [0.0, 0.25])
    assert run.num_tokens == 6
    assert run.wall_s - run.latency_s[1] >= 0.25
    assert run.wall_s >= run.latency_s[0]


def test_an_answer_that_a_limit_cuts_fails_the_load_and_frees_the_engine() -> None:
    engine = TorchEngine(loaded("llama"))
    one = Request(prompt=(5, 6, 7), params=SamplingParams(max_tokens=2, ignore_eos=True))
    with pytest.raises(RequestError, match="positions beyond"):
        decode(engine, [one, one], [0.0, 0.0])
    assert not engine.has_work
    assert engine.pool.num_free_pages == engine.pool.num_pages
