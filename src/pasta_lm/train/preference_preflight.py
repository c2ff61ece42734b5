"""One pair as the model meets it, shown before stage two trains, and how its samples scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pasta_lm.data.encode import EncodedExample
from pasta_lm.data.pairs import PreferencePair, read_pairs
from pasta_lm.data.preferences import Scored, Selection
from pasta_lm.train.config import ModelConfig
from pasta_lm.train.learner import Learner, load_learner
from pasta_lm.train.preference import check_positions, pack_round
from pasta_lm.train.preference_config import PreferenceConfig
from pasta_lm.train.preference_trainer import beta_of
from pasta_lm.train.preflight import describe
from pasta_lm.train.rounds import Round, rollouts_of, select

NUM_TRIED = 4
"""Prompts that are sampled to find a pair to show."""


def preflight(config: PreferenceConfig) -> str:
    """Return what a recipe is about to do, with a pair as the model meets it; nothing is kept.

    Raises:
        UsageError: the recipe does not fit the model.
        InputError: a file is not what it should be.
    """
    check_positions(config)
    first = Round(config, 1, config.model.base)
    lines = [_head(config)]
    if config.data.file is not None:
        pairs = read_pairs(Path(config.data.file))
    else:
        selection = _try_out(first)
        pairs = selection.pairs
        lines += _table(selection)
    learner = load_learner(ModelConfig(base=config.model.base))
    for name, example in _answers(pairs[:1], first, learner):
        lines += [f"\n{name}", describe(example, learner.vocabulary, learner.eos_id)]
    return "\n".join(lines)


def _head(config: PreferenceConfig) -> str:
    train, loss, rollouts = config.train, config.loss, config.rollouts
    beta = beta_of(loss, rollouts.samples)
    tasks = config.data.tasks
    where = config.data.file if tasks is None else f"{tasks.num_prompts} prompts a round"
    return (
        f"rounds: {train.rounds}, from {config.model.base}; {where}, {rollouts.samples} samples; "
        f"{loss.kind}, beta {beta:.4g}, target margin {1 / (2 * beta):.4g} nats; "
        f"{train.optimizer} at {train.learning_rate:g}; positions {train.positions}"
    )


def _try_out(first: Round) -> Selection:
    """Sample a few prompts, or take the first of a file, and score them."""
    tasks = first.tasks()
    is_shared = bool(first.config.rollouts.files)
    with TemporaryDirectory() as folder:
        config = replace(first.config, train=replace(first.config.train, out=folder))
        tried = tasks if is_shared else tasks[:NUM_TRIED]
        rollouts = rollouts_of(replace(first, config=config), tried)[:NUM_TRIED]
    return select(first, tasks, rollouts)


def _table(selection: Selection) -> Iterator[str]:
    """Yield the samples of the first prompt that gave a pair, the best first."""
    if not selection.pairs:
        yield f"none of the first {len(selection.scored)} prompts has two samples to tell apart"
        return
    name = selection.pairs[0].id
    yield f"samples of {name}:"
    yield f"{'score':>9} {'speed':>7} {'quality':>8}  answer"
    for one in sorted(selection.scored[name], key=lambda one: -one.score):
        yield _line(one)


def _line(one: Scored) -> str:
    text = " ".join(one.sample.program.split())
    return f"{one.score:>9.3f} {one.efficiency:>7.3f} {one.quality:>8.3f}  {text[:60]}"


def _answers(
    pairs: Sequence[PreferencePair], first: Round, learner: Learner
) -> Iterator[tuple[str, EncodedExample]]:
    if not pairs:
        return
    pair = pack_round(first, pairs, learner)[0][0]
    yield "chosen", pair.chosen
    yield "rejected", pair.rejected
