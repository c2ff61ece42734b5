"""The Trainer of both stages: recipe, checkpoints, progress, rates of rows."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerState, TrainingArguments, set_seed

from pasta_lm.errors import ModelError
from pasta_lm.learn.train import learner as learners
from pasta_lm.learn.train.config import LoraConfig, TrainConfig
from pasta_lm.learn.train.losses import Batch, label_nats, over_labels
from pasta_lm.learn.train.packs import Pack, PairPack
from pasta_lm.models.adapter import place_of, reference_to
from pasta_lm.models.load import DTYPES
from pasta_lm.models.pieces import token_matrices
from pasta_lm.run_folder import say

STATE = "trainer_state.json"
"""The Trainer writes this file last: a checkpoint that has it is complete."""
TRIM_STEPS = 20
MAX_STORED_WEIGHTS = 1_000_000_000
"""A larger model computes each layer again in the backward pass, unless the recipe says no."""
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
RowRate = tuple[Tensor, Tensor, float]  # a weight, ids of rows, and their rate over the others'


class Objective(Protocol):
    """What a training minimises: the batch of its packs, their loss, and its figures."""

    def collate(self, packs: Sequence[Any], /) -> Batch: ...  # one forward pass

    def loss(self, nats_M: Tensor, batch: Batch, /) -> Tensor: ...  # a pack's mean

    def weight(self, batch: Batch, /) -> float: ...  # of that mean: labels by weight, or pairs

    def figures(self) -> dict[str, float]: ...  # of the packs since the last call, for the log


class PackTrainer(Trainer):
    """The Trainer with the settings of a recipe; packs are learned in their order."""

    def __init__(
        self, learner: learners.Learner, train: TrainConfig, lora: LoraConfig | None,
        packs: Sequence[Pack] | Sequence[PairPack], objective: Objective,
    ) -> None:  # fmt: skip
        self._learner, self._recipe, self._lora, self._objective = learner, train, lora, objective
        self._log_file = Path(train.out) / learners.LOG
        self._base = None
        if lora and train.save == "adapter":  # a reference to the model without adapters
            self._base = reference_to(learner.model, learner.tokenizer, **place_of(learner.source))
        self._adapters = learners.adapted(learner, lora) if lora else None
        args = training_arguments(train, learner.model.num_parameters())
        model = self._adapters or learner.model
        super().__init__(model, args, train_dataset=packs, data_collator=objective.collate)
        self.remove_callback(PrinterCallback)  # standard output is for the result

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], Tensor | int | None]:
        """Return the packs of a step, each with its share: together they count as one large pack.

        The Trainer divides by their number, which is smaller at the end of an epoch.
        """
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        weights = list(map(self._objective.weight, batches))
        for batch, weight in zip(batches, weights, strict=True):
            batch["share"] = weight * len(batches) / sum(weights)
        return batches, count

    def compute_loss(self, model: nn.Module, inputs: Batch, *_: object, **__: object) -> Tensor:
        if self.state.global_step % TRIM_STEPS == 0:
            trim_memory()
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):
            nats_M = over_labels(self._learner.model, inputs, label_nats)
        loss = self._objective.loss(nats_M, inputs)
        if not torch.isfinite(loss):
            ids = list(dict.fromkeys(inputs["record_ids"]))
            raise ModelError(
                f"the loss is {loss.item()} after step {self.state.global_step}, in a batch of "
                f"{len(ids)} records: {', '.join(ids[:8])}",
                hint="lower learning_rate, or look at these records; --resume goes on from the "
                "last checkpoint",
            )
        return loss * float(inputs["share"])

    def create_optimizer(self, *args: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(*args)
        scale_updates(optimizer, row_rates(self._learner, self._recipe))
        return optimizer

    def learn(self, *, resume: bool) -> Path:
        """Train, from the newest checkpoint to ``resume``; save the model; return its folder."""
        checkpoint = newest_checkpoint(Path(self._recipe.out)) if resume else None
        self._first_step, self._start_s = _step_of(checkpoint), time.monotonic()
        has_cudnn = torch.backends.cuda.cudnn_sdp_enabled()
        # It would plan anew for each length of an example.
        torch.backends.cuda.enable_cudnn_sdp(False)
        # A sharp softmax has many denormal numbers, which are slow and as good as zero.
        torch.set_flush_denormal(True)
        keep_freed_memory()
        try:
            # From a checkpoint of the last step the Trainer would take one step more.
            if checkpoint and 0 < self.args.max_steps <= self._first_step:
                self._load_from_checkpoint(str(checkpoint))
                self.state.global_step = self._first_step
                self.callback_handler.on_train_begin(self.args, self.state, self.control)
            else:
                self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        finally:
            torch.set_flush_denormal(False)
            torch.backends.cuda.enable_cudnn_sdp(has_cudnn)
        learner, adapters = self._learner, self._adapters
        if adapters is not None and self._lora and self._base:
            return learners.save_trained(learner, adapters, self._base, self._lora, self._recipe)
        if adapters is not None:  # merged in the frozen weights' dtype
            learner = replace(learner, model=adapters.merge_and_unload())
        return learners.save(learner, self._recipe)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        assert isinstance(self.model, nn.Module)
        learners.check_finite(self.model)
        super().save_model(output_dir, _internal_call)

    def log(self, logs: dict[str, float], *args: float | None) -> None:
        logs |= self._objective.figures() if "loss" in logs else {}
        super().log(logs, *args)
        step, num_steps = self.state.global_step, self.state.max_steps
        learners.append_row(self._log_file, {"step": step, **logs})
        if "loss" in logs:
            margin = f"  margin {logs['margin']:.2f}" if "margin" in logs else ""
            seconds = time.monotonic() - self._start_s
            left = seconds / max(step - self._first_step, 1) * (num_steps - step) / 60
            line = f"step {step}/{num_steps}  loss {logs['loss']:.4f}{margin}"
            print(f"{line}  {left:.1f} min left", file=sys.stderr, flush=True)  # noqa: T201


def row_rates(learner: learners.Learner, train: TrainConfig) -> list[RowRate]:
    """Return the rows whose learning rate is another than the optimiser's.

    Beside adapters the rows of the tag pieces are weights of their own, and the others frozen.
    """
    ratio = (train.tag_learning_rate or train.learning_rate) / train.learning_rate
    named = learner.model.named_parameters()
    # peft's name for rows that are trained while their matrix is frozen
    if apart := [weight for name, weight in named if "trainable_tokens_delta" in name]:
        return [(rows, torch.arange(len(rows)), ratio) for rows in apart if ratio != 1]
    rows: list[RowRate] = []
    for matrix in token_matrices(learner.model).values():
        is_tag = torch.zeros(len(matrix), dtype=torch.bool)
        is_tag[list(learner.vocabulary.piece_ids.values())] = True
        if ratio != 1:
            rows.append((matrix, is_tag.nonzero()[:, 0], ratio))
        if train.freeze_old_rows:
            rows.append((matrix, (~is_tag).nonzero()[:, 0], 0.0))
    return rows


def scale_updates(optimizer: torch.optim.Optimizer, rows: Sequence[RowRate]) -> None:
    """Let each step of an optimiser move rows ``ratio`` times as far; with 0 they stay.

    AdamW's step, weight decay included, is linear in the learning rate, and its moments do not
    depend on it: this is exactly a rate of ``ratio`` times the others', which no parameter group
    can give to some rows of a matrix. Nothing is kept between steps, so checkpoints need no more.
    """
    before: list[Tensor] = []

    def keep(*_: object) -> None:
        before[:] = [weight.detach()[ids] for weight, ids, _ in rows]

    @torch.no_grad()
    def scale(*_: object) -> None:
        for (weight, ids, ratio), old in zip(rows, before, strict=True):
            weight[ids] = old + ratio * (weight[ids] - old)

    if rows:
        optimizer.register_step_pre_hook(keep)
        optimizer.register_step_post_hook(scale)


def newest_checkpoint(out: Path) -> Path | None:
    """Return the newest complete checkpoint of a run; incomplete ones are named and skipped."""
    names = (_CHECKPOINT.fullmatch(path.name) for path in out.glob("*/"))
    for step in sorted((int(name[1]) for name in names if name), reverse=True):
        folder = out / f"checkpoint-{step}"
        with suppress(OSError, ValueError, TypeError):
            _step_of(folder)
            return folder
        say(f"{folder} was not written to its end: it is left out")
    say(f"no checkpoint in {out}: starting anew")
    return None


def _step_of(checkpoint: Path | None) -> int:
    if checkpoint is None:
        return 0
    return int(TrainerState.load_from_json(str(checkpoint / STATE)).global_step)


def is_mixed(train: TrainConfig) -> bool:
    """Return whether matrix products are computed in bfloat16 on this machine.

    A CPU that has neither AMX nor the bfloat16 instructions of AVX-512 stays at float32, which is
    faster there, and so does a GPU that emulates bfloat16.
    """
    if torch.cuda.is_available():
        is_set = train.mixed_precision or train.dtype == "bfloat16"
        return is_set and torch.cuda.is_bf16_supported(including_emulation=False)
    # Older versions of torch cannot list the capabilities of a CPU.
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    has_products = capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
    return train.mixed_precision and bool(has_products)


def load_to_train(
    base: str, train: TrainConfig, lora: LoraConfig | None, strategy: str | None = None
) -> learners.Learner:
    """Load a model and set the seed: what follows are adapters, whose weights are random."""
    if lora and train.save == "adapter":
        learners.check_is_whole(base)
    set_seed(train.seed)
    return learners.load_learner(base, frozen_dtype(lora, train), strategy)


def frozen_dtype(lora: LoraConfig | None, train: TrainConfig) -> torch.dtype:
    """Return the dtype of the weights during training.

    Trained weights are float32, adapters too; frozen ones have the recipe's dtype, so that a large
    model fits into memory: bfloat16 by default where a GPU computes in it.
    """
    if lora is None:
        return torch.float32
    if train.dtype is not None:
        return DTYPES[train.dtype]
    return torch.bfloat16 if torch.cuda.is_available() and is_mixed(train) else torch.float32


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step, where the C library is glibc.

    Otherwise most tensors of a step are mapped anew each time, and clearing their pages takes up to
    a third of the step on a CPU. Tensors above 32 MiB, glibc's limit, are still given back: kept as
    well, they fragment the heap (15 GB after twelve steps of 4,096 tokens).
    """
    if libc := _glibc():
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 2**31 - 1)


def trim_memory() -> None:
    """Give back memory that ``keep_freed_memory`` kept in pieces too small for any tensor.

    Packs differ in length, and so do their tensors: without it the heap grows by 15 MB a step.
    """
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def training_arguments(train: TrainConfig, num_weights: int) -> TrainingArguments:
    is_large = num_weights > MAX_STORED_WEIGHTS
    args = TrainingArguments(
        output_dir=train.out, seed=train.seed,
        max_steps=-1 if train.steps is None else train.steps, num_train_epochs=train.epochs or 1,
        per_device_train_batch_size=1, gradient_accumulation_steps=train.accumulate,
        gradient_checkpointing=is_large if train.checkpointing is None else train.checkpointing,
        # Not reentrant: the frozen weights below an adapter have no gradient.
        gradient_checkpointing_kwargs={"use_reentrant": False},
        learning_rate=train.learning_rate, lr_scheduler_type=train.schedule,
        warmup_steps=train.warmup, adam_beta2=0.98, max_grad_norm=1.0,
        bf16=is_mixed(train), use_cpu=not torch.cuda.is_available(),
        logging_steps=train.log_steps, report_to="none", disable_tqdm=True,
        save_steps=train.save_steps, save_total_limit=2,
        train_sampling_strategy="sequential", remove_unused_columns=False,
        dataloader_pin_memory=False, dataloader_num_workers=train.workers,
    )  # fmt: skip
    if args.n_gpu > 1:  # the Trainer would spread a pack over them
        args._n_gpu = 1
    return args
