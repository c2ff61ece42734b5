"""Stage two: preference optimisation of quality and speed, in rounds.

In each round the newest model samples several answers to each prompt. The best and the worst are a
pair, and the model is trained to prefer the better one by a margin over the reference model, which
is Pasta-SFT in all rounds. An interrupted round resumes: in its folder ``rollouts.jsonl`` grows by
batches, and ``pairs.jsonl`` is complete or absent.

Source: PASTA, section 4 (BoNBoN, alpha 0.005, LR 5e-7, two rounds).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from pasta_lm.engines.devices import free_memory, usable_device
from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.chat.pool import Spending
from pasta_lm.learn.data import preferences
from pasta_lm.learn.data.annotated import read_records
from pasta_lm.learn.data.preferences import PreferencePair, PromptWithReference, Rollout
from pasta_lm.learn.judge import Judge, LLMJudge, describe_missing, missing_to_json
from pasta_lm.learn.judge.verdicts import VerdictFile, reader_of
from pasta_lm.learn.train import config, packs
from pasta_lm.learn.train.config import PreferenceConfig
from pasta_lm.learn.train.learner import LOG, MAY_CHANGE, MODEL_FOLDER, append_row, open_output
from pasta_lm.learn.train.losses import Batch, bonbon_loss
from pasta_lm.learn.train.packs import LogProbs, PairPack, pair_log_probs
from pasta_lm.learn.train.trainer import PackTrainer, is_mixed, load_to_train
from pasta_lm.models.load import hashes_of, read_training
from pasta_lm.run_folder import hash_files, say
from pasta_lm.strategies import PASTA
from pasta_lm.strategies.model import SERVER_KEYS, Pasta

ROLLOUTS, PAIRS = "rollouts.jsonl", "pairs.jsonl"
_MAY_CHANGE = {
    *MAY_CHANGE - {"train.steps", "train.epochs"},  # finished rounds depend on them
    *("rollouts.pool_tokens", "judge.base_url", "judge.api_key_env"),
    *("judge.file", "judge.journal", "judge.max_missing", "judge.timeout_s", "judge.max_in_flight"),
    *(f"rollouts.{key}" for key in SERVER_KEYS),
}
"""Keys that change no figure of finished rounds."""

Prompts = Sequence[PromptWithReference]
Load = Callable[[], tuple[Pasta, Pasta]]
Show = Callable[..., None]  # Shows the progress of one activity: ``show("answers", 3, 10, note)``.


@dataclass(frozen=True, slots=True)
class Round:
    """The number of a round, counted from 1, its folder, and the model that it begins with."""

    number: int
    folder: Path
    newest: str  # Folder or hub id of the model that is sampled and then trained further.
    show: Show = lambda *_: None

    def say(self, line: str) -> None:
        say(f"round {self.number}: {line}")

    def show_sampling(self, num_done: int, num_all: int, left_s: float | None) -> None:
        left = "" if left_s is None else f"{left_s / 60:.1f} min left"
        self.show(f"prompts of round {self.number} sampled", num_done, num_all, left)

    def show_judging(self, num_done: int, num_all: int, spent: Spending) -> None:
        self.show(f"comparisons of round {self.number} judged", num_done, num_all, str(spent))


def train_preference(
    recipe: PreferenceConfig, *, resume: bool = False, overwrite: bool = False,
    to_read: Path | None = None, show: Show = lambda *_: None,
) -> Path:  # fmt: skip
    """Carry out a recipe; return the model folder of the last round, or ``to_read``.

    ``to_read`` gets what ``judge.file`` has no verdicts on in a round; then the run stops.
    """
    verdicts = None if recipe.judge is None else recipe.judge.file
    judge = reader_of(verdicts, to_read, is_new=not resume)
    data, model, train = recipe.data, recipe.model, recipe.train
    check_taught(model.base, train)
    with open_output(train.out, resume=resume, overwrite=overwrite) as run:
        drawn = prompts_of(data.records, train.rounds)
        inputs = hashes_of("model.base", model.base) | hashes_of("model.baseline", model.baseline)
        if file := data.file or (data.records and data.records.file):
            inputs |= {"data": hash_files(file)}
        run.begin(asdict(recipe), may_change=_MAY_CHANGE, inputs=inputs)
        newest = model.base
        for number in range(1, train.rounds + 1):
            round = Round(number, run.path / f"round-{number}", newest, show)
            folder = round.folder / MODEL_FOLDER
            newest = str(folder)
            if folder.is_dir():
                round.say("done before")
                continue
            pairs = pairs_of(recipe, round, drawn[number - 1], judge)
            if isinstance(pairs, Path):
                return pairs
            free_memory()
            optimise(recipe, round, pairs)
            free_memory()
    return Path(newest)


def check_taught(base: str, train: config.TrainConfig) -> None:
    known = read_training(base)
    if known is None:
        return
    if known.thinks:
        reason = f"model.base {base} was taught to think, and pairs have no thoughts"
        raise UsageError(reason, hint='stage two is for a model of train.thoughts = "none"')
    pairs = (("positions", train.positions, known.positions), ("join", train.join, known.join))
    for key, value, taught in pairs:
        if taught != value:
            reason = f"train.{key} is {value!r}, and model.base was taught {taught.value!r}"
            raise UsageError(reason, hint="decoding, the reference and training must agree")


def prompts_of(records: config.RecordsConfig | None, num_rounds: int) -> Sequence[Prompts]:
    """Return the prompts of each round: its share of a file's records, in shuffled order."""
    if records is None:  # the data are pairs
        return [[]] * num_rounds
    rows = read_records(Path(records.file))
    Random(f"records/{records.seed}").shuffle(rows)
    count = records.num_prompts or len(rows) // num_rounds
    if not count or count * num_rounds > len(rows):
        few = f"{len(rows)} records, too few for {num_rounds} rounds of {count or 1}"
        raise InputError(f"{records.file} has {few}", hint="lower data.records.num_prompts")
    ((name, num),) = Counter(row.id for row in rows).most_common(1)
    if num > 1:
        raise InputError(f"{records.file} has the id {name} twice", hint="give each its own")
    prompts = [
        PromptWithReference(row.id, row.prompt, row.document.plain_text, tuple(row.messages[:-1]))
        for row in rows
    ]
    return [prompts[number * count : (number + 1) * count] for number in range(num_rounds)]


def pairs_of(
    recipe: PreferenceConfig, round: Round, prompts: Prompts, judge: Judge | None
) -> list[PreferencePair] | Path:
    """Return a round's pairs, of a file or of its rollouts; or what a reader is to read first."""
    path = round.folder / PAIRS if recipe.data.file is None else Path(recipe.data.file)
    if recipe.data.file is not None or path.exists():
        return preferences.read_pairs(path)
    if judge is None:
        assert recipe.judge is not None
        judge = config.judge_of(recipe.judge, Path(recipe.train.out), round.show_judging)
    assert recipe.score is not None
    sampling = sampling_of(recipe, round)
    load: Load = partial(load_models, round, sampling.baseline, recipe.rollouts)
    if isinstance(judge, VerdictFile) and judge.to_read is None:
        load = judge.refuse_sampling
    file, show = round.folder / ROLLOUTS, round.show_sampling
    rollouts = preferences.roll_out(file, prompts, sampling, load, show)
    originals = {prompt.id: prompt.reference for prompt in prompts}
    if isinstance(judge, VerdictFile):
        comparisons = preferences.comparisons_of(rollouts, originals)
        if to_read := judge.write_unread(comparisons, f"{sampling.seed}/{round.number}"):
            round.say(f"verdicts on {to_read} alone go to {judge.path}, then --resume goes on")
            return to_read
    return pair(round, rollouts, originals, judge, recipe.score)


def sampling_of(recipe: PreferenceConfig, round: Round) -> preferences.Sampling:
    models, rollouts, seed = recipe.model, recipe.rollouts, recipe.train.seed
    is_first = round.newest == models.base
    return preferences.Sampling(
        # Not the whole path, because a run may be moved.
        model=round.newest if is_first else "/".join(Path(round.newest).parts[-2:]),
        baseline=models.baseline or "", round=round.number, seed=seed, strategy=PASTA,
        samples=rollouts.samples, temperature=rollouts.temperature, max_tokens=rollouts.max_tokens,
    )  # fmt: skip


def load_models(
    round: Round, baseline: str, rollouts: config.RolloutsConfig
) -> tuple[Pasta, Pasta]:
    load = partial(Pasta.from_pretrained, dtype=rollouts.dtype, pool_tokens=rollouts.pool_tokens)
    if rollouts.servers is None:
        model = load(round.newest)
    else:
        model = rollouts.servers.holding(round.newest)
        check_newest(round, model.engine.served_names)
    if not model.supports(PASTA):
        hint = "train it with `pasta train sft` first"
        raise UsageError(f"model.base {round.newest} was not taught PASTA-LANG", hint=hint)
    return model, model if baseline == round.newest else load(baseline)


def check_newest(round: Round, served: Mapping[str, Sequence[str]]) -> None:
    """Refuse servers that do not name the newest folder; their weights cannot be compared."""
    newest = Path(round.newest).parts[-2:]
    for url, names in served.items():
        if round.number > 1 and all(Path(name).parts[-2:] != newest for name in names):
            reason = f"round {round.number} samples {round.newest}, and {url} serves {names[0]}"
            hint = "let it serve that folder under its own name, then --resume"
            raise UsageError(reason, hint=hint)


def pair(
    round: Round, rollouts: Sequence[Rollout], originals: Mapping[str, str], judge: Judge,
    score: preferences.ScoreConfig,
) -> list[PreferencePair]:  # fmt: skip
    if isinstance(judge, LLMJudge):
        estimate = judge.estimate(preferences.comparisons_of(rollouts, originals))
        round.say(f"{judge.name} is to judge: {estimate}")
    selection = preferences.select_pairs(rollouts, originals, judge, score)
    row: dict[str, object] = {"round": round.number, **selection.figures()}
    row |= {"judge": str(judge.path)} if isinstance(judge, VerdictFile) else {}
    if isinstance(judge, LLMJudge):
        if judge.missing:
            reasons = f"{judge.name} gave no verdict: {describe_missing(judge.missing)}"
            round.say(f"{reasons}; {selection.num_unjudged} samples left out")
        row |= {"judge": judge.name, "is_scripted": judge.is_scripted}
        missing = missing_to_json(judge.missing, "prompts")
        row |= {"no_verdict": missing, "spent": str(judge.spending())}
    round.say(", ".join(f"{key} {value:.4g}" for key, value in selection.figures().items()))
    if not selection.pairs:
        raise InputError("nothing to learn: no prompt has two samples of different score")
    append_row(round.folder / LOG, row)
    preferences.write_pairs(round.folder / PAIRS, selection.pairs)
    return selection.pairs


def optimise(recipe: PreferenceConfig, round: Round, pairs: Sequence[PreferencePair]) -> None:
    """Train the newest model on a round's pairs, with the recipe's base as reference."""
    seed, lora = recipe.train.seed + round.number - 1, recipe.lora
    train = replace(recipe.train, out=str(round.folder), seed=seed)
    learner = load_to_train(round.newest, train, lora)
    encode, last = learner.encoder(train), learner.last_position
    packed = packs.pack_pairs(pairs, encode, recipe.data.max_tokens, seed, last_position=last)
    round.say(f"reference log-probabilities of {len(packed)} packs")
    reference = load_to_train(recipe.model.base, train, lora).model.eval()
    reference.to(usable_device(None))
    references = packs.reference_log_probs(packed, reference, is_bfloat16=is_mixed(train))
    del reference
    free_memory()
    loss = recipe.loss.for_samples(recipe.rollouts.samples)
    objective = BonBon(loss.alpha, float(loss.beta), references)
    round.say(
        f"{len(pairs)} pairs in {len(packed)} packs, {train.num_steps(len(packed))} steps of "
        f"{train.accumulate} packs; beta {objective.beta:.4g}; AdamW at {train.learning_rate:g}"
    )
    trainer = PackTrainer(learner, train, lora, packed, objective)
    trainer.learn(resume=any(round.folder.glob("checkpoint-*")))


@dataclass(slots=True)
class BonBon:
    """BoNBoN's loss over pairs; its figures are the margins of the packs since the last ones."""

    alpha: float
    beta: float
    references: Mapping[str, LogProbs]
    _margins: list[Tensor] = field(default_factory=list)

    def collate(self, packed: Sequence[PairPack]) -> Batch:
        return packs.collate_pairs(packed, self.references)

    def loss(self, nats_M: Tensor, batch: Batch) -> Tensor:
        chosen_E, rejected_E = pair_log_probs(nats_M, batch).unbind(dim=1)
        reference_chosen_E, reference_rejected_E = batch["references"].unbind(dim=1)
        margin_E = (chosen_E - rejected_E) - (reference_chosen_E - reference_rejected_E)
        self._margins.append(torch.stack([margin_E, chosen_E, rejected_E]).detach())
        return bonbon_loss(chosen_E, margin_E, self.alpha, self.beta)

    def weight(self, batch: Batch) -> float:
        return len(batch["pair_ids"])

    def figures(self) -> dict[str, float]:
        if not self._margins:
            return {}
        seen = torch.cat(self._margins, dim=1)
        self._margins.clear()
        names = ("margin", "log_prob_chosen", "log_prob_rejected")
        means = dict(zip(names, seen.mean(dim=1).tolist(), strict=True))
        return means | {"share_right": (seen[0] > 0).float().mean().item()}
