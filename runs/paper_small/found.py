"""What ``runs/laptop.sh`` has made from the same base by the same recipes: it is not made again."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

MODELS = ("baseline", "pasta-noisy", "pasta-gold")
GRADED = {"test": "pasta-gold-test", "hard": "pasta-gold-hard"}
"""Records that have the baseline's answers to a split."""


def model(laptop: Path, recipe: str, base: str) -> Path | None:
    """Return the folder of a model that was finetuned from this base by this recipe, if there is.

    Args:
        laptop: Where ``runs/laptop.sh`` made its models.
        recipe: As it stands now.
        base: The folder of the base model.
    """
    folder = laptop / recipe / "model"
    if recipe not in MODELS or not (folder / "model.safetensors").exists():
        return None
    file = laptop / f"{recipe}.toml"
    ours = _read(Path(f"runs/recipes/{recipe}.toml"))
    if not file.exists():  # trained by the recipe as it stands, where it stands
        is_its_base = Path(base).parent.parent == laptop
        is_whole = num_steps(laptop / recipe / "log.jsonl") == ours["train"]["steps"]
        return folder if is_its_base and is_whole else None
    theirs = _read(file)
    has_base = Path(theirs["model"].pop("base")).resolve() == Path(base).resolve()
    ours["model"].pop("base")
    return folder if has_base and ours == theirs else None


def graded(laptop: Path, folder: str, split: str, num: int) -> Path | None:
    """Return the records that have a baseline's answers to so many prompts, if there are any.

    Test prompts are answered once by each model, and ``runs/laptop.sh`` may have asked them.

    Args:
        laptop: Where ``runs/laptop.sh`` left its results.
        folder: The baseline's.
        split: Of the prompts.
        num: How many.
    """
    said = laptop / "results" / f"{GRADED.get(split)}.json"
    records = said.with_suffix(".jsonl")
    is_theirs = Path(folder) == laptop / "baseline" / "model"
    if not (is_theirs and said.exists() and records.exists()):
        return None
    num_there: int = json.loads(said.read_text(encoding="utf-8"))["num_prompts"]
    return records if num_there >= num else None


def num_steps(log: Path) -> int:
    """Return how many steps a training has made by its log; none without one."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines), default=0)


def _read(file: Path) -> dict[str, Any]:
    """Read a recipe but for where it puts what it makes."""
    recipe = tomllib.loads(file.read_text(encoding="utf-8"))
    recipe["train"].pop("out")
    return recipe
