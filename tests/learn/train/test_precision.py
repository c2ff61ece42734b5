"""Mixed precision on CPUs and GPUs; master weights and denormals."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from transformers import TrainingArguments

from pasta_lm.engines.local.attention import LayerCall
from pasta_lm.learn.data.encode import EncodedExample
from pasta_lm.learn.train import trainer
from pasta_lm.learn.train.config import LoraConfig, ModelConfig, TrainConfig
from pasta_lm.learn.train.losses import TrainingPass
from pasta_lm.learn.train.sft import train_sft
from pasta_lm.learn.train.trainer import frozen_dtype, is_mixed, training_arguments
from pasta_lm.models.load import DTYPES
from tests.learn.train.recipes import begin, losses, sft, weights

SMALLER_THAN_NORMAL = 1e-40
"""A float32 that only the form without a leading one can hold."""


def on(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, unit: str) -> None:
    """Let torch say that the machine has a GPU, or a CPU, with this unit."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: unit == "gpu")
    found = {name: name == unit for name in ("amx_bf16", "avx512_bf16")}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)


@pytest.mark.parametrize(
    ("gpu", "unit", "dtype", "mixed", "expected", "frozen"),
    [
        (True, "gpu", "bfloat16", False, True, "bfloat16"),
        (True, "gpu", "float32", True, True, "float32"),
        (True, "gpu", None, True, True, "bfloat16"),
        (True, "gpu", None, False, False, "float32"),
        (True, "", None, True, False, "float32"),  # it would emulate bfloat16
        (False, "amx_bf16", None, True, True, "float32"),
        (False, "amx_bf16", "bfloat16", True, True, "bfloat16"),
        (False, "amx_bf16", "bfloat16", False, False, "bfloat16"),
        (False, "avx512_bf16", "float32", True, True, "float32"),
        (False, "", "bfloat16", True, False, "bfloat16"),
    ],
)
def test_products_and_frozen_weights_depend_on_the_recipe_and_the_machine(
    monkeypatch: pytest.MonkeyPatch,
    gpu: bool,
    unit: str,
    dtype: Literal["float32", "bfloat16"] | None,
    mixed: bool,
    expected: bool,
    frozen: str,
) -> None:
    on(monkeypatch, gpu=gpu, unit=unit)
    train = TrainConfig(out="out", steps=1, dtype=dtype, mixed_precision=mixed)
    assert is_mixed(train) is expected
    assert frozen_dtype(LoraConfig(), train) is DTYPES[frozen]
    assert frozen_dtype(None, train) is torch.float32


def test_without_cpu_capabilities_training_is_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert {weight.dtype for weight in weights(folder).values()} == {torch.float32}
    assert found["mixed"] == pytest.approx(found["whole"], rel=0.02)
    assert found["mixed"] != found["whole"]


def test_denormals_and_attention_of_cudnn_are_off_in_training_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def state() -> tuple[float, bool]:
        flushed = (torch.tensor([SMALLER_THAN_NORMAL]) * 1).item()
        return flushed, torch.backends.cuda.cudnn_sdp_enabled()

    before, seen = state(), list[tuple[float, bool]]()
    usual = trainer.label_nats

    def spied(*args: torch.Tensor) -> torch.Tensor:
        seen.append(state())
        return usual(*args)

    monkeypatch.setattr(trainer, "label_nats", spied)
    train_sft(sft(begin(tmp_path), tmp_path / "out", steps=1))
    assert {*seen} == {(0.0, False)}
    assert state() == before
    assert before[0] > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_saved_as_the_base_was_and_readable_by_all(tmp_path: Path, dtype: str) -> None:
    base = train_sft(sft(begin(tmp_path), tmp_path / "base", steps=1, dtype=dtype))
    folder = train_sft(sft(ModelConfig(base=str(base)), tmp_path / "out", steps=1))
    assert {weight.dtype for weight in weights(folder).values()} == {DTYPES[dtype]}
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {folder.stat().st_mode & 0o666}


@pytest.mark.parametrize(
    ("checkpointing", "num_weights", "expected"),
    [
        (None, 999_999_999, False),
        (None, 1_000_000_001, True),
        (False, 8 * 10**9, False),
        (True, 10**8, True),
    ],
)
def test_layers_of_large_models_are_computed_again_unless_the_recipe_says_no(
    checkpointing: bool | None, num_weights: int, expected: bool
) -> None:
    train = TrainConfig(out="out", steps=1, checkpointing=checkpointing)
    assert training_arguments(train, num_weights).gradient_checkpointing is expected


def test_of_two_gpus_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_gpus(args: TrainingArguments) -> torch.device:
        args._n_gpu = 2
        return torch.device("cpu")

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(two_gpus))
    args = training_arguments(TrainConfig(out="out", steps=1), 0)
    assert args.n_gpu == 1  # else the Trainer would cut a pack in two


@pytest.mark.parametrize("rows", [None, ((4,),)])
def test_off_the_cpu_each_query_head_has_keys_of_its_own(
    monkeypatch: pytest.MonkeyPatch, rows: tuple[tuple[int, ...], ...] | None
) -> None:
    """Grouped keys would be scored by the math path where no fused attention takes groups."""
    calls: list[tuple[int, int, bool]] = []
    usual = F.scaled_dot_product_attention

    def spied(q: torch.Tensor, k: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append((q.shape[1], k.shape[1], kwargs["enable_gqa"]))
        return usual(q, k, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spied)
    ids = array("i", range(4))
    example = EncodedExample("r", ids, ids, ids, array("i", [0] * 4), array("i", [0] * 4), rows, 1)
    q, k, v = (torch.empty(heads, 4, 8, device="meta") for heads in (6, 2, 2))
    out = TrainingPass([example]).attend(LayerCall(0, None, None, None, None), q, k, v)
    assert (out.shape, calls) == ((6, 4, 8), [(6, 6, False)])
