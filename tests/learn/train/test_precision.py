"""Mixed precision on CPUs and GPUs; master weights and denormals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from pasta_lm.learn.train import trainer
from pasta_lm.learn.train.config import TrainConfig
from pasta_lm.learn.train.sft import train_sft
from pasta_lm.learn.train.trainer import is_mixed
from tests.learn.train.recipes import begin, losses, sft

SMALLER_THAN_NORMAL = 1e-40
"""A float32 that only the form without a leading one can hold."""


def on(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, unit: str) -> None:
    """Let torch say that the machine has a GPU, or a CPU with this unit."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    found = {name: name == unit for name in ("amx_bf16", "avx512_bf16")}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)


@pytest.mark.parametrize(
    ("gpu", "unit", "dtype", "mixed", "expected"),
    [
        (True, "", "bfloat16", False, True),
        (True, "", "float32", False, False),
        (True, "", "float32", True, False),
        (False, "amx_bf16", "float32", True, True),
        (False, "amx_bf16", "bfloat16", True, True),
        (False, "amx_bf16", "bfloat16", False, False),
        (False, "avx512_bf16", "float32", True, True),
        (False, "avx512_bf16", "float32", False, False),
        (False, "", "bfloat16", True, False),
    ],
)
def test_mixed_precision_depends_on_dtype_on_a_gpu_and_on_the_unit_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
    gpu: bool,
    unit: str,
    dtype: str,
    mixed: bool,
    expected: bool,
) -> None:
    on(monkeypatch, gpu=gpu, unit=unit)
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
    on(monkeypatch, gpu=False, unit="amx_bf16")
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


@pytest.mark.parametrize(("is_glibc", "num_trims"), [(True, 2), (False, 0)])
def test_pieces_of_the_heap_are_given_back_every_few_steps(
    tmp_path: Path, is_glibc: bool, num_trims: int
) -> None:
    trims: list[int] = []
    libc = SimpleNamespace(malloc_trim=trims.append, mallopt=lambda *_: 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "TRIM_STEPS", 2)
        patch.setattr(trainer, "_has_glibc", lambda: is_glibc)
        patch.setattr(trainer, "ctypes", SimpleNamespace(CDLL=lambda _: libc))
        train_sft(sft(begin(tmp_path), tmp_path / "out", steps=5))
    assert trims == [0] * num_trims
