"""Models on disk that fork at random, and recipes of stage two that a test can carry out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pasta_lm.interpreter import Limits, PositionStrategy
from pasta_lm.language.document import parse
from pasta_lm.learn.data.preferences import PreferencePair
from pasta_lm.learn.train.preference_config import (
    LossConfig,
    PairsConfig,
    PreferenceConfig,
    PreferenceTrainConfig,
    PromptsConfig,
    RolloutsConfig,
    ScoreConfig,
    StartConfig,
)
from pasta_lm.models.folder import save_model_folder
from pasta_lm.strategies import apar, pasta
from tests.measure.tiny import tiny, tokenizer


def save_tiny(folder: Path, *, seed: int = 0, trained_strategy: str = pasta.NAME) -> str:
    """Write a model folder and return where."""
    model = tiny(f"seed {seed}", seed=seed).engine.loaded.model
    positions = apar.POSITIONS if trained_strategy == apar.NAME else PositionStrategy.PREDICT
    save_model_folder(
        model,
        tokenizer(),
        folder,
        positions=positions,
        limits=Limits(),
        trained_strategy=trained_strategy,
    )
    return str(folder)


def recipe(
    base: str,
    baseline: str,
    out: Path,
    *,
    quality_weight: float = 1.0,
    num_prompts: int = 24,
    files: tuple[str, ...] = (),
    strategy: str = pasta.NAME,
    **train: Any,
) -> PreferenceConfig:
    """Return a recipe: few prompts, short answers, every step logged."""
    settings = {"steps": 10, "rounds": 2, "learning_rate": 3e-4, "log_steps": 1, **train}
    return PreferenceConfig(
        model=StartConfig(base=base, baseline=baseline),
        data=PairsConfig(tasks=PromptsConfig(num_prompts=num_prompts), max_tokens=2000),
        rollouts=RolloutsConfig(
            samples=4, max_tokens=32, pool_tokens=8192, files=files, strategy=strategy
        ),
        score=ScoreConfig(quality_weight=quality_weight),
        loss=LossConfig(beta=0.01),
        train=PreferenceTrainConfig(out=str(out), **settings),
    )


def rows(out: Path, number: int) -> list[dict[str, Any]]:
    """Return what a round logged."""
    text = (out / f"round-{number}" / "log.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def margins(out: Path, number: int) -> dict[int, list[float]]:
    """Return the margins of each step of a round, as often as it was taken."""
    found: dict[int, list[float]] = {}
    for row in rows(out, number):
        if "margin" in row:
            found.setdefault(row["step"], []).append(row["margin"])
    return found


def pair(name: str, chosen: str, rejected: str, prompt: str = "What?") -> PreferencePair:
    """Return a pair of answers in written form."""
    return PreferencePair(
        id=name,
        prompt=prompt,
        chosen=parse(chosen),
        rejected=parse(rejected),
        score_chosen=1.0,
        score_rejected=0.0,
    )
