"""Compiled products are those of the model's own operations, for any number of rows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pasta_lm.engines.capture.tracing import capture
from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.kernels import Gate, Linear, RmsNorm, join
from pasta_lm.engines.cpu.library import MAX_ROWS
from pasta_lm.engines.passes.attention import NAME, register
from tests.architectures import build
from tests.engines.local.test_capture import capture_of

needs_compiler = pytest.mark.skipif(library.functions() is None, reason="no C compiler")
DTYPES = [torch.float32, torch.bfloat16]
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}  # multiples of 32


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("has_compiler", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 4, 7, 8, 13, 15, 16, 17, 40])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_right(
    dtype: torch.dtype, num_rows: int, has_bias: bool, has_residual: bool, has_compiler: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not has_compiler:
        monkeypatch.setattr(library, "functions", lambda: None)
    x, weight = random(1, num_rows, 96, dtype=dtype), random(50, 96, dtype=dtype, seed=1)
    bias = random(30, dtype=dtype, seed=2) if has_bias else None
    residual = random(1, num_rows, 50, dtype=dtype, seed=3) if has_residual else None
    exact = x.double() @ weight.double().t()
    if bias is not None:
        exact[..., :30] += bias
    exact = exact if residual is None else exact + residual.double()
    found = join([*weight.split([30, 20])], [bias, None])(x, residual)
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(found.double(), exact, atol=16 * tolerance, rtol=tolerance)


@needs_compiler
@pytest.mark.parametrize("before", [None, RmsNorm(1e-5, None), Gate("silu")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_among_others(
    dtype: torch.dtype, before: RmsNorm | Gate | None
) -> None:
    layer = join([random(40, 64, dtype=dtype)], [None])
    if before is not None:
        layer.put_before(before)
    width = 128 if isinstance(before, Gate) else 64
    x, residual = random(1, MAX_ROWS, width, dtype=dtype), random(1, MAX_ROWS, 40, dtype=dtype)
    together = layer(x, residual)
    for row in range(MAX_ROWS):
        alone = layer(x[:, row : row + 1], residual[:, row : row + 1])
        assert torch.equal(alone[0, 0], together[0, row])


@needs_compiler
@pytest.mark.parametrize(
    "before", [RmsNorm(1e-5, None), RmsNorm(1e-5, random(64)), Gate("silu"), Gate("gelu")]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_or_a_gate_is_computed_as_torch_does(
    dtype: torch.dtype, before: RmsNorm | Gate
) -> None:
    identity = torch.eye(64, dtype=dtype)
    if isinstance(before, RmsNorm) and before.weight is not None:
        before = RmsNorm(before.eps, before.weight.to(dtype))
    layer = join([identity], [None])
    layer.put_before(before)
    width = 128 if isinstance(before, Gate) else 64
    x = 6 * random(1, 3, width, dtype=dtype)
    expected = before(x)
    found = layer(x)
    if dtype == torch.float32:
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    else:  # an ulp, where a value falls between two numbers or one of the two rounds once more
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=2**-6)
        assert (found == expected).float().mean() > 0.7


@needs_compiler
def test_a_gate_takes_what_a_model_may_give_it() -> None:
    layer = join([torch.eye(32)], [None])
    layer.put_before(Gate("silu"))
    gates = torch.tensor([0.0, -0.0, 1e-30, -1e30, 1e30, 80.0, -80.0, -104.0]).repeat(4)
    x = torch.cat((gates, torch.ones(32)))[None, None]
    torch.testing.assert_close(layer(x)[0, 0], F.silu(gates), atol=1e-8, rtol=1e-5)
    x[0, 0, 3] = float("nan")
    assert bool(layer(x).isnan().any())


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "phi3", "olmo2"])
def test_models_decode_as_without_a_compiler(name: str, dtype: torch.dtype) -> None:
    register()
    model = build(name, **WIDE).to(dtype)
    model.set_attn_implementation(NAME)
    captured = capture(model)  # it compares its logits with the model's
    assert captured is not None
    linears = [node.target for node in captured.graph.graph.nodes if "linear" in node.name]
    assert all(linear.compiled is not None for linear in linears)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_gates_of_a_llama_are_parts_of_products(dtype: torch.dtype) -> None:
    _, captured = capture_of("wide_llama", dtype)
    nodes = list(captured.graph.graph.nodes)
    before = [node.target.before for node in nodes if isinstance(node.target, Linear)]
    assert sum(isinstance(each, RmsNorm) for each in before) == 3 * 2
    assert sum(isinstance(each, Gate) for each in before) == 3
    assert sum(isinstance(node.target, RmsNorm) for node in nodes) == 1  # before the head
    assert torch.ops.aten.silu.default not in [node.target for node in nodes]


@pytest.mark.parametrize("command", ["no-such-compiler", "false"])
def test_a_compiler_that_is_missing_or_fails_is_not_needed(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", command)
    monkeypatch.setattr(library, "COMPILERS", ())
    library.functions.cache_clear()
    try:
        assert library.functions() is None
        assert join([random(8, 32)], [None]).compiled is None
    finally:
        monkeypatch.undo()
        library.functions.cache_clear()


@needs_compiler
def test_the_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library.functions.cache_clear()
    try:
        assert library.functions() is not None
        files = sorted((tmp_path / "pasta-lm").iterdir())
        assert len(files) == 1
        library.functions.cache_clear()

        def run(*_: object, **__: object) -> None:
            raise subprocess.SubprocessError("compiled again")

        monkeypatch.setattr(subprocess, "run", run)
        assert library.functions() is not None
    finally:
        monkeypatch.undo()
        library.functions.cache_clear()
