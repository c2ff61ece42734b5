"""Low-rank adapters: which weights are trained, how they are merged and saved, what is refused."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor, nn

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import load
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import MissingExtraError, UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import parse
from pasta_lm.learn.data.annotated import Record, write_records
from pasta_lm.learn.data.encode import EncodedExample, encode_example
from pasta_lm.learn.train import sft as training
from pasta_lm.learn.train.config import DataConfig, LoraConfig, ModelConfig, SftConfig, TrainConfig
from pasta_lm.learn.train.learner import Learner, adapted, load_learner, save
from pasta_lm.learn.train.losses import collate, label_nats, over_labels, plain_texts
from pasta_lm.learn.train.packs import Pack
from pasta_lm.learn.train.sft import train_sft
from pasta_lm.models.adapter import check_base, is_adapter, merge_adapter, read_adapter, read_base
from pasta_lm.models.folder import read_pasta_config
from tests.architectures import loaded
from tests.fakes.power_cut import power_cut_after
from tests.learn.train.recipes import (
    assert_same,
    begin,
    logits_of,
    losses,
    packs,
    sft,
    weights,
    write_file,
)
from tests.learn.train.test_collate import PROMPT, answers, eager, gradients

RANK = 4
TARGETS = ("q_proj", "down_proj")
LORA = LoraConfig(rank=RANK, alpha=8.0, targets=TARGETS)
Recipe = Callable[..., SftConfig]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    return train_sft(sft(begin(folder), folder / "out", steps=1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return write_file(tmp_path_factory.mktemp("data"), 12, max_tokens=1200)


def recipe_of(base: Path, out: Path, data: DataConfig, **train: Any) -> SftConfig:
    """Return a recipe that trains adapters, at a rate at which everything that learns moves."""
    settings = {"steps": 4, "learning_rate": 3e-2, **train}
    return replace(sft(ModelConfig(base=str(base)), out, data, **settings), lora=LORA)


@pytest.fixture
def recipe(base: Path, tmp_path: Path, data: DataConfig) -> Recipe:
    """Return a function that makes a recipe from settings of its training and its adapters."""

    def make(lora: dict[str, Any] | None = None, **train: Any) -> SftConfig:
        config = recipe_of(base, tmp_path / "out", data)
        config = replace(config, lora=replace(LORA, **(lora or {})))
        return replace(config, train=replace(config.train, **train))

    return make


@pytest.fixture(scope="module")
def trained(base: Path, data: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> SftConfig:
    config = recipe_of(base, tmp_path_factory.mktemp("trained"), data, save_steps=2)
    train_sft(config)
    return config


@pytest.fixture(scope="module")
def saved(trained: SftConfig, tmp_path_factory: pytest.TempPathFactory) -> SftConfig:
    """Return the recipe of ``trained`` that ends in an adapter folder, carried out."""
    train = replace(trained.train, out=str(tmp_path_factory.mktemp("saved")), save="adapter")
    config = replace(trained, train=train)
    train_sft(config)
    return config


def model_of(config: SftConfig) -> Path:
    return Path(config.train.out) / "model"


def learner_of(folder: Path) -> Learner:
    return load_learner(str(folder))


def pack_logits(model: nn.Module, pack: Pack) -> Tensor:
    with torch.inference_mode():
        return logits_of(model, collate([pack]))


def test_only_adapters_and_tag_rows_are_trained(base: Path, trained: SftConfig) -> None:
    before, after = weights(base), weights(model_of(trained))
    assert before.keys() == after.keys()
    ids = json.loads((base / "pasta_config.json").read_text())["piece_ids"]
    for name, weight in before.items():
        moved = after[name] - weight
        if "embed_tokens" in name:
            # Of the other rows none moved by a bit; every tag was met, if only as a wrong answer.
            assert moved.abs().sum(dim=1).nonzero()[:, 0].tolist() == sorted(ids.values())
        elif any(target in name for target in TARGETS):
            assert 0 < torch.linalg.matrix_rank(moved, rtol=1e-4) <= RANK
        else:
            assert not moved.any(), name
    kept = load_file(Path(trained.train.out) / "checkpoint-4" / "adapter_model.safetensors")
    assert {name.split(".")[-2] for name in kept} == {"lora_A", "lora_B", "token_adapter"}


@pytest.mark.parametrize(("kind", "is_tied"), [("llama", True), ("llama", False), ("phi", False)])
def test_the_merged_folder_gives_the_logits_of_the_adapted_model(
    tmp_path: Path, data: DataConfig, kind: str, is_tied: bool
) -> None:
    config = begin(tmp_path, model_type=kind, tie_word_embeddings=is_tied)
    learner = load_learner(config.base)
    if (bias := learner.model.get_output_embeddings().bias) is not None:
        nn.init.ones_(bias)
    pack, *_ = packs(sft(config, tmp_path, data), learner)
    plain = pack_logits(learner.model, pack)
    model = adapted(learner, LoraConfig(rank=RANK)).eval()
    torch.manual_seed(1)
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in learning:
        weight.data += 0.1 * torch.randn_like(weight)
    num_rows = len(learner.vocabulary.piece_ids) * (1 if is_tied else 2)
    assert sum(map(Tensor.numel, learning)) > num_rows * learner.model.config.hidden_size
    # In float64: what is compared is the merging, not how a processor rounds the products.
    adapters = pack_logits(copy.deepcopy(model).double(), pack)
    assert (adapters - plain).abs().max() > 0.1
    folder = save(
        replace(learner, model=model.merge_and_unload()),
        TrainConfig(out=str(tmp_path / "out"), steps=1),
    )
    whole = learner_of(folder).model
    assert not [name for name, _ in whole.named_modules() if "lora" in name]
    assert (pack_logits(whole.double(), pack) - adapters).abs().max() < 1e-4


def test_a_continued_run_has_the_base_and_the_data_that_it_began_with(
    base: Path, data: DataConfig, tmp_path: Path
) -> None:
    own, file = shutil.copytree(base, tmp_path / "base"), tmp_path / "data.jsonl"
    shutil.copyfile(str(data.file), file)
    config = recipe_of(own, tmp_path / "out", DataConfig(file=str(file)), steps=1)
    train_sft(config)
    for changed, part in (
        (own / "model.safetensors", r"model \(weights\)"),
        (own / "tokenizer.json", r"model \(tokenizer\)"),
        (own / "chat_template.jinja", r"model \(tokenizer\)"),
        (own / "config.json", r"model \(configuration\)"),
        (file, r"data\.file"),
    ):
        before = changed.read_bytes()
        is_text = changed.suffix != ".safetensors"
        changed.write_bytes(before + b"\n" if is_text else before[:-2] + b"\0\1")
        with pytest.raises(UsageError, match=f"begun with other {part}\\n"):
            train_sft(config, resume=True)
        changed.write_bytes(before)
    moved = ModelConfig(base=str(own.rename(tmp_path / "moved")))
    longer = replace(config.train, steps=2)
    assert [*losses(config)] == [1]
    train_sft(replace(config, model=moved, train=longer), resume=True)
    assert [*losses(config)] == [1, 2]


def test_an_interrupted_run_resumes_with_the_same_result(
    trained: SftConfig, tmp_path: Path
) -> None:
    again = replace(trained, train=replace(trained.train, out=str(tmp_path)))
    with power_cut_after(training, "weighted_mean", 3):
        train_sft(again)
    train_sft(again, resume=True)
    assert_same(again, trained)


def test_gradient_checkpointing_trains_the_same_weights(trained: SftConfig, tmp_path: Path) -> None:
    train = replace(trained.train, out=str(tmp_path), checkpointing=True)
    train_sft(config := replace(trained, train=train))
    for step, (loss,) in losses(trained).items():
        assert losses(config)[step] == [pytest.approx(loss, abs=1e-6)]


def test_frozen_weights_have_the_saved_dtype_and_adapters_are_float32(recipe: Recipe) -> None:
    config = recipe(steps=1, dtype="bfloat16")
    folder = train_sft(config)
    assert {weight.dtype for weight in weights(folder).values()} == {torch.bfloat16}
    model = adapted(load_learner(config.model.base, torch.bfloat16), LORA)
    assert {w.dtype for w in model.parameters() if w.requires_grad} == {torch.float32}


def merged_logits(base: Path, adapter: Path, pack: Pack) -> Tensor:
    learner = learner_of(base)
    check_base(read_base(adapter), learner.model, learner.tokenizer)
    merge_adapter(learner.model, read_adapter(adapter))
    return pack_logits(learner.model, pack)


def test_a_saved_adapter_merges_to_the_model_that_would_have_been_saved_and_peft_loads_it(
    base: Path, trained: SftConfig, saved: SftConfig
) -> None:
    folder = model_of(saved)
    assert is_adapter(folder)
    pack, *_ = packs(trained)
    whole = learner_of(model_of(trained))
    expected = pack_logits(whole.model, pack)
    assert (merged_logits(base, folder, pack) - expected).abs().max() < 1e-4
    by_peft = PeftModel.from_pretrained(learner_of(base).model, str(folder))
    assert (pack_logits(by_peft, pack) - expected).abs().max() < 1e-4
    config = read_pasta_config(folder)
    assert config is not None
    assert config.piece_ids == whole.vocabulary.piece_ids
    assert read_base(folder).path == str(base)


def test_adapters_that_do_not_fit_are_refused(recipe: Recipe) -> None:
    with pytest.raises(UsageError, match=r"\[lora\] does not fit the model"):
        train_sft(recipe({"targets": ("query",)}))


def test_an_adapter_as_base_cannot_be_saved_as_an_adapter(saved: SftConfig, tmp_path: Path) -> None:
    model = replace(saved.model, base=str(model_of(saved)))
    with pytest.raises(UsageError, match="is an adapter") as caught:
        train_sft(replace(saved, model=model, train=replace(saved.train, out=str(tmp_path / "a"))))
    assert "pasta export" in str(caught.value.hint)


def test_a_missing_peft_names_the_extra_to_install(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"\[lora\] \(peft\) needs the extra 'train'"):
        train_sft(recipe())


HYBRID = {
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention"],
}


def examples(name: str) -> list[EncodedExample]:
    model, plain, join = loaded(name), PositionStrategy.CONTINUE, Join.RECOMPUTE
    records = [Record("r", PROMPT, document) for document in answers(name)]
    eos = min(model.eos_ids)
    return [encode_example(each, model.vocabulary, eos, plain, join=join) for each in records]


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_plain_texts_have_the_logits_and_the_gradients_of_the_masked_form(name: str) -> None:
    models = loaded(name).model, eager(name)
    batch = collate([examples(name)])
    masked, plain = (over_labels(each, batch, lambda logits, _: logits.T) for each in models)
    torch.testing.assert_close(masked, plain, atol=1e-4, rtol=0)
    losses_of = [over_labels(each, batch, label_nats).mean() for each in models]
    grads = [gradients(each, loss) for each, loss in zip(models, losses_of, strict=True)]
    for expected, found in zip(*grads, strict=True):
        torch.testing.assert_close(expected, found, atol=1e-4, rtol=1e-3)


def test_each_token_is_in_a_text_behind_what_it_sees() -> None:
    for example in examples("llama"):
        texts = plain_texts(example)
        assert {int(slot) for slots in texts for slot in slots} == {*range(len(example))}


def test_a_hybrid_model_that_would_learn_gaps_is_refused_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="Lfm2ForCausalLM learns plain texts only"):
        train_sft(sft(begin(tmp_path, **HYBRID), tmp_path / "out"))


def test_a_hybrid_model_that_is_killed_and_resumed_learns_its_records_and_decodes_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data.jsonl"
    answer = parse('<async topic="a">one</async><async topic="b">two</async><sync/>.', "annotator")
    write_records(path, [Record("only", "Count.", answer)])
    settings = {"learning_rate": 2e-2, "schedule": "constant", "save_steps": 30, "epochs": 60}
    config = sft(
        begin(tmp_path, **HYBRID),
        tmp_path / "out",
        DataConfig(file=str(path)),
        **{**settings, "positions": "continue", "join": "recompute"},
    )
    with power_cut_after(training, "weighted_mean", 40):
        train_sft(config)
    model = load(train_sft(config, resume=True))
    assert max(losses(config)) == 60
    assert model.reader is not None
    request = Request(
        prompt=model.vocabulary.encode_prompt([{"role": "user", "content": "Count."}]),
        params=SamplingParams(max_tokens=60),
        positions=model.positions,
        join=model.join,
    )
    ((decoded,),) = TorchEngine(model, pool_tokens=256).generate([request])
    assert decoded.document == answer.with_lengths(model.vocabulary.count_tokens)
    assert len(decoded.trace.threads) == 3
