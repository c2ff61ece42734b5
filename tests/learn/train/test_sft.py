"""Stage one on a tiny model: training, resumption, saving and refused recipes."""

from __future__ import annotations

import errno
import json
import math
import os
from array import array
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments, set_seed

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import load
from pasta_lm.engines.passes.attention import LayerCall
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import InputError, ModelError, PastaError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import parse
from pasta_lm.learn.data.annotated import Record, write_records
from pasta_lm.learn.data.encode import EncodedExample
from pasta_lm.learn.train import sft as training
from pasta_lm.learn.train import trainer
from pasta_lm.learn.train.config import DataConfig, LoraConfig, ModelConfig, SftConfig, TrainConfig
from pasta_lm.learn.train.learner import Learner, load_learner
from pasta_lm.learn.train.losses import TrainingPass, collate, label_nats, token_nats, weighted_mean
from pasta_lm.learn.train.packs import Pack
from pasta_lm.learn.train.sft import own_examples, train_sft
from pasta_lm.models.load import DTYPES
from tests.fakes.power_cut import power_cut_after
from tests.learn.train.recipes import (
    assert_same,
    begin,
    labelled_logits,
    log,
    losses,
    packs,
    records,
    sft,
    weights,
    write_file,
)

NUM_RECORDS = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return begin(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return write_file(tmp_path_factory.mktemp("data"), NUM_RECORDS, max_tokens=260)


@pytest.fixture(scope="module")
def trained(model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> SftConfig:
    config = sft(model, tmp_path_factory.mktemp("trained"), steps=15, save_steps=5)
    train_sft(config)
    return config


def folder_of(config: SftConfig) -> Path:
    return Path(config.train.out) / "model"


def fresh(config: SftConfig) -> Learner:
    set_seed(config.train.seed)
    return load_learner(config.model.base)


def loss_of(model: PreTrainedModel, pack: Pack, **weights: float) -> Tensor:
    batch = collate([pack], **weights)
    return weighted_mean(label_nats(*labelled_logits(model, batch)), batch.get("loss_weights"))


def test_a_model_can_memorise_its_records(
    model: ModelConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.jsonl"
    answer = parse('<async topic="a">one</async><async topic="b">two</async><sync/>.', "annotator")
    write_records(path, [Record("only", "Count.", answer)])
    data = DataConfig(file=str(path))
    config = sft(model, tmp_path, data, epochs=60, learning_rate=2e-2, schedule="constant")
    loaded = load(train_sft(config))
    request = Request(
        prompt=loaded.vocabulary.encode_prompt([{"role": "user", "content": "Count."}]),
        params=SamplingParams(max_tokens=60),
    )
    ((decoded,),) = TorchEngine(loaded, pool_tokens=256, captures=False).generate([request])
    # Fed in the order of time, by another way through the code, and yet the answer comes out.
    assert decoded.document == answer.with_lengths(loaded.vocabulary.count_tokens)
    assert decoded.finish_reason == "stop"


@pytest.mark.parametrize("weights", [{}, {"decision_weight": 3.0, "first_promise_weight": 9.0}])
def test_accumulated_packs_are_one_large_pack(
    model: ModelConfig, tmp_path: Path, weights: dict[str, float]
) -> None:
    file = tmp_path / "data.jsonl"
    texts = ["one " * 60, "two", "one " * 40]  # no two fit one pack
    write_records(file, [Record(text, "Say it.", parse(text.strip())) for text in texts])
    data = DataConfig(file=str(file), max_tokens=84)
    settings = {"epochs": 1, "accumulate": 2, "learning_rate": 1e-12, **weights}
    config = sft(model, tmp_path / "out", data, **settings)
    train_sft(config)
    learner = fresh(config)
    made = packs(config, learner)
    assert len(made) == 3, "the last step has one pack"
    for row, pack in zip(log(config), (made[0] + made[1], made[2]), strict=False):
        loss = loss_of(learner.model, pack, **weights)
        assert row["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
        grads = torch.autograd.grad(loss, [*learner.model.parameters()])
        norm = torch.cat([grad.flatten() for grad in grads]).norm()
        assert row["grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_more_than_one_process_is_refused(
    model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="a training is one process"):
        train_sft(sft(model, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_interrupted_run_resumes_with_the_same_result(
    model: ModelConfig, file: DataConfig, tmp_path: Path
) -> None:
    settings = {"epochs": 3, "save_steps": 5, "accumulate": 2, "warmup": 0.2}
    whole, parts = (sft(model, tmp_path / name, file, **settings) for name in ("whole", "parts"))
    train_sft(whole)
    with power_cut_after(training, "weighted_mean", 2 * 8 + 1):
        train_sft(parts)
    num_steps = max(losses(parts))
    assert 5 < num_steps < max(losses(whole))
    train_sft(parts, resume=True)
    times = {step: len(found) for step, found in losses(parts).items()}
    assert times == {step: 1 + (5 < step <= num_steps) for step in losses(whole)}
    assert_same(parts, whole)


def test_a_truncated_newest_checkpoint_falls_back_to_the_previous_one(
    trained: SftConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(trained, train=replace(trained.train, out=str(tmp_path)))
    train_sft(config)
    (tmp_path / "checkpoint-15" / trainer.STATE).unlink()
    (tmp_path / "checkpoint-15" / "optimizer.pt").write_bytes(b"half")
    train_sft(config, resume=True)
    assert "checkpoint-15 was not written to its end" in capsys.readouterr().err
    times = {step: len(found) for step, found in losses(config).items()}
    assert times == {step: 1 + (step > 10) for step in range(1, 16)}
    assert_same(config, trained)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_records_of_the_failing_batch_are_named(
    model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    config = sft(model, tmp_path, steps=3, accumulate=2)
    factors = iter([1.0, 1.0, 1.0, value])
    monkeypatch.setattr(
        training, "weighted_mean", lambda *args: weighted_mean(*args) * next(factors)
    )
    with pytest.raises(ModelError, match=f"the loss is {value} after step 1") as caught:
        train_sft(config)
    for index, pack in enumerate(packs(config)):
        for example in pack:
            assert (example.id in caught.value.message) == (index == 3)
    assert "--resume" in str(caught.value.hint)
    assert not folder_of(config).exists()


def test_a_nan_gradient_is_never_saved(
    model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 2
    config = sft(model, tmp_path, steps=3, save_steps=1)
    steps = iter(range(1, 4))

    def spoiled(*args: Tensor) -> Tensor:
        loss = weighted_mean(*args)
        # The same loss, whose gradient is no number.
        return loss + (0 * loss).sqrt() if next(steps) == step else loss

    with monkeypatch.context() as patch:
        patch.setattr(training, "weighted_mean", spoiled)
        with pytest.raises(ModelError, match=r"the weights \S+ are NaN or infinite") as caught:
            train_sft(config)
    assert "--resume" in str(caught.value.hint)
    assert not folder_of(config).exists()
    assert not (tmp_path / f"checkpoint-{step}" / "model.safetensors").exists()
    for weight in weights(train_sft(config, resume=True)).values():
        assert weight.isfinite().all()


def test_records_that_are_too_long_are_named_and_left_out(
    model: ModelConfig, file: DataConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert file.file is not None
    config = sft(model, tmp_path, DataConfig(file=file.file, max_tokens=105), steps=1)
    kept = {example.id for pack in packs(config) for example in pack}
    said = capsys.readouterr().err
    left_out = [record.id for record in records(NUM_RECORDS) if record.id not in kept]
    assert 5 < len(left_out) < NUM_RECORDS
    assert f"{len(left_out)} of {NUM_RECORDS} records are longer than 105 tokens" in said
    assert sum(name in said for name in left_out) == 5


def test_the_model_folder_holds_the_trained_weights(trained: SftConfig) -> None:
    loaded = load(folder_of(trained))
    assert loaded.vocabulary.has_pieces
    assert loaded.positions is PositionStrategy.PREDICT
    learner = fresh(trained)
    assert loaded.eos_ids == {learner.eos_id}
    folder = folder_of(trained)
    checkpoint, saved = map(weights, (folder.with_name("checkpoint-15"), folder))
    assert all(torch.equal(checkpoint[key], saved[key]) for key in saved)
    pack, row = packs(trained, learner)[0], log(trained)[0]
    assert {"step", "time", "loss", "grad_norm", "learning_rate", "epoch"} <= row.keys()
    with torch.no_grad():
        assert loss_of(loaded.model, pack) < loss_of(learner.model, pack) - 0.5


@pytest.mark.parametrize("positions", ["continue", "oracle"])
def test_the_model_folder_records_its_positions(
    model: ModelConfig, tmp_path: Path, positions: str
) -> None:
    join = "recompute" if positions == "continue" else "shared"
    config = sft(model, tmp_path, steps=1, positions=positions, join=join)
    saved = load(train_sft(config))
    assert (str(saved.positions), str(saved.join)) == (positions, join)


def test_data_without_a_fitting_record_are_refused(
    model: ModelConfig, file: DataConfig, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("", encoding="utf-8")
    for data in [DataConfig(file=file.file, max_tokens=20), DataConfig(file=str(empty))]:
        with pytest.raises(InputError, match="nothing to learn"):
            train_sft(sft(model, tmp_path, data, steps=1))


@pytest.mark.parametrize(
    ("more", "kept"), [({}, (0.7, True)), ({"do_sample": False}, (None, False))]
)
def test_a_base_with_contradictory_generation_settings_is_trained_and_saved(
    file: DataConfig, tmp_path: Path, more: dict[str, bool], kept: tuple[float | None, bool]
) -> None:
    base, settings = begin(tmp_path), {"temperature": 0.7, "top_p": 0.8, **more}
    Path(base.base, "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    folder = train_sft(sft(base, tmp_path / "out", file, steps=1))
    saved = json.loads((folder / "generation_config.json").read_text("utf-8"))
    assert (saved.get("temperature"), saved["do_sample"]) == kept


def test_a_full_disk_is_named(
    model: ModelConfig, file: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pasta_lm.learn.train.learner.save", full)
    with pytest.raises(PastaError, match="cannot be written: No space left on device") as caught:
        train_sft(sft(model, tmp_path, file, steps=1))
    assert "make room" in str(caught.value.hint)


OWN = [Record(f"own-{n}", "Say it.", parse(f"{n} " + "xylophone jazz quiz " * 4)) for n in range(3)]


def with_own_text(file: DataConfig, folder: Path) -> DataConfig:
    files = folder / "data.jsonl", folder / "others.jsonl"
    write_records(files[0], [*OWN, *records(NUM_RECORDS)])
    write_records(files[1], [replace(own, document=parse("Somebody else's.")) for own in OWN])
    (folder / "own.txt").write_text("".join(f"{own.id}\n" for own in OWN), "utf-8")
    return replace(file, file=tuple(map(str, files)), own_text=str(folder / "own.txt"))


@pytest.mark.parametrize("kind", ["all weights", "adapter"])
def test_a_training_that_damages_the_bases_own_text_stops(
    kind: str, model: ModelConfig, trained: SftConfig, file: DataConfig, tmp_path: Path
) -> None:
    base = ModelConfig(base=str(Path(trained.train.out) / "model"))
    lora = None if kind == "all weights" else LoraConfig(rank=4)
    data = with_own_text(file, tmp_path)
    settings = {"learning_rate": 0.05, "save_steps": 2, "steps": 6, "max_own_text_rise": 0.02}
    recipe = replace(sft(base, tmp_path / "out", data, **settings), lora=lora)
    first = replace(recipe, train=replace(recipe.train, steps=2, max_own_text_rise=1e6))
    if is_continued := lora is None:
        train_sft(first)  # it still compares with the untrained model
    with pytest.raises(ModelError, match=r"own answers cost \d\.\d+ nats a token more than before"):
        train_sft(recipe, resume=is_continued)
    untrained, *later = [row for row in log(recipe) if "own_text_nats" in row]
    assert (untrained["step"], {row["step"] for row in later} <= {*range(2, 13, 2)}) == (0, True)
    assert later[-1]["own_text_nats"] - untrained["own_text_nats"] > 0.02
    last = replace(recipe, train=replace(recipe.train, steps=later[-1]["step"]))
    for again in (recipe, last):  # it begins with the damaged checkpoint
        with pytest.raises(ModelError, match="own answers cost"):
            train_sft(again, resume=True)
    assert [row for row in log(recipe) if "own_text_nats" in row] == [untrained, *later]
    assert train_sft(replace(last, train=replace(last.train, max_own_text_rise=9.0)), resume=True)
    # The figure of the untrained model is that of the base, whose tags nobody promised to like.
    learner = load_learner(base.base)
    encode = learner.encoder(recipe.train)
    own = own_examples(data, encode)
    assert own == [encode(record.without_tags()) for record in OWN]
    assert not {e.id for pack in packs(recipe, learner) for e in pack} & {e.id for e in own}
    found = token_nats(learner.model, learner.vocabulary, own)
    nats = [n for row in found for n in row.given_text if 0 < n < math.inf]
    assert untrained["own_text_nats"] == pytest.approx(fmean(nats), abs=1e-4)


def test_own_text_that_names_no_record_is_refused(
    model: ModelConfig, file: DataConfig, tmp_path: Path
) -> None:
    (tmp_path / "own.txt").write_text("nobody\n", "utf-8")
    data = replace(file, own_text=str(tmp_path / "own.txt"))
    with pytest.raises(InputError, match=r"own\.txt holds out nothing"):
        train_sft(sft(model, tmp_path / "out", data))


WHOLE = '{"global_step": 1}'


@pytest.mark.parametrize(
    ("states", "newest", "left_out"),
    [
        ({}, None, []),
        ({"checkpoint-5": WHOLE, "checkpoint-10": WHOLE}, "checkpoint-10", []),
        ({"checkpoint-9": WHOLE, "checkpoint-10": None}, "checkpoint-9", ["checkpoint-10"]),
        ({"checkpoint-9": WHOLE, "checkpoint-10": WHOLE[:9]}, "checkpoint-9", ["checkpoint-10"]),
        ({"checkpoint-9": WHOLE, "checkpoint-10": "null"}, "checkpoint-9", ["checkpoint-10"]),
        ({"checkpoint-8": WHOLE, "checkpoint-6": None}, "checkpoint-8", []),
        ({"checkpoint-5": None}, None, ["checkpoint-5"]),
        ({"model": WHOLE, "checkpoint-x": WHOLE, "old-checkpoint-7": WHOLE}, None, []),
    ],
)
def test_the_newest_complete_checkpoint_is_used_and_incomplete_ones_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], states: dict[str, str | None],
    newest: str | None, left_out: list[str],
) -> None:  # fmt: skip
    for name, state in states.items():
        (tmp_path / name).mkdir()
        if state is not None:
            (tmp_path / name / trainer.STATE).write_text(state, encoding="utf-8")
    assert trainer.newest_checkpoint(tmp_path) == (newest and tmp_path / newest)
    said = [
        f"pasta: {tmp_path / name} was not written to its end: it is left out" for name in left_out
    ]
    said += [] if newest else [f"pasta: no checkpoint in {tmp_path}: starting anew"]
    assert capsys.readouterr().err.splitlines() == said


def test_files_and_missing_folders_are_not_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").touch()
    assert trainer.newest_checkpoint(tmp_path) is None
    assert trainer.newest_checkpoint(tmp_path / "absent") is None


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
    monkeypatch: pytest.MonkeyPatch, gpu: bool, unit: str,
    dtype: Literal["float32", "bfloat16"] | None, mixed: bool, expected: bool, frozen: str,
) -> None:  # fmt: skip
    on(monkeypatch, gpu=gpu, unit=unit)
    train = TrainConfig(out="out", steps=1, dtype=dtype, mixed_precision=mixed)
    assert trainer.is_mixed(train) is expected
    assert trainer.frozen_dtype(LoraConfig(), train) is DTYPES[frozen]
    assert trainer.frozen_dtype(None, train) is torch.float32


def test_without_cpu_capabilities_training_is_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not trainer.is_mixed(TrainConfig(out="out", steps=1, mixed_precision=True))


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
    assert trainer.training_arguments(train, num_weights).gradient_checkpointing is expected


def test_of_two_gpus_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_gpus(args: TrainingArguments) -> torch.device:
        args._n_gpu = 2
        return torch.device("cpu")

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(two_gpus))
    args = trainer.training_arguments(TrainConfig(out="out", steps=1), 0)
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
