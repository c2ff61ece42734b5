"""Mixed precision on CPUs and GPUs; master weights and denormals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from pasta_lm.train.config import TrainConfig
from pasta_lm.train.sft import train_sft
from pasta_lm.train.trainer import is_mixed
from tests.train.recipes import begin, losses, sft

SMALLER_THAN_NORMAL = 1e-40
"""A float32 that only the form without a leading one can hold."""


def on(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, units: bool) -> None:
    """Let torch say that the machine has a GPU, or a CPU with matrix units."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    found = {"amx_bf16": units}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)


@pytest.mark.parametrize(
    ("gpu", "units", "dtype", "mixed", "expected"),
    [
        (True, False, "bfloat16", False, True),
        (True, False, "float32", False, False),
        (True, False, "float32", True, False),
        (False, True, "float32", True, True),
        (False, True, "bfloat16", True, True),
        (False, True, "bfloat16", False, False),
        (False, False, "bfloat16", True, False),
    ],
)
def test_mixed_precision_depends_on_dtype_on_a_gpu_and_on_amx_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
    gpu: bool,
    units: bool,
    dtype: str,
    mixed: bool,
    expected: bool,
) -> None:
    on(monkeypatch, gpu=gpu, units=units)
    train = TrainConfig(out="out", steps=1, dtype=dtype, mixed_precision=mixed)
    assert is_mixed(train) is expected


def test_without_cpu_capabilities_training_is_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not is_mixed(TrainConfig(out="out", steps=1, mixed_precision=True))


def test_bfloat16_products_train_like_float32_and_weights_stay_float32(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on(monkeypatch, gpu=False, units=True)
    model = begin(tmp_path)
    found: dict[str, list[float]] = {}
    for name, mixed in (("whole", False), ("mixed", True)):
        config = sft(model, tmp_path / name, mixed_precision=mixed)
        folder = train_sft(config)
        found[name] = [loss for step in losses(config).values() for loss in step]
        weights = load_file(folder / "model.safetensors").values()
        assert {weight.dtype for weight in weights} == {torch.float32}
    assert found["mixed"] == pytest.approx(found["whole"], rel=0.02)
    assert found["mixed"] != found["whole"]


def test_denormals_are_flushed_in_training_only(tmp_path: Path) -> None:
    seen: list[float] = []
    original = F.cross_entropy

    def spied(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((torch.tensor([SMALLER_THAN_NORMAL]) * 1).item())
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "cross_entropy", spied)
        train_sft(sft(begin(tmp_path), tmp_path / "out", steps=1))
    assert set(seen) == {0.0}
    assert (torch.tensor([SMALLER_THAN_NORMAL]) * 1).item() > 0
