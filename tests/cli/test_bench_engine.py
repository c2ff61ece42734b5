"""``pasta bench engine``: the documented figures, of what was asked for, from real passes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pasta_lab.evaluate import llama_cpp
from pasta_lm.engines.local import timing
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.measure import engine_speed
from tests.architectures import loaded
from tests.cli.conftest import Pasta

KEYS = {"kind", "model", "dtype", "machine", "step_ms", "sequential_tokens_per_s"}
KEYS |= {"bandwidth_share", "peers"}
ROW = {
    "id": "x",
    "messages": [{"role": "user", "content": "Count."}],
    "response": 'Two. <promise topic="a" tokens="1"/><async>One two.</async> '
    '<promise topic="b" tokens="1"/><async>Six seven.</async><sync/> Done.',
}


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_speed, "NUM_ROUNDS", 1)
    monkeypatch.setattr(timing, "NUM_STEADY", 4)


def test_json_has_the_documented_figures(pasta: Pasta, taught_folder: Path) -> None:
    flags = ("--rows", "1,3", "--context", "16,32", "--peers", "generate", "--json")
    result = pasta("bench", "engine", "--model", taught_folder, *flags)
    assert (result.code, result.err) == (0, "")
    found = result.json
    assert set(found) >= KEYS
    assert (found["kind"], found["dtype"]) == ("replayed", "float32")
    assert set(found["step_ms"]) == {"1", "3"}
    assert set(found["contexts"]) == {"16", "32"}
    assert found["contexts"]["16"] == found["step_ms"]
    assert found["peers"]["generate"]["tokens_per_s"] > 0
    assert found["peers"]["llama.cpp"] is None
    assert found["machine"]["cpu"]


def test_the_table_names_the_figures_and_the_machine(pasta: Pasta, untaught_folder: Path) -> None:
    flags = ("--rows", "2", "--context", "16", "--peers", "none")
    result = pasta("bench", "engine", "--model", untaught_folder, *flags)
    assert (result.code, result.err) == (0, "")
    for part in ("16 tokens, 2 rows", "share of the bandwidth limit", "float32 on cpu"):
        assert part in result.out


def test_annotated_answers_are_replayed_for_the_efficiency(
    pasta: Pasta, taught_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(f"{json.dumps(ROW)}\n")
    flags = ("--rows", "1", "--context", "16", "--peers", "none", "--answers", file, "--json")
    result = pasta("bench", "engine", "--model", taught_folder, *flags)
    assert result.json["replayed"]["multi_block"]["num_documents"] == 1
    assert result.json["replayed"]["efficiency"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rows", "0"), "--rows must be numbers from 1 to 64"),
        (("--rows", "one"), "--rows is 'one', no list of numbers"),
        (("--context", "-4"), "--context must be numbers of tokens"),
        (("--context", "100000"), "positions up to"),
        (("--peers", "vllm"), "unknown peer 'vllm'"),
    ],
)
def test_bad_settings_are_usage_errors(
    pasta: Pasta, taught_folder: Path, flags: tuple[str, ...], message: str
) -> None:
    result = pasta("bench", "engine", "--model", taught_folder, *flags)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_every_timed_pass_feeds_one_token_of_each_thread(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded("llama")
    engine = TorchEngine(model, pool_tokens=timing.num_entries(num_rows, 16))
    sizes: list[int] = []
    run = engine._runner.run

    def counted(batch: object) -> torch.Tensor:
        sizes.append(len(batch.tokens))  # type: ignore[attr-defined]
        return run(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_runner", SimpleNamespace(run=counted))
    assert timing.step_s(engine, num_rows, 16) > 0
    first = 8 if num_rows == 1 else 3 * num_rows + 4
    # Pass 0 is the prefill, whose end is not among the steps.
    assert set(sizes[1:][first : first + timing.NUM_STEADY]) == {num_rows}


def test_an_untied_input_matrix_is_not_read_in_a_pass_of_one_row() -> None:
    model = loaded("llama")
    whole = sum(one.numel() * one.element_size() for one in model.model.parameters())
    inputs = model.model.get_input_embeddings().weight
    outputs = model.model.get_output_embeddings().weight
    is_tied = inputs.data_ptr() == outputs.data_ptr()
    left_out = 0 if is_tied else inputs.numel() * inputs.element_size()
    assert timing.read_bytes(model) == whole - left_out


def test_generate_leaves_the_model_with_our_attention() -> None:
    model = loaded("llama")
    before = timing.sequential_s(TorchEngine(model), 8, 4)
    assert timing.generate_s(model, 8, 4) > 0
    assert model.model.config._attn_implementation == "pasta"
    assert before > 0


@pytest.mark.skipif(llama_cpp.is_installed(), reason="llama.cpp is installed")
def test_a_peer_that_is_not_installed_is_null_and_no_model_is_written(
    pasta: Pasta, taught_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("no file is needed")

    monkeypatch.setattr("pasta_lm.models.export.gguf_file.export_gguf", fail)
    flags = ("--rows", "1", "--context", "16", "--peers", "llama.cpp", "--json")
    result = pasta("bench", "engine", "--model", taught_folder, *flags)
    assert result.json["peers"] == {"generate": None, "llama.cpp": None}
