"""Stage two: preference optimisation of quality and speed, in rounds.

In each round the newest model samples several answers to each prompt. The best and the worst are a
pair, and the model is trained to prefer the better one by a margin over the reference model, which
is Pasta-SFT in all rounds. A round resumes after any interruption, because everything is written to
its folder before it is used: ``rollouts.jsonl`` grows by batches, and ``pairs.jsonl`` is complete
or absent.

Source: PASTA, section 4 (BoNBoN, alpha 0.005, LR 5e-7, two rounds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import set_seed

from pasta_lm.engines.devices import free_memory, usable_device
from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.chat.pool import Spending
from pasta_lm.learn.data.annotated import read_records
from pasta_lm.learn.data.preferences import (
    PreferencePair,
    PromptWithReference,
    Rollout,
    Sampling,
    ScoreConfig,
    comparisons_of,
    read_pairs,
    roll_out,
    select_pairs,
    write_pairs,
)
from pasta_lm.learn.judge import Judge, LLMJudge, describe_missing, missing_to_json
from pasta_lm.learn.train.config import ModelConfig, PreferenceConfig, RolloutsConfig, judge_of
from pasta_lm.learn.train.learner import (
    LOG,
    MAY_CHANGE,
    MODEL_FOLDER,
    append_row,
    load_learner,
    open_output,
)
from pasta_lm.learn.train.losses import Batch, bonbon_loss
from pasta_lm.learn.train.packs import (
    collate_pairs,
    pack_pairs,
    pair_log_probs,
    reference_log_probs,
    sizes,
)
from pasta_lm.learn.train.trainer import PackTrainer, frozen_dtype, is_mixed
from pasta_lm.models.folder import read_pasta_config
from pasta_lm.models.load import hashes_of
from pasta_lm.run_folder import hash_files, say
from pasta_lm.strategies import PASTA
from pasta_lm.strategies.model import SERVER_KEYS, Pasta

ROLLOUTS, PAIRS = "rollouts.jsonl", "pairs.jsonl"
_MAY_CHANGE = {
    *MAY_CHANGE - {"train.steps", "train.epochs"},  # of finished rounds
    *("rollouts.pool_tokens", "judge.base_url", "judge.api_key_env"),
    *("judge.journal", "judge.max_missing", "judge.timeout_s", "judge.max_in_flight"),
    *(f"rollouts.{key}" for key in SERVER_KEYS),
}
"""Keys that change no figure of finished rounds."""

Prompts = Sequence[PromptWithReference]
Show = Callable[..., None]
"""Shows the progress of one activity: ``show("answers", 3, 10, note)``."""


@dataclass(frozen=True, slots=True)
class Round:
    """The number of a round, counted from 1, its folder, and the model that it begins with."""

    number: int
    folder: Path
    newest: str
    """Folder or hub id of the model that is sampled and then trained further."""
    show: Show = lambda *_: None

    def say(self, line: str) -> None:
        say(f"round {self.number}: {line}")

    def show_sampling(self, num_done: int, num_all: int, left_s: float | None) -> None:
        left = "" if left_s is None else f"{left_s / 60:.1f} min left"
        self.show(f"prompts of round {self.number} sampled", num_done, num_all, left)

    def show_judging(self, num_done: int, num_all: int, spent: Spending) -> None:
        self.show(f"comparisons of round {self.number} judged", num_done, num_all, str(spent))


def train_preference(
    recipe: PreferenceConfig, *, prompts: Sequence[Prompts] | None = None,
    judge: Judge | None = None, resume: bool = False, overwrite: bool = False,
    show: Show = lambda *_: None,
) -> Path:  # fmt: skip
    """Carry out a recipe; return the model folder of the last round.

    ``prompts`` (of each round) and ``judge`` stand for ``data.records`` and ``[judge]``. ``resume``
    continues an interrupted run, at whatever point it stopped; ``overwrite`` deletes it first.
    """
    check(recipe, prompts, judge)
    newest = recipe.model.base
    with open_output(recipe.train.out, resume=resume, overwrite=overwrite) as run:
        drawn = prompts or prompts_of(recipe)
        data, model = recipe.data, recipe.model
        inputs = hashes_of("model.base", model.base) | hashes_of("model.baseline", model.baseline)
        if file := data.file or (data.records and data.records.file):
            inputs |= {"data": hash_files(file)}
        run.begin(asdict(recipe), may_change=_MAY_CHANGE, inputs=inputs)
        for number in range(1, recipe.train.rounds + 1):
            round = Round(number, run.path / f"round-{number}", newest, show)
            folder = round.folder / MODEL_FOLDER
            if folder.is_dir():
                round.say("done before")
            else:
                pairs = pairs_of(recipe, round, drawn[number - 1], judge)
                free_memory()
                optimise(recipe, round, pairs)
                free_memory()
            newest = str(folder)
    return Path(newest)


def check(recipe: PreferenceConfig, prompts: Sequence[Prompts] | None, judge: Judge | None) -> None:
    """Raise a UsageError if pairs cannot be had, or the base was taught other positions."""
    if recipe.data.file is None and prompts is None and recipe.data.records is None:
        raise UsageError("[data] needs exactly one of file and records")
    if recipe.data.file is None and judge is None and recipe.judge is None:
        raise UsageError(
            "[judge] is missing: it compares the samples with other answers",
            hint="name model and base_url of an OpenAI-compatible API",
        )
    train, folder = recipe.train, Path(recipe.model.base)
    known = read_pasta_config(folder) if folder.is_dir() else None
    if known is None:
        return
    if known.thinks:
        reason = f"model.base {folder} was taught to think, and pairs have no thoughts"
        raise UsageError(reason, hint='stage two is for a model of train.thoughts = "none"')
    pairs = (("positions", train.positions, known.positions), ("join", train.join, known.join))
    for key, value, taught in pairs:
        if taught != value:
            raise UsageError(
                f"train.{key} is {value!r}, and model.base was taught {taught.value!r}",
                hint="decoding, the reference and training must agree",
            )


def prompts_of(recipe: PreferenceConfig) -> Sequence[Prompts]:
    """Return the prompts of each round: its share of a file's records, in shuffled order.

    There are none if the data are pairs.
    """
    config, num_rounds = recipe.data.records, recipe.train.rounds
    if config is None:
        return [[]] * num_rounds
    records = read_records(Path(config.file))
    Random(f"records/{config.seed}").shuffle(records)
    count = config.num_prompts or len(records) // num_rounds
    if not count or count * num_rounds > len(records):
        raise InputError(
            f"{config.file} has {len(records)} records, too few for {num_rounds} rounds of "
            f"{count or 1}",
            hint="lower data.records.num_prompts",
        )
    prompts = [
        PromptWithReference(own.id, own.prompt, own.document.plain_text, tuple(own.messages[:-1]))
        for own in records
    ]
    return [prompts[number * count : (number + 1) * count] for number in range(num_rounds)]


def pairs_of(
    recipe: PreferenceConfig, round: Round, prompts: Prompts, judge: Judge | None
) -> list[PreferencePair]:
    """Return a round's pairs: those of the recipe's file, or those made from its rollouts."""
    path = round.folder / PAIRS
    if recipe.data.file is not None or path.exists():
        return read_pairs(path if recipe.data.file is None else Path(recipe.data.file))
    if judge is None:
        assert recipe.judge is not None
        judge = judge_of(recipe.judge, Path(recipe.train.out), round.show_judging)
    assert recipe.score is not None
    sampling = sampling_of(recipe, round)
    load = partial(load_models, round, sampling.baseline, recipe.rollouts)
    rollouts = roll_out(round.folder / ROLLOUTS, prompts, sampling, load, round.show_sampling)
    return pair_round(round, prompts, rollouts, judge, recipe.score)


def sampling_of(recipe: PreferenceConfig, round: Round) -> Sampling:
    rollouts, is_first = recipe.rollouts, round.newest == recipe.model.base
    return Sampling(
        # Not the whole path, because a run may be moved.
        model=round.newest if is_first else "/".join(Path(round.newest).parts[-2:]),
        baseline=recipe.model.baseline or "",
        round=round.number,
        seed=recipe.train.seed,
        strategy=PASTA,
        samples=rollouts.samples,
        temperature=rollouts.temperature,
        max_tokens=rollouts.max_tokens,
    )


def load_models(round: Round, baseline: str, rollouts: RolloutsConfig) -> tuple[Pasta, Pasta]:
    load = partial(Pasta.from_pretrained, dtype=rollouts.dtype, pool_tokens=rollouts.pool_tokens)
    if rollouts.servers is None:
        model = load(round.newest)
    else:
        model = rollouts.servers.holding(round.newest)
        check_newest(round, model.engine.served_names)
    if not model.supports(PASTA):
        raise UsageError(
            f"model.base {round.newest} was not taught PASTA-LANG",
            hint="train it with `pasta train sft` first",
        )
    return model, model if baseline == round.newest else load(baseline)


def check_newest(round: Round, served: Mapping[str, Sequence[str]]) -> None:
    """Refuse servers, with their names of the model, that hold the one of an earlier round.

    Their weights cannot be compared, so from the second round on they must name the folder.
    """
    newest = Path(round.newest).parts[-2:]
    for url, names in served.items():
        if round.number > 1 and all(Path(name).parts[-2:] != newest for name in names):
            raise UsageError(
                f"round {round.number} samples {round.newest}, and {url} serves {names[0]}",
                hint="let it serve that folder under its own name, then --resume",
            )


def pair_round(
    round: Round, prompts: Prompts, rollouts: Sequence[Rollout], judge: Judge, score: ScoreConfig
) -> list[PreferencePair]:
    originals = {prompt.id: prompt.reference for prompt in prompts}
    if isinstance(judge, LLMJudge):
        estimate = judge.estimate(comparisons_of(rollouts, originals))
        round.say(f"{judge.name} is to judge: {estimate}")
    selection = select_pairs(rollouts, originals, judge, score)
    row: dict[str, object] = {"round": round.number, **selection.figures()}
    if isinstance(judge, LLMJudge):
        if judge.missing:
            reasons = f"{judge.name} gave no verdict: {describe_missing(judge.missing)}"
            round.say(f"{reasons}; {selection.num_unjudged} samples left out")
        row |= {"judge": judge.name, "is_scripted": judge.is_scripted}
        row |= {"no_verdict": missing_to_json(judge.missing, "prompts")}
        row |= {"spent": str(judge.spending())}
    round.say(", ".join(f"{key} {value:.4g}" for key, value in selection.figures().items()))
    if not selection.pairs:
        raise InputError("nothing to learn: no prompt has two samples of different score")
    append_row(round.folder / LOG, row)
    write_pairs(round.folder / PAIRS, selection.pairs)
    return selection.pairs


def optimise(recipe: PreferenceConfig, round: Round, pairs: Sequence[PreferencePair]) -> Path:
    """Train the newest model on a round's pairs; return its model folder."""
    train = replace(recipe.train, out=str(round.folder), seed=recipe.train.seed + round.number - 1)
    set_seed(train.seed)
    lora, beta = recipe.lora, recipe.loss.beta_for(recipe.rollouts.samples)
    dtype = frozen_dtype(lora, train)
    learner = load_learner(ModelConfig(base=round.newest), dtype)
    encode, last = learner.encoder(train), learner.last_position
    packs = pack_pairs(pairs, encode, recipe.data.max_tokens, train.seed, last_position=last)

    round.say(f"reference log-probabilities of {len(packs)} packs")
    reference = load_learner(ModelConfig(base=recipe.model.base), dtype).model.eval()
    reference.to(usable_device(None))
    references = reference_log_probs(packs, reference, is_bfloat16=is_mixed(train))
    del reference
    free_memory()
    round.say(
        f"{len(pairs)} pairs in {len(packs)} packs, {train.num_steps(len(packs))} steps of "
        f"{train.accumulate} packs; beta {beta:.4g}; AdamW at {train.learning_rate:g}"
    )
    trainer = PreferenceTrainer(
        learner, train, packs, partial(collate_pairs, references=references), lora
    )
    trainer.alpha, trainer.beta = recipe.loss.alpha, beta
    return trainer.learn(resume=any(round.folder.glob("checkpoint-*")))


class PreferenceTrainer(PackTrainer):
    """The Trainer with BoNBoN's loss over pairs; its log has margins beside the loss."""

    alpha: float
    beta: float
    _seen: Sequence[Tensor] = ()

    def loss(self, nats_M: Tensor, batch: Batch) -> Tensor:
        chosen_E, rejected_E = pair_log_probs(nats_M, batch).unbind(dim=1)
        reference_chosen_E, reference_rejected_E = batch["references"].unbind(dim=1)
        margin_E = (chosen_E - rejected_E) - (reference_chosen_E - reference_rejected_E)
        self._seen = (*self._seen, torch.stack([margin_E, chosen_E, rejected_E]).detach())
        return bonbon_loss(chosen_E, margin_E, self.alpha, self.beta)

    def weight(self, batch: Batch) -> float:
        return len(batch["pair_ids"])

    def log(self, logs: dict[str, float], *args: float | None) -> None:
        if "loss" in logs and self._seen:
            seen = torch.cat([*self._seen], dim=1)
            names = ("margin", "log_prob_chosen", "log_prob_rejected")
            logs |= dict(zip(names, (part.mean().item() for part in seen), strict=True))
            logs["share_right"] = (seen[0] > 0).float().mean().item()
            self._seen = ()
        super().log(logs, *args)


def preflight(recipe: PreferenceConfig) -> str:
    check(recipe, None, None)
    train, samples = recipe.train, recipe.rollouts.samples
    beta = recipe.loss.beta_for(samples)
    where = recipe.data.file or (recipe.data.records and recipe.data.records.file)
    head = (
        f"rounds: {train.rounds}, from {recipe.model.base}; {where}, {samples} samples; "
        f"beta {beta:.4g}, target margin {1 / (2 * beta):.4g} nats; "
        f"AdamW at {train.learning_rate:g}; positions {train.positions}, join {train.join}"
    )
    if recipe.data.file is not None:
        learner, size = load_learner(ModelConfig(base=recipe.model.base)), recipe.data.max_tokens
        first, last = read_pairs(Path(recipe.data.file))[:1], learner.last_position
        ((pair,),) = pack_pairs(first, learner.encoder(train), size, 0, last_position=last)
        return f"{head}\nchosen of {sizes(pair.chosen)}\nrejected of {sizes(pair.rejected)}"
    assert recipe.judge is not None
    # Two other answers, each in both orders.
    num_requests = 4 * samples * sum(map(len, prompts_of(recipe)))
    return f"{head}\n{recipe.judge.model} judges: at most {num_requests} requests"
