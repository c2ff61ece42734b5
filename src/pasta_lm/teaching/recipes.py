"""The recipe of each step of ``pasta teach``, and the files that the steps share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pasta_lm.errors import InputError
from pasta_lm.journal import Row, write_rows, write_whole
from pasta_lm.learn.annotate.own_answers import ROOM, AnswerConfig, read_instructions
from pasta_lm.learn.annotate.recipe import AnnotateConfig, OutputConfig
from pasta_lm.learn.data.annotated import read_ids, read_records, write_records
from pasta_lm.learn.data.preferences import ScoreConfig
from pasta_lm.learn.train import config as training
from pasta_lm.learn.train.learner import MODEL_FOLDER
from pasta_lm.measure.instructions import InstructionSettings
from pasta_lm.measure.prompt_sets import SetFiles
from pasta_lm.teaching.config import StageTwoConfig, TeachConfig

ANSWERS, ANNOTATED, PASTA = "01-answers", "02-annotated", "03-pasta"
PREFERENCE, MEASURES = "04-preference", "05-measures"
"""The folders of the steps."""
INSTRUCTIONS, HELD_OUT = "instructions.jsonl", "held_out.txt"
RECORDS, PROMPTS = "annotated.jsonl", "prompts.jsonl"
HELD_BACK, REFERENCES = "held_back.txt", "references.txt"


class Recipes(NamedTuple):
    """The recipes of all steps, in order."""

    answers: AnswerConfig
    annotation: AnnotateConfig
    pasta: training.SftConfig
    preference: training.PreferenceConfig | None
    measures: InstructionSettings


def recipes_of(model: str, out: Path, config: TeachConfig, instructions: Path) -> Recipes:
    answering, two, measures = config.answers, config.preference, config.measures
    prompts, annotated, dtype = out / MEASURES / "prompts", out / ANNOTATED, config.train.dtype
    answers = AnswerConfig(
        model=model, instructions=str(instructions), exclude=str(prompts / HELD_OUT),
        out=str(out / ANSWERS), limit=answering.num, temperature=answering.temperature,
        max_tokens=answering.max_tokens, think=answering.thoughts != "none",
        max_thinking_tokens=answering.max_thinking_tokens, seed=answering.seed, dtype=dtype,
        in_flight=answering.in_flight or 1,
    )  # fmt: skip
    annotation = AnnotateConfig(
        answers=answers, output=OutputConfig(folder=str(annotated)),
        annotator=config.annotation.annotator, teacher=config.annotation.teacher,
    )  # fmt: skip
    sets = SetFiles(alpaca=measures.alpaca, ifeval=measures.ifeval, instructions=str(prompts))
    measuring = InstructionSettings(
        model=str(out / MODEL_FOLDER), baseline=model, untaught=model, limit=measures.num_prompts,
        max_tokens=measures.max_tokens, num_timed=measures.num_timed,
        num_unmasked=measures.num_unmasked, references=str(annotated / RECORDS),
        reference_ids=str(annotated / REFERENCES), dtype=dtype, sets=sets,
    )  # fmt: skip
    preference = None if two is None else _stage_two(model, out, config, two)
    return Recipes(answers, annotation, _stage_one(model, out, config), preference, measuring)


def _lora(config: TeachConfig) -> training.LoraConfig | None:
    rank, has_adapters = config.train.rank, config.train.weights == "adapter"
    return training.LoraConfig(rank=rank, alpha=2.0 * rank) if has_adapters else None


def _settings(config: TeachConfig, *more: str) -> Row:
    keys = ("positions", "join", "dtype", "checkpointing", "save_steps", "seed", *more)
    settings = {key: getattr(config.train, key) for key in keys}
    return settings | {"mixed_precision": True, "log_steps": 1}


def _stage_one(model: str, out: Path, config: TeachConfig) -> training.SftConfig:
    train, trains_all = config.train, config.train.weights == "all"
    accumulate = 2 if trains_all else 1  # forward passes of a step
    return training.SftConfig(
        model=training.ModelConfig(base=model),
        data=training.DataConfig(
            file=(str(out / ANNOTATED / RECORDS), *config.data.file),
            exclude=(str(out / ANNOTATED / HELD_BACK), *config.data.exclude),
            own_text=str(out / ANNOTATED / REFERENCES), max_tokens=config.data.max_tokens,
        ),
        train=training.TrainConfig(
            out=str(out / PASTA), steps=max(1, train.passes // accumulate), accumulate=accumulate,
            tag_learning_rate=train.tag_learning_rate or (1e-3 if trains_all else 2e-3),
            freeze_old_rows=trains_all, warmup=0.03, save="merged" if trains_all else "adapter",
            thoughts=config.answers.thoughts, max_own_text_rise=train.max_own_text_rise,
            **_settings(config, "learning_rate", "decision_weight", "first_promise_weight"),
        ),
        lora=_lora(config),
    )  # fmt: skip


def _stage_two(
    model: str, out: Path, config: TeachConfig, two: StageTwoConfig
) -> training.PreferenceConfig:
    answers = config.answers
    return training.PreferenceConfig(
        model=training.StartConfig(base=str(out / PASTA / MODEL_FOLDER), baseline=model),
        data=training.PairsConfig(
            records=training.RecordsConfig(file=str(out / PREFERENCE / PROMPTS)),
            max_tokens=2 * config.data.max_tokens,
        ),
        rollouts=training.RolloutsConfig(
            samples=two.samples, max_tokens=answers.max_tokens,
            pool_tokens=(answers.in_flight or 1) * (answers.max_tokens + ROOM),
        ),
        score=ScoreConfig(quality_weight=two.quality_weight),
        judge=two.judge,
        lora=_lora(config),
        train=training.PreferenceTrainConfig(
            out=str(out / PREFERENCE), rounds=two.rounds, steps=two.steps,
            learning_rate=two.learning_rate or config.train.learning_rate / 10, **_settings(config),
        ),
    )  # fmt: skip


def split_instructions(config: TeachConfig) -> tuple[Path, list[str]]:
    if config.answers.file is None:
        folder = Path(__file__).with_name("instructions")
        if not folder.is_dir():  # a clone
            folder = Path(__file__).parents[3] / "corpora" / "instructions"
        return folder / INSTRUCTIONS, read_ids(folder / HELD_OUT)[: config.answers.num_held_out]
    path, num_held_out = Path(config.answers.file).resolve(), config.answers.num_held_out
    names = list(read_instructions(path))
    if len(names) < num_held_out + 2:
        few = f"{len(names)} instructions, too few beside answers.num_held_out = {num_held_out}"
        raise InputError(f"{config.answers.file} has {few}")
    return path, names[-num_held_out:]


def write_held_out(out: Path, instructions: Path, held_out: Sequence[str]) -> None:
    rows, folder = read_instructions(instructions), out / MEASURES / "prompts"
    write_rows(folder / INSTRUCTIONS, [rows[name] for name in held_out])
    write_ids(folder / HELD_OUT, held_out)


def hold_back(out: Path, config: TeachConfig) -> None:
    records = read_records(out / ANNOTATED / RECORDS)
    if len(records) < 2:
        reason = f"{len(records)} of the model's answers can be used, too few to teach it"
        hint = f"ask for more: answers.num in --recipe; {ANSWERS}/counts.json has the reasons"
        raise InputError(reason, hint=hint)
    two, num_references = config.preference, config.measures.num_references
    num_prompts = 0 if two is None else two.rounds * two.num_prompts
    drawn = sorted(records, key=lambda record: hashlib.sha256(record.id.encode()).digest())
    kept = drawn[: min(num_references + num_prompts, len(drawn) // 2)]
    num_references = min(num_references, len(kept) if two is None else len(kept) // 2)
    write_ids(out / ANNOTATED / HELD_BACK, [record.id for record in kept])
    write_ids(out / ANNOTATED / REFERENCES, [record.id for record in kept[:num_references]])
    if two is not None:
        plain = [record.without_tags() for record in kept[num_references:]]
        write_records(out / PREFERENCE / PROMPTS, plain)


def write_ids(path: Path, ids: Sequence[str]) -> None:
    write_whole(path, "".join(f"{name}\n" for name in ids).encode())
