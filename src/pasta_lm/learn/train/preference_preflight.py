"""The dry run of stage two: a summary, samples of a few prompts, and an encoded pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pasta_lm.learn.data.preferences import (
    PreferencePair,
    comparisons_of,
    is_usable,
    read_pairs,
)
from pasta_lm.learn.data.rollouts import PromptWithReference, Rollout
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
    """Return a summary of a recipe, with samples or an encoded pair; no judge is asked."""
    check_positions(recipe.model.base, recipe.train)
    check_sources(recipe, None, None)
    lines = [_head(recipe)]
    if recipe.data.file is not None:
        lines += _pair_tables(recipe, read_pairs(Path(recipe.data.file))[:1])
    else:
        prompts = prompts_of(recipe)[0]
        with TemporaryDirectory() as folder:
            rollouts = _try_out(recipe, prompts, Path(folder))
            lines += _samples_table(rollouts)
            lines += _judge_estimate(recipe, prompts, rollouts, Path(folder))
    return "\n".join(lines)


def _head(recipe: PreferenceConfig) -> str:
    train, samples = recipe.train, recipe.rollouts.samples
    beta = recipe.loss.beta_for(samples)
    where = recipe.data.file or (recipe.data.records and recipe.data.records.file)
    return (
        f"rounds: {train.rounds}, from {recipe.model.base}; {where}, {samples} samples; "
        f"beta {beta:.4g}, target margin {1 / (2 * beta):.4g} nats; "
        f"AdamW at {train.learning_rate:g}; positions {train.positions}, join {train.join}"
    )


def _pair_tables(recipe: PreferenceConfig, pairs: Sequence[PreferencePair]) -> Iterator[str]:
    learner = load_learner(ModelConfig(base=recipe.model.base))
    pair = pack_pairs(pairs, learner, recipe.train, recipe.data.max_tokens)[0][0]
    for name, example in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        yield f"\n{name}"
        yield example_table(example, learner.vocabulary, learner.eos_id)


def _try_out(
    recipe: PreferenceConfig, prompts: Sequence[PromptWithReference], folder: Path
) -> list[Rollout]:
    """Sample a few prompts, or take the first rollouts of a file."""
    first = Round(1, folder, recipe.model.base)
    tried = prompts if recipe.rollouts.files else prompts[:NUM_PROMPTS]
    return sample_round(first, tried, sampling_of(recipe, first), recipe.rollouts)[:NUM_PROMPTS]


def _samples_table(rollouts: Sequence[Rollout]) -> Iterator[str]:
    """Yield the usable samples of the first prompt that has some, the fastest first."""
    for rollout in rollouts:
        usable = [sample for sample in rollout.samples if is_usable(sample)]
        if usable:
            speeds = {id(one): one.theoretical_speedup(rollout.baseline) for one in usable}
            yield f"samples of {rollout.id}:\n{'speed':>7}  answer"
            for sample in sorted(usable, key=lambda one: -speeds[id(one)]):
                text = " ".join(sample.program.split())
                yield f"{speeds[id(sample)]:>7.3f}  {text[:60]}"
            return
    yield f"no sample of the first {len(rollouts)} prompts is usable"


def _judge_estimate(
    recipe: PreferenceConfig,
    prompts: Sequence[PromptWithReference],
    rollouts: Sequence[Rollout],
    folder: Path,
) -> Iterator[str]:
    """Yield the estimated cost of judging the whole recipe, and one request."""
    assert recipe.judge is not None
    judge = judge_of(recipe.judge, folder)
    comparisons = comparisons_of(rollouts, {prompt.id: prompt.reference for prompt in prompts})
    factor = len(prompts) * recipe.train.rounds / max(len(rollouts), 1)
    estimate = judge.estimate(comparisons).scaled(factor)
    yield f"judge: {judge.name}; all rounds, by the first {len(rollouts)} prompts: {estimate}"
    for message in judge.template.request(comparisons[0]).messages if comparisons else ():
        yield f"--- {message['role']}\n{message['content']}"
