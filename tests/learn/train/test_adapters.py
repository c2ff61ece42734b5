"""Low-rank adapters: which weights are trained, how they are merged, and what is refused."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP

from pasta_lm.engines.local.loading import load
from pasta_lm.errors import MissingExtraError, ModelError, UsageError
from pasta_lm.learn.train import sft as training
from pasta_lm.learn.train.adapters import adapted, base_of, merged
from pasta_lm.learn.train.collate import collate
from pasta_lm.learn.train.config import (
    DataConfig,
    LoraConfig,
    ModelConfig,
    RandomConfig,
    SftConfig,
    TrainConfig,
)
from pasta_lm.learn.train.learner import Learner, load_learner, save
from pasta_lm.learn.train.losses import next_token_loss
from pasta_lm.learn.train.sft import train_sft
from pasta_lm.learn.train.sources import Pack
from pasta_lm.models.adapter import is_adapter, merge_adapter, read_adapter, read_base
from pasta_lm.models.adapter_base import check_base
from pasta_lm.models.annotated import write_records
from pasta_lm.models.folder import read_pasta_config
from tests.learn.train.recipes import begin, losses, packs, records, sft

RANK = 4
TARGETS = ("q_proj", "down_proj")
LORA = LoraConfig(rank=RANK, alpha=8.0, targets=TARGETS)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder that adapters begin beside."""
    folder = tmp_path_factory.mktemp("base")
    return train_sft(sft(begin(folder), folder / "out", steps=1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """Return annotated answers on disk."""
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    write_records(path, records(12))
    return DataConfig(file=str(path), max_tokens=1200)


def recipe(base: Path, out: Path, data: DataConfig, **train: object) -> SftConfig:
    """Return a recipe that trains adapters, at a rate at which everything that learns moves."""
    settings = {"steps": 4, "learning_rate": 3e-2, **train}
    return replace(sft(ModelConfig(base=str(base)), out, data, **settings), lora=LORA)


@pytest.fixture(scope="module")
def trained(base: Path, data: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> SftConfig:
    """Return a recipe that has been carried out."""
    config = recipe(base, tmp_path_factory.mktemp("trained"), data, save_steps=2)
    train_sft(config)
    return config


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def tag_rows(folder: Path) -> list[int]:
    ids: dict[str, int] = json.loads((folder / "pasta_config.json").read_text())["piece_ids"]
    return sorted(ids.values())


def test_only_adapters_and_tag_rows_are_trained(base: Path, trained: SftConfig) -> None:
    before, after = weights(base), weights(Path(trained.train.out) / "model")
    assert before.keys() == after.keys()
    rows = torch.tensor(tag_rows(base))
    for name, weight in before.items():
        moved = after[name] - weight
        if "embed_tokens" in name:
            # Of the other rows none moved by a bit; every tag was met, if only as a wrong answer.
            assert moved.abs().sum(dim=1).nonzero()[:, 0].tolist() == rows.tolist()
        elif any(target in name for target in TARGETS):
            assert 0 < torch.linalg.matrix_rank(moved, rtol=1e-4) <= RANK
        else:
            assert not moved.any(), name


def test_adapters_make_the_training_data_likelier(base: Path, trained: SftConfig) -> None:
    before, after = (
        loss_of(load_learner(ModelConfig(base=str(folder))), trained)
        for folder in (base, Path(trained.train.out) / "model")
    )
    assert after < before - 0.05


def loss_of(learner: Learner, config: SftConfig) -> float:
    """Return the mean loss of the packs that a recipe learns from."""
    found = [
        next_token_loss(logits_of(learner.model, pack), collate([pack])["shift_labels"])
        for pack in packs(config, learner)
    ]
    return float(torch.stack(found).mean())


def test_a_checkpoint_holds_only_trained_weights(trained: SftConfig) -> None:
    folder = Path(trained.train.out) / "checkpoint-4"
    assert not (folder / "model.safetensors").exists()
    kept = load_file(folder / "adapter_model.safetensors")
    assert {name.split(".")[-2] for name in kept} == {"lora_A", "lora_B", "token_adapter"}


def logits_of(model: nn.Module, pack: Pack) -> Tensor:
    batch = collate([pack])
    with torch.inference_mode():
        out = model(
            input_ids=batch["input_ids"],
            position_ids=batch["position_ids"],
            pasta_pass=batch["pasta_pass"],
            use_cache=False,
        )
    logits: Tensor = out.logits
    return logits


def stirred(learner: Learner) -> nn.Module:
    """Return an adapted model in which everything that can learn is far from its beginning."""
    model = adapted(learner, LoraConfig(rank=RANK))
    torch.manual_seed(1)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += 0.1 * torch.randn_like(weight)
    return model.eval()


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_merged_folder_gives_the_logits_of_the_adapted_model(
    tmp_path: Path, data: DataConfig, is_tied: bool
) -> None:
    config = begin(tmp_path)
    assert config.random is not None
    path = Path(config.random.architecture)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": is_tied}))
    learner = load_learner(config)
    (pack, *_) = packs(sft(config, tmp_path, data), learner)
    plain = logits_of(learner.model, pack)
    model = stirred(learner)
    num_matrices = 1 if is_tied else 2
    num_rows = len(learner.vocabulary.piece_ids)
    hidden = learner.model.config.hidden_size
    num_trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    assert num_trained > num_matrices * num_rows * hidden
    # In float64: what is compared is the merging, not how a processor rounds the products.
    adapters = logits_of(copy.deepcopy(model).double(), pack)
    assert (adapters - plain).abs().max() > 0.1
    whole = merged(learner, model)  # type: ignore[arg-type]
    folder = save(whole, TrainConfig(out=str(tmp_path / "out"), steps=1))
    loaded = load(folder)
    assert not [name for name, _ in loaded.model.named_modules() if "lora" in name]
    assert (logits_of(loaded.model.double(), pack) - adapters).abs().max() < 1e-4


def test_an_interrupted_run_resumes_with_the_same_result(
    trained: SftConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = replace(trained, train=replace(trained.train, out=str(tmp_path)))
    calls = iter(range(3))

    def failing(*args: Tensor) -> Tensor:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return next_token_loss(*args)

    with monkeypatch.context() as patch:
        patch.setattr(training, "next_token_loss", failing)
        with pytest.raises(KeyboardInterrupt):
            train_sft(again)
    found = weights(train_sft(again, resume=True))
    expected = weights(Path(trained.train.out) / "model")
    for step, (loss,) in losses(trained).items():
        assert losses(again)[step][-1] == pytest.approx(loss, abs=1e-6)
    for name, weight in expected.items():
        assert torch.allclose(found[name], weight, atol=1e-6), name


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradient_checkpointing_trains_the_same_weights(
    trained: SftConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    train = replace(trained.train, out=str(tmp_path), checkpointing=checkpointing)
    calls: list[int] = []
    forward = LlamaMLP.forward

    def counted(self: LlamaMLP, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # the self-test is without
            calls.append(1)
        return forward(self, x)

    monkeypatch.setattr(LlamaMLP, "forward", counted)
    config = replace(trained, train=train)
    train_sft(config)
    num_layers, num_packs = 2, 4
    assert len(calls) == num_layers * num_packs * (2 if checkpointing else 1)
    for step, (loss,) in losses(trained).items():
        assert losses(config)[step] == [pytest.approx(loss, abs=1e-6)]


def test_frozen_weights_have_the_saved_dtype_and_adapters_are_float32(
    base: Path, data: DataConfig, tmp_path: Path
) -> None:
    config = recipe(base, tmp_path, data, steps=1, dtype="bfloat16")
    found = weights(train_sft(config))
    assert {weight.dtype for weight in found.values()} == {torch.bfloat16}
    learner = load_learner(config.model, torch.bfloat16)
    trained_dtypes = {w.dtype for w in adapted(learner, LORA).parameters() if w.requires_grad}
    assert trained_dtypes == {torch.float32}


# --- saved as an adapter, and gone on with


def merged_logits(base: Path, adapter: Path, pack: Pack) -> Tensor:
    """Return the logits of a base into which an adapter folder was merged."""
    learner = load_learner(ModelConfig(base=str(base)))
    check_base(read_base(adapter), learner.model, learner.tokenizer)
    merge_adapter(learner.model, read_adapter(adapter))
    return logits_of(learner.model, pack)


@pytest.fixture(scope="module")
def saved(trained: SftConfig, tmp_path_factory: pytest.TempPathFactory) -> SftConfig:
    """Return the recipe of ``trained`` that ends in an adapter folder, carried out."""
    train = replace(trained.train, out=str(tmp_path_factory.mktemp("saved")), save="adapter")
    config = replace(trained, train=train)
    train_sft(config)
    return config


def test_a_saved_adapter_merges_to_the_model_that_would_have_been_saved(
    base: Path, trained: SftConfig, saved: SftConfig
) -> None:
    folder = Path(saved.train.out) / "model"
    assert is_adapter(folder)
    pack, *_ = packs(trained)
    whole = load_learner(ModelConfig(base=str(Path(trained.train.out) / "model")))
    assert (merged_logits(base, folder, pack) - logits_of(whole.model, pack)).abs().max() < 1e-4
    config = read_pasta_config(folder)
    assert config is not None
    assert config.piece_ids == whole.vocabulary.piece_ids
    assert read_base(folder).path == str(base)


@pytest.mark.parametrize("tokens", ["tags", "none"])
def test_training_goes_on_from_an_adapter(
    base: Path, data: DataConfig, saved: SftConfig, tmp_path: Path, tokens: str
) -> None:
    start = Path(saved.train.out) / "model"
    lora = replace(LORA, alpha=3.0, start=str(start), trained_tokens=tokens)
    learner = load_learner(ModelConfig(base=str(base)))
    (pack, *_) = packs(saved, learner)
    # Another alpha scales the matrices, and the model is the same.
    begun = logits_of(adapted(learner, lora).eval(), pack)
    assert (begun - merged_logits(base, start, pack)).abs().max() < 1e-4
    config = recipe(base, tmp_path, data, steps=3)
    config = replace(config, lora=lora, train=replace(config.train, save="adapter"))
    folder = train_sft(config)
    assert read_base(folder) == read_base(start)
    found, old = read_adapter(folder), read_adapter(start)
    assert found.low_rank.keys() == old.low_rank.keys()
    before, after = merged_logits(base, start, pack), merged_logits(base, folder, pack)
    labels = collate([pack])["shift_labels"]
    assert next_token_loss(after, labels) < next_token_loss(before, labels)
    rows = [(found.rows[name] - one).abs().max() for name, one in old.rows.items()]
    assert all(moved > 0 if tokens == "tags" else moved == 0 for moved in rows)


@pytest.mark.parametrize(
    ("lora", "reason"),
    [
        ({"rank": 8}, "lora.rank is 8, and the adapter .* has rank 4"),
        ({"targets": ("q_proj",)}, "lora.start and lora.targets have other layers: .*down_proj"),
    ],
)
def test_an_adapter_of_another_shape_cannot_be_gone_on_with(
    base: Path,
    data: DataConfig,
    saved: SftConfig,
    tmp_path: Path,
    lora: dict[str, object],
    reason: str,
) -> None:
    start = str(Path(saved.train.out) / "model")
    config = replace(recipe(base, tmp_path, data), lora=replace(LORA, start=start, **lora))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=reason):
        train_sft(config)


def test_an_adapter_of_another_base_cannot_be_gone_on_with(
    data: DataConfig, trained: SftConfig, saved: SftConfig, tmp_path: Path
) -> None:
    other = Path(trained.train.out) / "model"
    lora = replace(LORA, start=str(Path(saved.train.out) / "model"))
    with pytest.raises(ModelError, match="the adapter belongs to another base"):
        train_sft(replace(recipe(other, tmp_path, data), lora=lora))


def test_an_adapter_as_base_cannot_be_saved_as_an_adapter(saved: SftConfig) -> None:
    learner = replace(load_learner(saved.model), source=str(Path(saved.train.out) / "model"))
    with pytest.raises(UsageError, match="model.base is an adapter") as caught:
        base_of(learner, LORA)
    assert "lora.start" in str(caught.value.hint)


def test_an_adapter_without_a_table_lora_is_refused(
    base: Path, data: DataConfig, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"needs a table \[lora\]"):
        sft(ModelConfig(base=str(base)), tmp_path, data, save="adapter")


# --- refused


def test_a_missing_peft_names_the_extra_to_install(
    base: Path, data: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"\[lora\] \(peft\) needs the extra 'train'"):
        train_sft(recipe(base, tmp_path, data))


def test_unknown_targets_are_refused(base: Path, data: DataConfig, tmp_path: Path) -> None:
    config = replace(recipe(base, tmp_path, data), lora=LoraConfig(targets=("query",)))
    with pytest.raises(UsageError, match=r"\[lora\] does not fit the model"):
        train_sft(config)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"rank": 0}, "lora.rank must be above 0"),
        ({"alpha": -1.0}, "lora.alpha must be above 0"),
        ({"dropout": 1.0}, "lora.dropout must be at least 0 and below 1"),
    ],
)
def test_invalid_adapter_settings_are_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        LoraConfig(**table)  # type: ignore[arg-type]
    assert reason in caught.value.message


def test_adapters_on_random_weights_are_refused(
    base: Path, data: DataConfig, tmp_path: Path
) -> None:
    random = ModelConfig(random=RandomConfig(architecture="a.json", tokenizer="tokenizer"))
    with pytest.raises(UsageError, match=r"\[lora\] needs model.base"):
        replace(recipe(base, tmp_path, data), model=random)
