"""Recipes small enough to be carried out in a test, and what their runs left behind."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, set_seed

from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.learn.data.annotated import Record, write_records
from pasta_lm.learn.data.encode import NO_LABEL
from pasta_lm.learn.data.preferences import PreferencePair, PromptWithReference, ScoreConfig
from pasta_lm.learn.judge import Comparison, Judge
from pasta_lm.learn.train import config as training
from pasta_lm.learn.train import preference
from pasta_lm.learn.train.config import (
    DataConfig,
    ModelConfig,
    PreferenceConfig,
    SftConfig,
    TrainConfig,
)
from pasta_lm.learn.train.learner import Learner, load_learner
from pasta_lm.learn.train.losses import Batch
from pasta_lm.learn.train.packs import Pack, packs_of
from pasta_lm.models.folder import PastaConfig, save_model_folder
from pasta_lm.models.pieces import tag_pieces
from pasta_lm.strategies import APAR, APAR_POSITIONS, PASTA
from tests.small_tokenizers import FAMILIES
from tests.taught import CHAT
from tests.tiny import SIZES, tiny, tokenizer

SENTENCES = (
    "Wake up early, it gives you time.",
    "Drink a glass of water, then stretch for 10 minutes.",
    "Write a short list; keep it!",
    "The quick brown fox jumps over the lazy dog.",
    "Blocks promise topics, tokens and lengths.",
)


ARCHITECTURE = {**SIZES, "num_attention_heads": 2, "intermediate_size": 64}
ARCHITECTURE |= {"model_type": "llama", "initializer_range": 0.02, "tie_word_embeddings": True}


def begin(folder: Path, **settings: Any) -> ModelConfig:
    """Save a model with random weights that knows no tags."""
    tokenizer = FAMILIES["byte_level"]()
    tokenizer.chat_template = CHAT
    tokenizer.eos_token = "<|end|>"
    tokenizer.save_pretrained(folder / "base")
    ends = dict.fromkeys(("eos_token_id", "pad_token_id"), tokenizer.eos_token_id)
    sizes = {"vocab_size": len(tokenizer), **ARCHITECTURE, **settings}
    config = AutoConfig.for_model(**sizes, **ends)
    set_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "base")
    return ModelConfig(base=str(folder / "base"))


def records(count: int, *, seed: int = 7) -> list[Record]:
    """Return annotated answers: two to four independent tips, some with a conclusion."""
    return [
        _record(f"tips-{seed}-{number:03}", Random(f"{seed}/{number}")) for number in range(count)
    ]


def _record(name: str, random: Random) -> Record:
    tips = random.sample(SENTENCES, random.randint(2, 4))
    blocks = [Block(f"tip {n}", None, (Text(f"\n{n}. {tip}"),)) for n, tip in enumerate(tips, 1)]
    end = (Sync(), Text(f"\nDo all {len(tips)}.")) if random.random() < 0.5 else ()
    prompt = f"Give me {len(tips)} tips for day {random.randint(1, 99)}."
    return Record(name, prompt, Document((Text("Here they are:"), *blocks, *end)))


def write_file(folder: Path, count: int = 24, **settings: Any) -> DataConfig:
    folder.mkdir(parents=True, exist_ok=True)
    write_records(folder / "data.jsonl", records(count))
    return DataConfig(file=str(folder / "data.jsonl"), **settings)


def sft(model: ModelConfig, out: Path, data: DataConfig | None = None, **train: Any) -> SftConfig:
    """Return a recipe: a forward pass of few examples, every step logged."""
    settings = {"learning_rate": 5e-3, "log_steps": 1, "save_steps": 1000, **train}
    if "epochs" not in settings:
        settings = {"steps": 6, **settings}
    if data is None:
        data = write_file(out.with_name(f"{out.name}-data"), 200, max_tokens=500)
    return SftConfig(model=model, data=data, train=TrainConfig(out=str(out), **settings))


def packs(config: SftConfig, learner: Learner | None = None) -> list[Pack]:
    """Return the packs of a recipe, in the order in which they are learned."""
    learner = learner or load_learner(config.model.base)
    return packs_of(config.data, learner.encoder(config.train), config.train.seed)


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of all tokens of a batch."""
    inputs = {name: batch[name] for name in ("input_ids", "position_ids", "pasta_pass")}
    return model(**inputs, use_cache=False).logits[0]  # type: ignore[no-any-return]


def labelled_logits(model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the logits and labels of the tokens of a batch that have a label."""
    labels = batch["shift_labels"][0]
    return logits_of(model, batch)[labels != NO_LABEL], labels[labels != NO_LABEL]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def log(config: SftConfig) -> list[dict[str, Any]]:
    lines = (Path(config.train.out) / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def assert_same(config: SftConfig, whole: SftConfig) -> None:
    """Hold a run to the last losses of each step and to the weights of another one."""
    last, expected = ({n: found[-1] for n, found in losses(c).items()} for c in (config, whole))
    assert last == pytest.approx(expected, abs=1e-6)
    saved, others = (weights(Path(one.train.out) / "model") for one in (config, whole))
    assert_close(saved, others, atol=1e-6, rtol=1e-5)


def losses(config: SftConfig) -> dict[int, list[float]]:
    """Return the losses of each step, as often as it was taken."""
    return by_step(log(config), "loss")


def by_step(rows: Sequence[dict[str, Any]], key: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if key in row:
            found[row["step"]].append(row[key])
    return dict(found)


def save_tiny(folder: Path, *, seed: int = 0, trained_strategy: str = PASTA) -> str:
    model = tiny(f"seed {seed}", seed=seed).engine.loaded.model
    positions = APAR_POSITIONS if trained_strategy == APAR else PositionStrategy.PREDICT
    config = PastaConfig(
        piece_ids=tag_pieces(tokenizer()),
        positions=positions,
        limits=Limits(),
        trained_strategy=trained_strategy,
    )
    save_model_folder(model, tokenizer(), folder, config)
    return str(folder)


def recipe(
    base: str, baseline: str, out: Path, *, quality_weight: float = 1.0, **train: Any
) -> PreferenceConfig:
    """Return a recipe: short answers, every step logged; ``train`` brings prompts and judge."""
    settings = {"steps": 10, "rounds": 2, "learning_rate": 3e-4, "log_steps": 1, **train}
    return PreferenceConfig(
        model=training.StartConfig(base=base, baseline=baseline),
        data=training.PairsConfig(records=training.RecordsConfig(file=__file__), max_tokens=2000),
        rollouts=training.RolloutsConfig(samples=4, max_tokens=32, pool_tokens=8192),
        score=ScoreConfig(quality_weight=quality_weight),
        judge=training.JudgeConfig(model="any", base_url="http://127.0.0.1:9/v1"),
        loss=training.LossConfig(beta=0.01),
        train=training.PreferenceTrainConfig(out=str(out), **settings),
    )


def prompts(count: int = 24, rounds: int = 2) -> list[list[PromptWithReference]]:
    """Return the prompts of each round; no two rounds share one."""
    return [
        [PromptWithReference(f"p{n}", f"Name {n} rivers.", f"The Nile and {n} more.") for n in some]
        for some in (range(r * count, (r + 1) * count) for r in range(rounds))
    ]


class LongerWins:
    """A judge that prefers the longer answer, as sure as it is longer."""

    def compare(self, comparisons: Sequence[Comparison]) -> list[float]:
        sizes = [(len(one.first), len(one.second)) for one in comparisons]
        return [(first - second) / (first + second) for first, second in sizes]


LONGER_WINS = LongerWins()


def train(
    config: PreferenceConfig,
    count: int = 24,
    judge: Judge | None = LONGER_WINS,
    **more: Any,
) -> Path:
    drawn = prompts(count, config.train.rounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preference, "prompts_of", lambda *_: drawn)
        if judge is not None:  # else it is the recipe's
            patch.setattr(preference, "reader_of", lambda *_, **__: judge)
        return preference.train_preference(config, **more)


def rows(out: Path, number: int) -> list[dict[str, Any]]:
    text = (out / f"round-{number}" / "log.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def margins(out: Path, number: int) -> dict[int, list[float]]:
    return by_step(rows(out, number), "margin")


def pair(
    name: str, chosen: str | Document, rejected: str | Document, prompt: str = "What?"
) -> PreferencePair:
    one, other = (parse(a) if isinstance(a, str) else a for a in (chosen, rejected))
    texts = {"id": name, "prompt": prompt, "chosen": one, "rejected": other}
    return PreferencePair(**texts, score_chosen=1.0, score_rejected=0.0)  # type: ignore[arg-type]
