"""The benchmark times passes in which all threads decode, and the same text under load."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import RequestError
from pasta_lm.measure import bench
from tests.architectures import loaded


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NUM_STEADY", 4)
    monkeypatch.setattr(bench, "NUM_CONTEXT", 16)


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_every_timed_pass_feeds_one_token_of_each_thread(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded("llama")
    engine = TorchEngine(model, pool_tokens=4096)
    sizes: list[int] = []
    run = engine.runner.run

    def counted(batch: object) -> torch.Tensor:
        sizes.append(len(batch.tokens))  # type: ignore[attr-defined]
        return run(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "runner", SimpleNamespace(run=counted))
    assert bench.step_s(engine, num_rows) > 0
    first = 8 if num_rows == 1 else 3 * num_rows + 4
    # Pass 0 is the prefill, whose end is not among the steps.
    assert set(sizes[1:][first : first + bench.NUM_STEADY]) == {num_rows}


def test_an_untied_input_matrix_is_not_read_in_a_pass_of_one_row() -> None:
    model = loaded("llama")
    whole = sum(one.numel() * one.element_size() for one in model.model.parameters())
    inputs = model.model.get_input_embeddings().weight
    outputs = model.model.get_output_embeddings().weight
    is_tied = inputs.data_ptr() == outputs.data_ptr()
    left_out = 0 if is_tied else inputs.numel() * inputs.element_size()
    assert bench.read_bytes(model) == whole - left_out


def test_an_answer_that_a_limit_cuts_fails_the_load_and_frees_the_engine() -> None:
    engine = TorchEngine(loaded("llama"))
    one = Request(prompt=(5, 6, 7), params=SamplingParams(max_tokens=2, ignore_eos=True))
    with pytest.raises(RequestError, match="positions beyond"):
        bench.latencies_s(engine, [one, one])
    assert not engine.has_work
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_reading_waits_for_the_gpu_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, ones = set[torch.device](), torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))
    monkeypatch.setattr(torch.cuda, "synchronize", waited.add)
    assert bench.reading_s(1 << 16, torch.device("cuda:1")) > 0
    assert waited == {torch.device("cuda:1")}
