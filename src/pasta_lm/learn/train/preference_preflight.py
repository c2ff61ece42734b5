"""The dry run of stage two: a summary, scored samples of one prompt, and an encoded pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pasta_lm.learn.data.preferences import Selection, comparisons_of, read_pairs
from pasta_lm.learn.data.rollouts import PromptWithReference, Rollout
from pasta_lm.learn.judge.llm_judge import LLMJudge
from pasta_lm.learn.train.collate import example_table
from pasta_lm.learn.train.config import ModelConfig
from pasta_lm.learn.train.judging import judge_of
from pasta_lm.learn.train.learner import load_learner
from pasta_lm.learn.train.preference import beta_of, check_positions, pack_round
from pasta_lm.learn.train.preference_config import PreferenceConfig
from pasta_lm.learn.train.rounds import Round, has_originals, originals, rollouts_of, select

NUM_PROMPTS = 4
"""Prompts that are sampled to find a pair to show."""


def preflight(config: PreferenceConfig) -> str:
    """Return a summary of a recipe, with one encoded pair; nothing is trained or kept."""
    check_positions(config)
    first = Round(config, 1, config.model.base)
    lines = [_head(config)]
    if config.data.file is not None:
        pairs = read_pairs(Path(config.data.file))
    else:
        tried = _try_out(first)
        pairs = tried.pairs if isinstance(tried, Selection) else []
        lines += _samples_table(tried) if isinstance(tried, Selection) else tried
    if pairs:
        learner = load_learner(ModelConfig(base=config.model.base))
        pair = pack_round(first, [pairs[0]], learner)[0][0]
        for name, example in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            lines += [f"\n{name}", example_table(example, learner.vocabulary, learner.eos_id)]
    return "\n".join(lines)


def _head(config: PreferenceConfig) -> str:
    train, loss, rollouts = config.train, config.loss, config.rollouts
    beta = beta_of(loss, rollouts.samples)
    tasks = config.data.tasks
    where = config.data.file or (config.data.records and config.data.records.file)
    if tasks is not None:
        where = f"{tasks.num_prompts} prompts a round"
    return (
        f"rounds: {train.rounds}, from {config.model.base}; {where}, {rollouts.samples} samples; "
        f"{loss.kind}, beta {beta:.4g}, target margin {1 / (2 * beta):.4g} nats; "
        f"AdamW at {train.learning_rate:g}; positions {train.positions}, join {train.join}"
    )


def _try_out(first: Round) -> Selection | list[str]:
    """Sample a few prompts, or take the first rollouts of a file, and score them.

    If the judge is a language model, nothing is sent to it; an estimate is returned instead.
    """
    prompts = first.prompts()
    is_shared = bool(first.config.rollouts.files)
    with TemporaryDirectory() as folder:
        config = replace(first.config, train=replace(first.config.train, out=folder))
        tried = prompts if is_shared else prompts[:NUM_PROMPTS]
        rollouts = rollouts_of(replace(first, config=config), tried)[:NUM_PROMPTS]
        judge = judge_of(config.judge, folder, first.tasks())
        if isinstance(judge, LLMJudge):
            return list(_judge_estimate(judge, first.config, prompts, rollouts))
    return select(first, prompts, rollouts, judge)


def _judge_estimate(
    judge: LLMJudge,
    config: PreferenceConfig,
    prompts: Sequence[PromptWithReference],
    rollouts: Sequence[Rollout],
) -> Iterator[str]:
    """Yield the estimated cost of judging the whole recipe, and one request."""
    comparisons = comparisons_of(rollouts, originals(prompts) if has_originals(config) else {})
    factor = len(prompts) * config.train.rounds / max(len(rollouts), 1)
    estimate = judge.estimate(comparisons).scaled(factor)
    yield f"judge: {judge.name}; all rounds, by the first {len(rollouts)} prompts: {estimate}"
    for message in judge.template.request(comparisons[0]).messages if comparisons else ():
        yield f"--- {message['role']}\n{message['content']}"


def _samples_table(selection: Selection) -> Iterator[str]:
    """Yield the samples of the first prompt that gave a pair, the best first."""
    if not selection.pairs:
        yield f"none of the first {len(selection.scored)} prompts has two samples to tell apart"
        return
    name = selection.pairs[0].id
    yield f"samples of {name}:"
    yield f"{'score':>9} {'speed':>7} {'quality':>8}  answer"
    for one in sorted(selection.scored[name], key=lambda one: -one.score):
        text = " ".join(one.sample.program.split())
        yield f"{one.score:>9.3f} {one.efficiency:>7.3f} {one.quality:>8.3f}  {text[:60]}"
