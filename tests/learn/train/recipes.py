"""Recipes small enough to be carried out in a test, and what their runs left behind."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from lab.tests.task_tokenizer import train_tokenizer
from lab.tests.tasks.reading import annotate
from pasta_lab.tasks import mixture
from pasta_lm.interpreter import PositionStrategy
from pasta_lm.learn.train.config import (
    DataConfig,
    ModelConfig,
    RandomConfig,
    SftConfig,
    TasksConfig,
    TrainConfig,
)
from pasta_lm.learn.train.learner import Learner, load_learner
from pasta_lm.learn.train.sources import Pack, packs_of
from pasta_lm.models.annotated import Record

NUM_TEXTS = 200
ARCHITECTURE = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}


def begin(folder: Path) -> ModelConfig:
    """Write an architecture and a tokenizer, and return what starts from them."""
    drawn = islice(mixture("train", 99), NUM_TEXTS)
    tokenizer = train_tokenizer((text for task in drawn for text in (task.prompt, task.text)), 600)
    tokenizer.save_pretrained(folder / "tokenizer")
    architecture = folder / "tiny.json"
    architecture.write_text(json.dumps(ARCHITECTURE), encoding="utf-8")
    tokenizer_folder = str(folder / "tokenizer")
    return ModelConfig(
        random=RandomConfig(architecture=str(architecture), tokenizer=tokenizer_folder)
    )


def records(count: int) -> list[Record]:
    """Return annotated answers to tasks, each with its structure."""
    drawn = islice(mixture("train", 7), count)
    return [Record(task.id, task.prompt, annotate(task, "gold")) for task in drawn]


def sft(model: ModelConfig, out: Path, data: DataConfig | None = None, **train: Any) -> SftConfig:
    """Return a recipe: tasks, a forward pass of few examples, every step logged."""
    settings = {"learning_rate": 5e-3, "log_steps": 1, "save_steps": 1000, **train}
    if "epochs" not in settings:
        settings = {"steps": 6, **settings}
    tasks = DataConfig(tasks=TasksConfig(), max_tokens=700)
    return SftConfig(model=model, data=data or tasks, train=TrainConfig(out=str(out), **settings))


def packs(config: SftConfig, learner: Learner | None = None) -> list[Pack]:
    """Return what a recipe learns from, in the order in which it does."""
    learner = learner or load_learner(config.model)
    train = config.train
    num_packs = None if train.steps is None else train.steps * train.accumulate
    encode = learner.encoder(PositionStrategy(train.positions))
    found = packs_of(config.data, encode, num_packs, train.seed)
    return [found[index] for index in range(len(found))]


def as_toml(config: SftConfig) -> str:
    """Return a recipe as a file says it, without what is not given."""
    lines = []

    def write(table: dict[str, Any], place: str) -> None:
        if place:
            lines.append(f"[{place}]")
        tables = {key: value for key, value in table.items() if isinstance(value, dict)}
        given = {key: value for key, value in table.items() if value is not None}
        lines.extend(f"{key} = {json.dumps(given[key])}" for key in given.keys() - tables.keys())
        for key, value in tables.items():
            write(value, f"{place}.{key}".lstrip("."))

    write(asdict(config), "")
    return "\n".join(lines) + "\n"


def log(config: SftConfig) -> list[dict[str, Any]]:
    """Return every line of a run's log."""
    lines = (Path(config.train.out) / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def losses(config: SftConfig) -> dict[int, list[float]]:
    """Return the losses of each step, as often as it was taken."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in log(config):
        if "loss" in row:
            found[row["step"]].append(row["loss"])
    return dict(found)
