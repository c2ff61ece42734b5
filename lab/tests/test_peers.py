"""``pasta-lab peers``: a missing peer is null. The documented commands of the lab parse."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from pasta_lab import llama_cpp, peers
from pasta_lab.cli.app import app
from pasta_lm.measure import bench
from tests.architectures import loaded
from tests.test_docs import COMMANDS, parse_error


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NUM_ROUNDS", 1)
    monkeypatch.setattr(bench, "NUM_STEADY", 4)


@pytest.mark.skipif(llama_cpp.is_installed(), reason="llama.cpp is installed")
def test_a_peer_that_is_not_installed_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "export_gguf", lambda *_: pytest.fail("no file is needed"))
    monkeypatch.setattr(peers, "load", lambda *_, **__: loaded("llama"))
    settings = bench.BenchSettings(rows=(1,), requests=())
    _, found = peers.bench_with_peers("llama", None, None, 1, settings, lambda done, total: None)
    assert found["generate"]["tokens_per_s"] > 0
    assert found["llama.cpp"] is None


def test_generate_leaves_the_model_with_our_attention() -> None:
    model = loaded("llama")
    assert peers.generate_s(model) > 0
    assert model.model.config._attn_implementation == "pasta"


def test_the_verb_has_the_flags_of_the_benchmark() -> None:
    shown = CliRunner().invoke(app, ["peers", "--help"])
    for flag in ("--rows", "--requests", "--threads", "--dtype", "--json"):
        assert flag in shown.output


def test_documented_commands_of_the_laboratory_parse(capsys: pytest.CaptureFixture[str]) -> None:
    for command in {line for _, line in COMMANDS if line.startswith("pasta-lab ")}:
        assert not parse_error(command.partition(" #")[0].split()[1:], capsys, app), command
