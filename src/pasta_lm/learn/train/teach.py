"""The recipe of every step of ``pasta teach``, and what is written between the steps.

A recipe is written when its step begins, and never changed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from pasta_lm.errors import InputError
from pasta_lm.journal import write_rows, write_whole
from pasta_lm.learn.annotate.own_answers import USABLE, AnswerConfig, read_instructions
from pasta_lm.learn.annotate.recipe import AnnotateConfig, OutputConfig
from pasta_lm.learn.annotate.sources import SourceConfig
from pasta_lm.learn.data.preferences import ScoreConfig
from pasta_lm.learn.train.adapters import cut_difference
from pasta_lm.learn.train.config import DataConfig, LoraConfig, ModelConfig, SftConfig, TrainConfig
from pasta_lm.learn.train.learner import MODEL_FOLDER, written_whole
from pasta_lm.learn.train.preference_config import (
    PairsConfig,
    PreferenceConfig,
    PreferenceTrainConfig,
    RecordsConfig,
    RolloutsConfig,
    StartConfig,
)
from pasta_lm.learn.train.teach_cost import Amounts
from pasta_lm.learn.train.teach_run import HELD_OUT, VERBS, TeachRun, instructions_of, mixed_in
from pasta_lm.models.adapter import is_adapter, read_base, save_adapter
from pasta_lm.models.annotated import read_ids, read_records, write_records
from pasta_lm.models.folder import read_pasta_config
from pasta_lm.models.load import load_pretrained
from pasta_lm.models.pieces import add_pieces
from pasta_lm.recipe import toml_of

RECIPE, PROMPTS = "recipe.toml", "prompts.jsonl"
WHOLE_ACCUMULATE = 2
"""Forward passes of a step, where all weights learn."""


def recipe_of(run: TeachRun, step: str) -> Path:
    """Return the recipe of a step; it is written if it is not there.

    Raises:
        InputError: what the step needs is not there.
    """
    path = run.at(step, RECIPE)
    if not path.exists():
        data = _WRITERS[step](run, run.amounts(step))
        verb = VERBS[step].format(run.at(step))
        write_whole(path, toml_of(data, [f"Written by pasta teach. {verb}"]).encode())
    return path


def _answers(run: TeachRun, amounts: Amounts) -> dict[str, Any]:
    config, (path, held_out) = run.config.answers, instructions_of(run.config)
    rows = read_instructions(path)
    prompts = run.at("measures", "prompts")
    write_rows(prompts / "instructions.jsonl", [rows[name] for name in held_out])
    write_whole(prompts / HELD_OUT, "".join(f"{name}\n" for name in held_out).encode())
    return asdict(
        AnswerConfig(
            model=run.model,
            instructions=str(path),
            exclude=str(prompts / HELD_OUT),
            out=str(run.at("answers")),
            limit=amounts.num_answers,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            seed=config.seed,
            dtype=run.plan["dtype"],
            in_flight=run.plan["in_flight"],
        )
    )


def _annotated(run: TeachRun, amounts: Amounts) -> dict[str, Any]:
    config = run.config.annotation
    return asdict(
        AnnotateConfig(
            source=SourceConfig(
                file=str(run.at("answers", USABLE)), columns="pairs", name="own answers"
            ),
            output=OutputConfig(folder=str(run.at("annotated"))),
            annotator=config.annotator,
            teacher=config.teacher,
        )
    )


def _stage_one(run: TeachRun, amounts: Amounts, step: str) -> dict[str, Any]:
    config, (files, exclude) = run.config.train, mixed_in(run.config)
    every, accumulate = run.trains_all, WHOLE_ACCUMULATE if run.trains_all else 1
    train = TrainConfig(
        out=str(run.at(step)),
        steps=max(1, amounts.passes // accumulate),
        accumulate=accumulate,
        learning_rate=config.learning_rate or (2e-4 if every else 1e-3),
        tag_learning_rate=config.tag_learning_rate or (1e-3 if every else 2e-3),
        decision_weight=config.decision_weight,
        freeze_old_rows=every,
        warmup=0.03,
        positions=config.positions,
        save="merged" if every else "adapter",
        dtype=run.plan["dtype"],
        mixed_precision=True,
        checkpointing=config.checkpointing,
        log_steps=1,
        save_steps=config.save_steps,
        seed=config.seed,
    )
    data = DataConfig(
        file=(str(run.at("annotated", "annotated.jsonl")), *files),
        exclude=(str(run.at("annotated", HELD_OUT)), *exclude),
        max_tokens=run.config.data.max_tokens,
        plain=step == "baseline",
    )
    lora = None if every else LoraConfig(rank=config.rank, alpha=config.rank)
    return asdict(SftConfig(model=ModelConfig(base=run.model), data=data, train=train, lora=lora))


def _preference(run: TeachRun, amounts: Amounts) -> dict[str, Any]:
    config, train = run.config.preference, run.config.train
    num_reserved = len(read_ids(run.at("annotated", HELD_OUT)))
    num_prompts, _ = shares(num_reserved, amounts)
    baseline, base = (str(run.at(one, MODEL_FOLDER)) for one in ("baseline", "pasta"))
    rate = (train.learning_rate or (2e-4 if run.trains_all else 1e-3)) / 10
    return asdict(
        PreferenceConfig(
            model=StartConfig(base=base, baseline=baseline),
            data=PairsConfig(
                records=RecordsConfig(
                    file=str(run.at("preference", PROMPTS)), num_prompts=num_prompts
                ),
                max_tokens=2 * run.config.data.max_tokens,
            ),
            rollouts=RolloutsConfig(
                samples=config.samples,
                max_tokens=run.config.answers.max_tokens,
                pool_tokens=run.plan["in_flight"] * (run.config.answers.max_tokens + 260),
            ),
            score=ScoreConfig(quality_weight=config.quality_weight),
            judge=config.judge,
            lora=None if run.trains_all else LoraConfig(rank=train.rank, alpha=train.rank),
            train=PreferenceTrainConfig(
                out=str(run.at("preference")),
                rounds=amounts.rounds,
                steps=amounts.steps,
                learning_rate=config.learning_rate or rate,
                positions=train.positions,
                dtype=run.plan["dtype"],
                mixed_precision=True,
                checkpointing=train.checkpointing,
                log_steps=1,
                save_steps=train.save_steps,
                seed=train.seed,
            ),
        )
    )


def _measures(run: TeachRun, amounts: Amounts) -> dict[str, Any]:
    config = run.config.measures
    return {
        "model": str(run.at("model")),
        "baseline": str(run.at("baseline", MODEL_FOLDER)),
        "untaught": run.model,
        "limit": amounts.num_measured,
        "max_tokens": config.max_tokens,
        "num_timed": config.num_timed,
        "num_unmasked": config.num_unmasked,
        "num_read": amounts.num_measured,
        "reader": config.reader,
        "references": str(run.at("annotated", "annotated.jsonl")),
        "reference_ids": str(run.at("annotated", HELD_OUT)),
        "dtype": run.plan["dtype"],
        "sets": {
            "alpaca": config.alpaca,
            "ifeval": config.ifeval,
            "instructions": str(run.at("measures", "prompts")),
        },
    }


_WRITERS: Mapping[str, Callable[[TeachRun, Amounts], dict[str, Any]]] = {
    "answers": _answers,
    "annotated": _annotated,
    "baseline": lambda run, amounts: _stage_one(run, amounts, "baseline"),
    "pasta": lambda run, amounts: _stage_one(run, amounts, "pasta"),
    "preference": _preference,
    "measures": _measures,
}


def reserve(run: TeachRun) -> None:
    """Hold annotated answers back from stage one: prompts of stage two, and references.

    Raises:
        InputError: no answer was usable.
    """
    records = read_records(run.at("annotated", "annotated.jsonl"))
    if len(records) < 2:
        raise InputError(
            f"{len(records)} of the model's answers can be used, too few to teach it",
            hint="ask for more: answers.num in --recipe; 01-answers/counts.json has the reasons",
        )
    amounts = run.amounts("annotated")
    wanted = amounts.rounds * amounts.num_prompts + amounts.num_development
    drawn = sorted(records, key=lambda one: hashlib.sha256(one.id.encode()).digest())
    kept = drawn[: min(wanted, len(drawn) // 2)]
    write_whole(run.at("annotated", HELD_OUT), "".join(f"{one.id}\n" for one in kept).encode())
    plain = [replace(one, document=one.document.without_tags()) for one in kept]
    part = run.at("preference", f"{PROMPTS}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    write_records(part, plain)
    part.replace(part.with_suffix(""))


def shares(num_reserved: int, amounts: Amounts) -> tuple[int, int]:
    """Return how many prompts a round has, and how many are for development."""
    num_development = max(1, min(amounts.num_development, num_reserved // 3))
    left = num_reserved - num_development
    return max(1, min(amounts.num_prompts, left // max(amounts.rounds, 1))), num_development


def write_model(run: TeachRun, best: Path) -> None:
    """Write the taught model to the run's folder: whole, or as one adapter of the base.

    After stage two an adapter is the low-rank part of the whole difference, whose rank is that of
    both stages together, so nothing but rounding is lost.
    """
    with written_whole(run.at("model")) as folder:
        if run.trains_all or is_adapter(best):
            shutil.copytree(best, folder)
            return
        _cut(run, best, folder)


def _cut(run: TeachRun, best: Path, folder: Path) -> None:
    config = read_pasta_config(best)
    assert config is not None
    dtype = getattr(torch, run.plan["dtype"])
    base, taught = load_pretrained(run.model, dtype=dtype), load_pretrained(best, dtype=dtype)
    add_pieces(base.model, base.tokenizer)
    save_adapter(
        folder,
        cut_difference(base.model, taught.model, config.piece_ids, 2 * run.config.train.rank),
        base=read_base(run.at("pasta", MODEL_FOLDER)),
        config=config,
        dtype=dtype,
    )
