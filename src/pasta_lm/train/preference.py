"""Stage two: preference optimisation of quality and speed, in rounds, on the Trainer.

Each round the newest model answers prompts many times; of each prompt the best and the worst
sample are a pair; the model learns to prefer the better one by a margin over its reference, which
stays Pasta-SFT in all rounds.

Source: PASTA, section 4 (BoNBoN, alpha 0.005, LR 5e-7, two rounds).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from pathlib import Path

from transformers import PreTrainedModel, PrinterCallback, set_seed

from pasta_lm.data.pairs import PreferencePair
from pasta_lm.engines.torch.loading import usable_device
from pasta_lm.engines.torch.model_folder import read_pasta_config
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.train.adapters import adapted, frozen_dtype, merged, snapshot
from pasta_lm.train.checkpoints import newest_checkpoint
from pasta_lm.train.config import ModelConfig
from pasta_lm.train.learner import MODEL_FOLDER, Learner, load_learner, save
from pasta_lm.train.pair_packs import LogProbs, PairPacks, collate_pairs, pack_pairs
from pasta_lm.train.preference_config import PreferenceConfig
from pasta_lm.train.preference_trainer import (
    EarlyModel,
    PreferenceTrainer,
    beta_of,
    loss_of,
)
from pasta_lm.train.processes import num_processes
from pasta_lm.train.progress import Progress
from pasta_lm.train.reference import reference_log_probs
from pasta_lm.train.rounds import LOG, Round, Show, pairs_of, say
from pasta_lm.train.same_recipe import check_same_recipe, has_begun
from pasta_lm.train.trainer import is_mixed, training_arguments

EARLY_FOLDER = "model-tenth"


def train_preference(
    config: PreferenceConfig, *, resume: bool = False, show: Show | None = None
) -> Path:
    """Carry out a recipe; return the folder of the model that the last round gave.

    Args:
        config: The recipe.
        resume: Go on where an earlier run stopped, in whatever it was doing.
        show: Told how far the sampling is; None: lines on standard error say it.

    Raises:
        UsageError: there is a run already and it is not to be resumed or is of another recipe, or
            the recipe does not fit the model.
        InputError: there is nothing to learn, or a file is of another recipe.
        ModelError: the loss or the weights became NaN or infinite.
    """
    if num_processes() > 1:
        raise UsageError("stage two is for one process: each would sample answers of its own")
    check_positions(config)
    if not resume and has_begun(Path(config.train.out)):
        raise UsageError(
            f"{config.train.out} has a run already",
            hint="--resume goes on with it; or name another folder under train.out",
        )
    check_same_recipe(config)
    newest = config.model.base
    for number in range(1, config.train.rounds + 1):
        newest = str(_carry_out(Round(config, number, newest), show))
    return Path(newest)


def check_positions(config: PreferenceConfig) -> None:
    """Refuse a recipe whose positions are not those that its base was taught.

    Raises:
        UsageError: they differ.
    """
    folder = Path(config.model.base)
    taught = read_pasta_config(folder) if folder.is_dir() else None
    if taught is not None and taught.positions != config.train.positions:
        raise UsageError(
            f"train.positions is {config.train.positions!r}, and model.base was taught "
            f"{taught.positions.value!r}",
            hint="decoding, the reference and training must agree",
        )


def _carry_out(round: Round, show: Show | None) -> Path:
    """Return the model folder of a round; what is there of it already is not made again."""
    folder = round.folder / MODEL_FOLDER
    if folder.is_dir():
        say(f"round {round.number}: done before")
        return folder
    pairs, train = pairs_of(round, show), round.train
    set_seed(train.seed)
    lora = round.config.lora
    learner = load_learner(ModelConfig(base=round.newest), frozen_dtype(lora, train))
    packs = pack_round(round, pairs, learner)
    references = _references(round, packs)
    say(f"round {round.number}: {describe_round(round, len(pairs), len(packs))}")
    adapters = adapted(learner, lora) if lora else None

    def keep_early() -> None:
        now = learner if adapters is None else snapshot(learner, adapters)
        save(now, train, round.folder / EARLY_FOLDER)

    trainer = PreferenceTrainer(
        train,
        loss_of(round.config.loss, round.config.rollouts.samples),
        model=adapters or learner.model,
        args=training_arguments(train),
        train_dataset=packs,
        data_collator=partial(collate_pairs, references=references),
        callbacks=[
            Progress(round.folder / LOG),
            EarlyModel(keep_early),
        ],
    )
    trainer.remove_callback(PrinterCallback)  # standard output is for the result
    has_begun = any(round.folder.glob("checkpoint-*"))
    checkpoint = newest_checkpoint(round.folder) if has_begun else None
    trainer.learn(checkpoint)
    return save(learner if adapters is None else merged(learner, adapters), train)


def pack_round(round: Round, pairs: Sequence[PreferencePair], learner: Learner) -> PairPacks:
    """Return a round's pairs as passes of the model that learns, in the round's order."""
    return pack_pairs(
        pairs,
        learner.encoder(PositionStrategy(round.train.positions)),
        round.config.data.max_tokens,
        round.train.seed,
        last_position=learner.last_position,
    )


def describe_round(round: Round, num_pairs: int, num_packs: int) -> str:
    """Return how a round learns, in a line."""
    config, train = round.config, round.train
    num_steps = train.steps or ceil((train.epochs or 1) * ceil(num_packs / train.accumulate))
    return (
        f"{num_pairs} pairs in {num_packs} packs, {num_steps} steps of {train.accumulate} x "
        f"{config.data.max_tokens} tokens at most; {config.loss.kind}, beta "
        f"{beta_of(config.loss, config.rollouts.samples):.4g}; {train.optimizer} at "
        f"{train.learning_rate:g}"
    )


def _references(round: Round, packs: PairPacks) -> dict[str, LogProbs]:
    def load() -> PreTrainedModel:
        say(f"round {round.number}: reference log-probabilities of {len(packs)} packs")
        dtype = frozen_dtype(round.config.lora, round.train)
        learner = load_learner(ModelConfig(base=round.config.model.base), dtype)
        learner.model.to(usable_device(None))  # type: ignore[arg-type]
        learner.model.eval()
        return learner.model

    path = round.folder / "reference.jsonl"
    return reference_log_probs(path, packs, load, is_bfloat16=is_mixed(round.train))
