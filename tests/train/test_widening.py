"""A wider copy of a model computes what it did, keeps what it knew, and learns beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
)

from pasta_lm.engines.torch.self_test import check_exact
from pasta_lm.errors import UsageError
from pasta_lm.train.config import ModelConfig, WiderConfig
from pasta_lm.train.sft import train_sft
from pasta_lm.train.widening import widened
from tests.train.recipes import begin, sft

ROOM = WiderConfig(dimensions=32, heads=2, neurons=24)
ALL_LEARN = WiderConfig(dimensions=32, heads=2, neurons=24, only_new=False)
SIZES = {
    "vocab_size": 200,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "intermediate_size": 64,
    "initializer_range": 0.2,  # logits of several units: what is computed shows
}
CONFIGS: dict[str, Callable[..., Any]] = {
    "llama": LlamaConfig,
    "llama, tied": lambda **sizes: LlamaConfig(**sizes, tie_word_embeddings=True),
    "llama, biases": lambda **sizes: LlamaConfig(**sizes, attention_bias=True),
    "llama, small heads": lambda **sizes: LlamaConfig(**sizes, head_dim=8),
    "qwen2": lambda **sizes: Qwen2Config(**sizes, tie_word_embeddings=True),
}


def model(shape: str = "llama", **changed: object) -> PreTrainedModel:
    torch.manual_seed(0)
    config = CONFIGS[shape](**(SIZES | changed))
    built: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if name.endswith(("bias", "norm.weight")):
                weight.add_(0.1 * torch.randn_like(weight))
    return built.eval()


def log_probs(of: PreTrainedModel, token_ids: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = of(input_ids=token_ids[None]).logits.log_softmax(-1)
    return found


def corner(of: PreTrainedModel, old: PreTrainedModel) -> dict[str, Tensor]:
    """Return those weights of a wider model that stand where the old ones stood."""
    shapes = {name: weight.shape for name, weight in old.named_parameters()}
    return {
        name: weight.detach()[tuple(slice(size) for size in shapes[name])].clone()
        for name, weight in of.named_parameters()
    }


def take_steps(of: PreTrainedModel, number: int = 3) -> None:
    optimizer = torch.optim.AdamW(of.parameters(), lr=1e-2, weight_decay=0)
    token_ids = torch.randint(0, 200, (2, 20), generator=torch.Generator().manual_seed(1))
    for _ in range(number):
        of(input_ids=token_ids, labels=token_ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("shape", CONFIGS)
def test_a_wider_copy_computes_what_the_model_did(shape: str) -> None:
    old = model(shape)
    wide = widened(old, ROOM)
    token_ids = torch.randperm(200)[:40]
    before, after = log_probs(old, token_ids), log_probs(wide, token_ids)
    assert float((before.exp() * (before - after)).sum(-1).mean()) < 0.02
    assert float(before.std()) > 0.5  # and it computes something
    check_exact(wide)


def test_it_is_as_much_wider_as_was_asked_for() -> None:
    config = widened(model(), ROOM).config
    assert (config.hidden_size, config.intermediate_size) == (48 + 32, 64 + 24)
    assert (config.num_attention_heads, config.num_key_value_heads) == (3 + 2, 3 + 2)
    assert config.head_dim == 48 // 3


def test_nothing_old_reads_what_is_new_at_first() -> None:
    old, wide = model(), widened(model(), ROOM)
    for name, weight in wide.named_parameters():
        rows, *columns = dict(old.named_parameters())[name].shape
        if columns and rows < len(weight):
            assert not weight[:rows, columns[0] :].any(), name
            assert weight[rows:].abs().min() > 0, name


def test_the_model_that_was_widened_is_as_it_was() -> None:
    old, again = model(), model()
    widened(old, ROOM)
    for ours, same in zip(old.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, same)


@pytest.mark.parametrize("shape", CONFIGS)
def test_what_was_known_is_kept_while_all_else_learns(shape: str) -> None:
    old = model(shape)
    wide = widened(old, ROOM)
    before = {name: weight.detach().clone() for name, weight in wide.named_parameters()}
    kept = corner(wide, old)
    take_steps(wide)
    for name, weight in corner(wide, old).items():
        assert torch.equal(weight, kept[name]), name
    for name, weight in wide.named_parameters():
        assert not torch.equal(weight, before[name]), name


def test_all_of_it_learns_if_that_is_asked() -> None:
    old = model()
    wide = widened(old, ALL_LEARN)
    kept = corner(wide, old)
    take_steps(wide)
    changed = [name for name, weight in corner(wide, old).items() if (weight != kept[name]).any()]
    assert changed == [name for name, _ in wide.named_parameters()]


@pytest.mark.parametrize("changed", [{"num_key_value_heads": 1}])
def test_heads_that_share_their_keys_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="keys of its own"):
        widened(model(**changed), ROOM)


def test_heads_that_do_not_divide_the_dimensions_are_refused() -> None:
    with pytest.raises(UsageError, match="makes 56 dimensions and 5 heads"):
        widened(model(), WiderConfig(dimensions=8, heads=2, neurons=8))


def test_a_shape_that_is_not_known_here_is_refused() -> None:
    config = GPTNeoXConfig(
        vocab_size=200,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=64,
    )
    other = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with pytest.raises(UsageError, match="wider"):
        widened(other, ROOM)


# --- as a recipe has it


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = sft(begin(tmp_path_factory.mktemp("base")), tmp_path_factory.mktemp("out"), steps=2)
    return train_sft(config)


def test_a_recipe_trains_the_wider_model_and_keeps_what_its_base_knew(
    base: Path, tmp_path: Path
) -> None:
    room = WiderConfig(dimensions=16, heads=1, neurons=16)
    first = sft(ModelConfig(base=str(base), wider=room), tmp_path / "a", steps=4, save_steps=2)
    trained = AutoModelForCausalLM.from_pretrained(train_sft(first))
    old = AutoModelForCausalLM.from_pretrained(base)
    assert trained.config.hidden_size == old.config.hidden_size + 16
    share = (old.config.hidden_size / trained.config.hidden_size) ** 0.5
    for name, weight in corner(trained, old).items():
        known = old.state_dict()[name]
        is_norm = "norm" in name
        assert torch.allclose(weight, known * share if is_norm else known, atol=1e-6), name


def test_a_run_that_goes_on_keeps_it_too(base: Path, tmp_path: Path) -> None:
    room = WiderConfig(dimensions=16, heads=1, neurons=16)
    model = ModelConfig(base=str(base), wider=room)
    whole = train_sft(sft(model, tmp_path / "whole", steps=4, save_steps=2))
    part = sft(model, tmp_path / "part", steps=4, save_steps=2)
    train_sft(part)
    for made in (tmp_path / "part" / "model", tmp_path / "part" / "checkpoint-4"):
        for file in made.iterdir():
            file.unlink()
        made.rmdir()
    again = train_sft(part, resume=True)
    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(one).state_dict() for one in (again, whole)
    )
    for name, weight in ours.items():
        assert torch.allclose(weight, theirs[name], atol=1e-6), name
