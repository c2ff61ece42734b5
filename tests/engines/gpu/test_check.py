"""The checks that ``pasta doctor`` makes of a GPU find what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from pasta_lm.engines.gpu.attention import attend_gathered, attend_split
from pasta_lm.measure import gpu_check as check
from tests.triton_kernels import DEVICE, needs_kernels

PLACE = torch.device(DEVICE)
Fault = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    # Triton's interpreter multiplies the bits of bfloat16.
    half = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    monkeypatch.setattr(check, "CASES", ((1, 128, half), (8, 64, torch.float32)))


@needs_kernels
def test_kernels_and_passes_are_as_plain_torch_and_a_cpu() -> None:
    facts, is_exact = check.check_gpu(PLACE, attend_split)
    assert (facts["kernels"], is_exact) == ("2 settings as plain torch", True)
    assert facts["passes"].startswith("as on a CPU")


def refuses(out: Tensor) -> Tensor:
    raise RuntimeError("out of resource: shared memory")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(lambda out: out + 0.1, "8 rows, heads of 64, float32: differs by 0.1"),
     (lambda out: out * torch.nan, "8 rows, heads of 64, float32: differs by nan"),
     (refuses, "8 rows, heads of 64, float32: RuntimeError: out of resource: shared memory")],
)  # fmt: skip
def test_a_kernel_with_a_fault_is_named(fault: Fault, reason: str) -> None:
    def attend(*args: object) -> Tensor:
        out = attend_gathered(*args)  # type: ignore[arg-type]
        return fault(out) if out.shape[-1] == 64 else out

    facts, is_exact = check.check_gpu(PLACE, attend)
    assert (facts["kernels"], is_exact) == (reason, False)


def test_other_tokens_than_a_cpus_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pasta_lm.engines.gpu.decoder.attend_gathered", lambda *args: attend_gathered(*args) * 0.5
    )
    facts, is_exact = check.check_gpu(PLACE, attend_gathered)
    assert not is_exact
    assert "CPU" in facts["passes"]
    assert not facts["passes"].startswith("as on")


def test_a_machine_on_which_nothing_can_be_compiled_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails = MagicMock(side_effect=RuntimeError("Failed to find C compiler"))
    monkeypatch.setattr("pasta_lm.engines.gpu.attention._kernels", fails)
    monkeypatch.setattr("pasta_lm.engines.gpu.decoder.place_entries", fails)
    entered = MagicMock(wraps=check.on_device)
    monkeypatch.setattr(check, "on_device", entered)
    facts, is_exact = check.check_gpu(PLACE, attend_split)
    assert not is_exact
    assert "Failed to find C compiler" in facts["kernels"]
    assert "Triton cannot launch" in facts["passes"]
    entered.assert_called_once_with(PLACE)  # else kernels would run on another card
