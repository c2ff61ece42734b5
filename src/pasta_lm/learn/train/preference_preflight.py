"""The dry run of stage two: a summary, and an encoded pair or the estimated cost of the judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from pasta_lm.learn.data.preferences import comparisons_of, read_pairs
from pasta_lm.learn.train.collate import example_table
from pasta_lm.learn.train.config import ModelConfig
from pasta_lm.learn.train.judging import judge_of
from pasta_lm.learn.train.learner import load_learner
from pasta_lm.learn.train.pair_packs import pack_pairs
from pasta_lm.learn.train.preference import (
    check_positions,
    check_sources,
    prompts_of,
    sampling_of,
)
from pasta_lm.learn.train.preference_config import PreferenceConfig
from pasta_lm.learn.train.rounds import Round, sample_round

NUM_PROMPTS = 4
"""Prompts that are sampled."""


def preflight(recipe: PreferenceConfig) -> str:
    """Return a summary of a recipe; nothing is trained, and no judge is asked."""
    check_positions(recipe.model.base, recipe.train)
    check_sources(recipe, None, None)
    train, samples = recipe.train, recipe.rollouts.samples
    beta = recipe.loss.beta_for(samples)
    where = recipe.data.file or (recipe.data.records and recipe.data.records.file)
    head = (
        f"rounds: {train.rounds}, from {recipe.model.base}; {where}, {samples} samples; "
        f"beta {beta:.4g}, target margin {1 / (2 * beta):.4g} nats; "
        f"AdamW at {train.learning_rate:g}; positions {train.positions}, join {train.join}"
    )
    more = _judging(recipe) if recipe.data.file is None else _pair(recipe, Path(recipe.data.file))
    return "\n".join([head, *more])


def _pair(recipe: PreferenceConfig, file: Path) -> Iterator[str]:
    """Yield the first pair of a file as tables."""
    learner = load_learner(ModelConfig(base=recipe.model.base))
    packs = pack_pairs(read_pairs(file)[:1], learner, recipe.train, recipe.data.max_tokens)
    for name, example in (("chosen", packs[0][0].chosen), ("rejected", packs[0][0].rejected)):
        yield f"\n{name}"
        yield example_table(example, learner.vocabulary, learner.eos_id)


def _judging(recipe: PreferenceConfig) -> Iterator[str]:
    """Sample a few prompts; yield the samples, the cost of judging all rounds, and a request."""
    assert recipe.judge is not None
    prompts = prompts_of(recipe)[0]
    with TemporaryDirectory() as folder:
        first = Round(1, Path(folder), recipe.model.base)
        tried = prompts if recipe.rollouts.files else prompts[:NUM_PROMPTS]
        rollouts = sample_round(first, tried, sampling_of(recipe, first), recipe.rollouts)
        rollouts = rollouts[:NUM_PROMPTS]
        judge = judge_of(recipe.judge, Path(folder))
    for sample in rollouts[0].samples:
        speedup = sample.theoretical_speedup(rollouts[0].baseline)
        yield f"{speedup:>7.3f}  {' '.join(sample.program.split())[:60]}"
    comparisons = comparisons_of(rollouts, {prompt.id: prompt.reference for prompt in prompts})
    factor = len(prompts) * recipe.train.rounds / len(rollouts)
    estimate = judge.estimate(comparisons).scaled(factor)
    yield f"judge: {judge.name}; all rounds, by the first {len(rollouts)} prompts: {estimate}"
    for message in judge.template.request(comparisons[0]).messages if comparisons else ():
        yield f"--- {message['role']}\n{message['content']}"
