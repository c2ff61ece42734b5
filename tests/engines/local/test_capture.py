"""A captured pass is the model's own pass, with fewer and larger operations."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedModel

from pasta_lm.engines.capture.tracing import CapturedModel, capture
from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.kernels import Linear, RmsNorm
from pasta_lm.engines.passes.attention import NAME, register
from pasta_lm.engines.passes.runner import KeyRecorder, plain_logits
from pasta_lm.engines.passes.self_test import tiny_model
from tests.architectures import ARCHITECTURES, build, each_of, loaded


def random_pass(num_tokens: int, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randint(vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(3))
    return tokens, 2 * torch.arange(num_tokens) + 3, torch.arange(num_tokens)


def attending(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    register()
    model = build(name).to(dtype)
    model.set_attn_implementation(NAME)
    return model


def capture_of(
    name: str, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, CapturedModel]:
    model = attending(name, dtype)
    captured = capture(model)
    assert captured is not None
    return model, captured


def linears(captured: CapturedModel) -> list[Linear]:
    targets = [node.target for node in captured.graph.graph.nodes]
    return [target for target in targets if isinstance(target, Linear)]


def test_a_model_that_cannot_be_traced_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    register()
    model = tiny_model(MixtralConfig())
    model.set_attn_implementation(NAME)
    assert capture(model) is None
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


UNCAPTURED = {"gpt_oss"}  # its experts are chosen by what the tokens are: no list of operations


@each_of(name for name in ARCHITECTURES if name not in UNCAPTURED)
def test_every_architecture_is_captured_and_gives_its_own_logits(name: str) -> None:
    model = loaded(name)
    captured = model.fast_logits
    assert captured is not None, "it fell back to its modules"
    for num_tokens in (1, 3, 17, 60, 61, 70):  # 61 stood for "as many as there are" in the trace
        inputs = random_pass(num_tokens, 200)
        with torch.inference_mode():
            found = captured(*inputs, KeyRecorder())
            expected = plain_logits(model.model, *inputs, KeyRecorder())
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


def test_a_norm_of_a_bfloat16_model_is_computed_without_casts() -> None:
    _, captured = capture_of("llama", torch.bfloat16)
    nodes = list(captured.graph.graph.nodes)
    norms = [node for node in nodes if isinstance(node.target, RmsNorm)]
    assert len(norms) == 3 * 2 + 1
    cast = torch.ops.aten._to_copy.default
    assert all(node.args[0].target is not cast for node in norms)
    assert all(user.target is not cast for node in norms for user in node.users)


def test_a_norm_rounds_as_casts_around_it_do() -> None:
    torch.manual_seed(0)
    x = (3 * torch.randn(50, 96)).bfloat16()
    norm = RmsNorm(1e-5, None)
    assert torch.equal(norm(x), norm(x.float()).bfloat16())


def test_the_captured_pass_is_short() -> None:
    captured = loaded("llama").fast_logits
    assert isinstance(captured, CapturedModel)
    targets = [node.target for node in captured.graph.graph.nodes]
    kinds = [type(target) for target in targets]
    # Queries, keys and values are one product, gate and up another: four a layer, and the head.
    assert kinds.count(Linear) == 3 * 4 + 1
    assert kinds.count(RmsNorm) == 3 * 2 + 1
    assert torch.ops.aten.mm.default not in targets
    assert torch.ops.aten.rsqrt.default not in targets


def test_a_large_model_runs_captured_on_its_weights_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pasta_lm.engines.capture.rewrite.MAX_COPIED_ELEMENTS", 10)
    model, captured = capture_of("llama")
    kernels_ = linears(captured)
    assert len(kernels_) == 3 * 7 + 1
    shared = {parameter.data_ptr() for parameter in model.parameters()}
    assert all(kernel.weight.data_ptr() in shared for kernel in kernels_)


@pytest.mark.parametrize("has_compiler", [True, False])
def test_parameters_become_views_of_the_kernels_layout_and_keep_their_values(
    has_compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_compiler:
        monkeypatch.setattr(library, "functions", lambda: None)
    model = attending("llama")
    inputs = random_pass(9, 200)
    with torch.inference_mode():
        expected = plain_logits(model, *inputs, KeyRecorder())
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    captured = capture(model)
    assert captured is not None
    kernels_ = linears(captured)
    layouts = {kernel.weight.untyped_storage().data_ptr() for kernel in kernels_}
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        if name.endswith("proj.weight"):
            assert parameter.untyped_storage().data_ptr() in layouts
    with torch.inference_mode():
        found = plain_logits(model, *inputs, KeyRecorder())
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])  # the second ties its head
def test_a_captured_model_can_be_saved_and_read_back(architecture: str, tmp_path: Path) -> None:
    register()
    model = build(architecture)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.set_attn_implementation(NAME)
    assert capture(model) is not None
    model.save_pretrained(tmp_path)
    found = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    assert found.keys() == before.keys()
    for name, weight in found.items():
        assert torch.equal(weight, before[name])


def test_a_capture_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attending("llama")
    monkeypatch.setattr("pasta_lm.engines.capture.patterns.sign_sin", lambda sin: sin)
    assert capture(model) is None


@pytest.mark.parametrize("has_weight", [False, True])
def test_the_norm_is_the_root_mean_square_norm(has_weight: bool) -> None:
    torch.manual_seed(0)
    x, weight = 3 * torch.randn(1, 5, 48) + 1, torch.randn(48)
    expected = x * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-6)
    found = RmsNorm(1e-6, weight if has_weight else None)(x)
    expected = expected * weight if has_weight else expected
    torch.testing.assert_close(found, expected.float(), atol=1e-5, rtol=1e-5)
