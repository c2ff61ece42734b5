"""``pasta-lab peers``: other engines beside ours; one that is missing or fails is null or named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from pasta_lab import peers
from pasta_lab.cli.app import app
from pasta_lab.evaluate import continuous_batching, llama_cpp
from pasta_lab.evaluate.continuous_batching import ContinuousBatching
from pasta_lm.errors import PastaError
from pasta_lm.measure import bench
from tests.architectures import loaded


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NUM_ROUNDS", 1)
    monkeypatch.setattr(bench, "NUM_STEADY", 4)


@pytest.mark.skipif(llama_cpp.is_installed(), reason="llama.cpp is installed")
def test_a_peer_that_is_not_installed_is_null(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "export_gguf", lambda *_: pytest.fail("no file is needed"))
    monkeypatch.setattr(peers, "load", lambda *_, **__: loaded("llama"))
    settings = bench.BenchSettings(rows=(1,), requests=(2,))
    _, found = peers.bench_with_peers("llama", None, None, 1, settings, lambda done, total: None)
    assert found["generate"] is not None
    assert found["generate"]["tokens_per_s"] > 0
    assert found["llama.cpp"] is None
    assert found["continuous-batching"] is not None
    assert found["continuous-batching"]["load"]["2"] > 0


def test_a_model_that_the_peer_does_not_take_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: object, pool_tokens: int) -> None:
        raise ValueError("no such attention")

    monkeypatch.setattr(continuous_batching, "opened", refuse)
    assert peers.batching_figures(loaded("llama"), [1]) is None


def test_generate_leaves_the_model_with_our_attention() -> None:
    model = loaded("llama")
    assert peers.generate_s(model) > 0
    assert model.model.config._attn_implementation == "pasta"


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


def test_the_verb_has_the_flags_of_the_benchmark() -> None:
    shown = CliRunner().invoke(app, ["peers", "--help"])
    for flag in ("--rows", "--requests", "--threads", "--dtype", "--json"):
        assert flag in shown.output
