"""Weights in int8 stand for a model of float32, and the engine computes with that model."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pasta_lm.engines.capture.tracing import capture
from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.int8 import MAX_INT8, dequantise, quantise, round_weights
from pasta_lm.engines.cpu.kernels import join
from pasta_lm.engines.local import loading
from pasta_lm.engines.local.loading import LoadedModel, load, with_pieces
from pasta_lm.engines.passes.attention import NAME, register
from pasta_lm.engines.passes.runner import KeyRecorder, plain_logits
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from tests import architectures
from tests.architectures import ARCHITECTURES, build, each_of
from tests.engines.local.test_capture import UNCAPTURED
from tests.engines.local.test_oracle import check, programs
from tests.engines.local.test_oracle import replay as replayed
from tests.fakes.recording_engine import Recording

needs_compiler = pytest.mark.skipif(library.functions() is None, reason="no C compiler")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**31), st.floats(1e-30, 1e30), st.integers(1, 9), st.integers(1, 40))
def test_quantising_again_changes_no_bit(seed: int, size: float, outputs: int, inputs: int) -> None:
    weight = random(outputs, inputs, seed=seed) * size
    codes, scales = quantise(weight)
    rounded = dequantise(codes, scales)
    again, same_scales = quantise(rounded)
    assert torch.equal(codes, again)
    assert torch.equal(scales, same_scales)


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 40))
def test_a_weight_moves_by_half_a_step_at_most(seed: int, outputs: int, inputs: int) -> None:
    weight = random(outputs, inputs, seed=seed)
    codes, scales = quantise(weight)
    moved = (dequantise(codes, scales) - weight).abs()
    assert (moved <= 0.501 * scales[:, None]).all()
    assert (codes.abs().amax(dim=1) == MAX_INT8).all()


def test_an_output_of_zeros_stays_zero() -> None:
    codes, scales = quantise(torch.zeros(2, 3))
    assert not codes.any()
    assert not scales.any()


@each_of(name for name in ARCHITECTURES if name not in UNCAPTURED)
def test_the_engine_has_the_logits_of_the_rounded_model(name: str) -> None:
    model = build(name)
    register()
    model.eval().set_attn_implementation(NAME)
    expected_model = copy.deepcopy(model)
    for module in expected_model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data.copy_(dequantise(*quantise(module.weight.data)))
    round_weights(model)
    captured = capture(model)
    assert captured is not None
    for num_tokens in (1, 2, 5, 24):
        tokens = torch.arange(num_tokens, device=model.device) % 40
        wanted = torch.arange(0, num_tokens, 2, device=model.device)
        inputs = tokens, tokens + 3, wanted
        with torch.inference_mode():
            expected = plain_logits(expected_model, *inputs, KeyRecorder())
            found = captured(*inputs, KeyRecorder())
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


@needs_compiler
@pytest.mark.parametrize("num_rows", [1, 3, 8, 16, 40])
def test_a_layer_computes_with_the_weights_that_its_codes_stand_for(num_rows: int) -> None:
    weight = dequantise(*quantise(random(50, 96, seed=1)))
    codes, scales = quantise(weight)
    layer = join([nn.Parameter(codes, requires_grad=False)], [random(50, seed=2)], [scales])
    x = random(1, num_rows, 96)
    exact = x.double() @ weight.double().t() + random(50, seed=2).double()
    assert layer.scales is not None
    torch.testing.assert_close(layer(x).double(), exact, atol=1e-4, rtol=1e-5)


@cache
def rounded(name: str) -> LoadedModel:
    model = build(name)
    round_weights(model)
    return replace(architectures.load(name, model), is_int8=True)


@pytest.mark.parametrize("name", ["wide_llama", "gemma2"])
@pytest.mark.parametrize("strategy", list(PositionStrategy))
def test_a_program_meets_the_logits_of_one_masked_pass_of_the_rounded_model(
    name: str, strategy: PositionStrategy
) -> None:
    model = rounded(name)
    for program in programs(model, 2, f"int8 {name} {strategy}"):
        ((seen,),) = Recording(model).run([replayed(program, strategy)])
        check(model, [seen])


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    from tests.gguf_file import write_gguf  # needs gguf, which the tests that need a GPU do not

    write_gguf(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def head_of(loaded: LoadedModel) -> Tensor:
    head: Tensor = loaded.model.get_output_embeddings().weight
    return head


def test_a_model_is_loaded_with_weights_in_int8_and_new_rows_are_rounded_too(gguf: Path) -> None:
    loaded = load(gguf, dtype="int8", device="cpu")
    assert (loaded.dtype_name, loaded.dtype) == ("int8", torch.float32)
    head = head_of(loaded)
    assert torch.equal(head, dequantise(*quantise(head)))
    assert not torch.equal(head, head_of(load(gguf, device="cpu")))
    num_rows, grown = len(head), with_pieces(loaded)
    rows = head_of(grown)
    assert len(rows) > num_rows
    assert grown.dtype_name == "int8"
    assert torch.equal(rows, dequantise(*quantise(rows)))


def test_a_gpu_does_not_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.devices, "usable_device", lambda name: torch.device("cuda"))
    with pytest.raises(UsageError, match="int8 weights are read by a CPU only"):
        load("builtin", dtype="int8")


@pytest.mark.parametrize("dtype", ["float8", "int4", "torch.float32"])
def test_an_unknown_dtype_names_the_known_ones(dtype: str) -> None:
    with pytest.raises(UsageError) as caught:
        load("builtin", dtype=dtype, device="cpu")
    assert "int8" in str(caught.value.hint)
