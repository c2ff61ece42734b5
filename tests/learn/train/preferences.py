"""Models on disk that fork at random, and recipes of stage two that a test can carry out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Document, parse
from pasta_lm.learn.data.preferences import PreferencePair, PromptWithReference, ScoreConfig
from pasta_lm.learn.judge import Comparison
from pasta_lm.learn.train.config import (
    LossConfig,
    PairsConfig,
    PreferenceConfig,
    PreferenceTrainConfig,
    RolloutsConfig,
    StartConfig,
)
from pasta_lm.learn.train.preference import train_preference
from pasta_lm.models.folder import PastaConfig, save_model_folder
from pasta_lm.models.pieces import tag_pieces
from pasta_lm.strategies import APAR, APAR_POSITIONS, PASTA
from tests.tiny import tiny, tokenizer


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
    """Return a recipe: short answers, every step logged; prompts and judge come beside it."""
    settings = {"steps": 10, "rounds": 2, "learning_rate": 3e-4, "log_steps": 1, **train}
    return PreferenceConfig(
        model=StartConfig(base=base, baseline=baseline),
        data=PairsConfig(max_tokens=2000),
        rollouts=RolloutsConfig(samples=4, max_tokens=32, pool_tokens=8192),
        score=ScoreConfig(quality_weight=quality_weight),
        loss=LossConfig(beta=0.01),
        train=PreferenceTrainConfig(out=str(out), **settings),
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


def train(config: PreferenceConfig, count: int = 24, **more: Any) -> Path:
    drawn = prompts(count, config.train.rounds)
    return train_preference(config, prompts=drawn, judge=LongerWins(), **more)


def rows(out: Path, number: int) -> list[dict[str, Any]]:
    text = (out / f"round-{number}" / "log.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def margins(out: Path, number: int) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for row in rows(out, number):
        if "margin" in row:
            found.setdefault(row["step"], []).append(row["margin"])
    return found


def pair(
    name: str, chosen: str | Document, rejected: str | Document, prompt: str = "What?"
) -> PreferencePair:
    one, other = (parse(a) if isinstance(a, str) else a for a in (chosen, rejected))
    texts = {"id": name, "prompt": prompt, "chosen": one, "rejected": other}
    return PreferencePair(**texts, score_chosen=1.0, score_rejected=0.0)  # type: ignore[arg-type]
