"""Load, extend, adapt and save the trained model; the output folder of a training."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm.engines.passes.attention import NAME, register
from pasta_lm.engines.passes.row_reader import exact_reader
from pasta_lm.errors import MissingExtraError, ModelError, UsageError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.parser import Form
from pasta_lm.learn.data.encode import encode_example, encode_points
from pasta_lm.learn.train.config import LoraConfig, TrainConfig
from pasta_lm.learn.train.losses import reads_texts
from pasta_lm.learn.train.packs import Encode
from pasta_lm.models.adapter import Adapter, BaseReference, is_adapter, save_adapter
from pasta_lm.models.checkpoint import first_line, gguf_of_package
from pasta_lm.models.folder import PastaConfig, save_model_folder
from pasta_lm.models.generation import eos_ids, turn_end
from pasta_lm.models.load import DTYPES, last_position, load_pretrained
from pasta_lm.models.names import resolve
from pasta_lm.models.pieces import add_pieces, tag_pieces, token_matrices
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.parts.declared import NAME as PARTS
from pasta_lm.run_folder import RunFolder, full_disk_named, written_whole
from pasta_lm.strategies import APAR, PASTA
from pasta_lm.strategies import skeleton_of_thought as sot

if TYPE_CHECKING:
    from peft import PeftModel
    from peft.tuners.trainable_tokens import TrainableTokensLayer

MODEL_FOLDER, LOG, RECIPE = "model", "log.jsonl", "recipe.json"
MAY_CHANGE = {
    *("model.base", "model.baseline", "data.file", "data.exclude", "train.out"),  # moved files
    *("train.steps", "train.epochs", "train.rounds"),  # a longer run
    *("train.workers", "train.log_steps", "train.save_steps", "train.max_own_text_rise"),
}
"""Keys of a recipe that may change when a run is continued."""


@dataclass(frozen=True, slots=True)
class Learner:
    """A model in training, with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    vocabulary: Vocabulary
    eos_id: int
    trained_strategy: str = PASTA  # The strategy that it was trained for, or is about to be.
    source: str = ""  # Folder or hub id of the base.
    dtype: torch.dtype = torch.float32  # The dtype in which the base was saved.
    config: PastaConfig | None = None  # How the base was taught the tags; None: it was not.

    @property
    def last_position(self) -> int | None:
        return last_position(self.model)

    def encoder(self, train: TrainConfig) -> Encode:
        vocabulary, eos_id = self.vocabulary, self.eos_id
        positions, join = PositionStrategy(train.positions), Join(train.join)
        if self.trained_strategy == sot.NAME:
            return partial(encode_points, vocabulary=vocabulary, eos_id=eos_id, strategy=positions)
        form = Form.FORKED if self.trained_strategy == APAR else Form.MAIN
        is_plain = (positions, join) == (PositionStrategy.CONTINUE, Join.RECOMPUTE)
        if form is Form.MAIN and reads_texts(self.model) and not is_plain:
            raise UsageError(
                f"{type(self.model).__name__} learns plain texts only: its threads share no cache",
                hint="train with positions 'continue' and join 'recompute' (teach --for servers)",
            )
        return partial(
            encode_example, vocabulary=vocabulary, eos_id=eos_id, strategy=positions, form=form,
            join=join, thoughts=train.thoughts,
        )  # fmt: skip

    def saved_dtype(self, train: TrainConfig) -> torch.dtype:
        return self.dtype if train.dtype is None else DTYPES[train.dtype]

    def pasta_config(self, train: TrainConfig) -> PastaConfig:
        thinks = train.thoughts != "none"
        return PastaConfig(
            piece_ids=self.vocabulary.piece_ids, positions=PositionStrategy(train.positions),
            limits=Limits(), trained_strategy=self.trained_strategy, join=Join(train.join),
            thinks=thinks, thinking=self.vocabulary.thinking if thinks else None,
        )  # fmt: skip


def load_learner(
    base: str, dtype: torch.dtype = torch.float32, strategy: str | None = None
) -> Learner:
    """Load a model with the tag pieces and our attention; float32 to be trained.

    It will be trained for a strategy; None: for the one that it knows.
    """
    pretrained = load_pretrained(base, dtype=dtype)
    model, tokenizer, known = pretrained.model, pretrained.tokenizer, pretrained.config
    end = turn_end(tokenizer)  # learned is the end that the chat template writes
    eos_id = tokenizer.eos_token_id if end is None else end
    if not isinstance(eos_id, int):
        raise ModelError(f"[model] {base}: its tokenizer has no end-of-text")
    reader = exact_reader(model)
    make_savable(model.generation_config)
    add_pieces(model, tokenizer)
    if reader is None:  # else it learns plain texts
        register()
        model.set_attn_implementation(NAME)
    vocabulary = Vocabulary(tokenizer, tag_pieces(tokenizer))
    strategy = strategy or (known.trained_strategy if known else PASTA)
    saved_dtype = dtype_as_saved(base)
    return Learner(model, tokenizer, vocabulary, eos_id, strategy, base, saved_dtype, known)


def dtype_as_saved(base: str) -> torch.dtype:
    if not gguf_of_package(base):
        with suppress(OSError, ValueError):
            return AutoConfig.from_pretrained(base, trust_remote_code=False).dtype or torch.float32
    return torch.float32


def make_savable(config: GenerationConfig | None) -> None:
    """Change a base's settings so that transformers saves them: a temperature needs sampling."""
    if config is None:
        return
    try:
        config.validate(strict=True)
    except ValueError:
        if config.do_sample is False:  # it stays greedy
            config.temperature = config.top_p = config.top_k = config.min_p = None
        else:
            config.do_sample = True


def adapted(learner: Learner, lora: LoraConfig) -> PeftModel:
    """Freeze a learner's weights, add adapters in place, and return the model to train.

    Its checkpoints hold only the adapters and the trained rows.
    """
    try:
        import peft
    except ImportError as exc:
        raise MissingExtraError("[lora] (peft)", "train") from exc
    tag_ids = sorted(learner.vocabulary.piece_ids.values())
    rows = dict.fromkeys(token_matrices(learner.model), tag_ids)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=lora.rank, lora_dropout=lora.dropout,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # a float is fine
        target_modules=[*lora.targets] or "all-linear",  # all but the output matrix
        trainable_token_indices=rows if lora.trained_tokens == "tags" else None,
    )  # fmt: skip
    try:
        model = peft.get_peft_model(learner.model, config)
    except ValueError as exc:
        hint = "targets are names of linear layers, such as q_proj; without any, all learn"
        raise UsageError(f"[lora] does not fit the model: {first_line(exc)}", hint=hint) from exc
    assert isinstance(model, peft.PeftModel)
    for module in model.modules():
        if isinstance(module, peft.tuners.trainable_tokens.TrainableTokensLayer):
            # peft's own copies the whole matrix at each call.
            module.forward = partial(_with_own_rows, module)  # type: ignore[method-assign]
    # Otherwise a checkpoint asks the hub for the base, and keeps embeddings that have grown.
    model.peft_config["default"].base_model_name_or_path = None
    return model


def _with_own_rows(layer: TrainableTokensLayer, inputs: Tensor) -> Tensor:
    """Apply a token matrix whose trained rows, of sorted ids, are apart from the rest."""
    [(name, rows_NH)] = layer.trainable_tokens_delta.items()
    ids_N = torch.tensor(layer.token_indices[name], device=inputs.device)
    out: Tensor = layer.base_layer(inputs)
    if layer.disable_adapters:
        return out
    if isinstance(layer.base_layer, nn.Linear):  # the output head
        bias_V = layer.base_layer.bias
        bias_N = None if bias_V is None else bias_V[ids_N].to(inputs.dtype)
        own = F.linear(inputs, rows_NH.to(inputs.dtype), bias_N)
        return out.index_copy(-1, ids_N, own.to(out.dtype))
    is_trained = torch.isin(inputs, ids_N)
    rows = rows_NH[torch.searchsorted(ids_N, inputs[is_trained])]
    rows = rows * getattr(layer.base_layer, "embed_scale", 1.0)  # Gemma's
    return out.index_put((is_trained,), rows.to(out.dtype))


def check_is_whole(source: str) -> None:
    if is_adapter(Path(resolve(source))):
        reason = f"{source} is an adapter, and an adapter has no adapter of its own"
        hint = f"pasta export {source} OUT --merged makes a whole model of it; name OUT"
        raise UsageError(reason, hint=hint)


def save(learner: Learner, train: TrainConfig) -> Path:
    """Write ``model`` in ``train.out``, complete or not at all; return the folder.

    The learner's weights change to the dtype in which they are saved.
    """
    check_finite(learner.model)
    learner.model.to(learner.saved_dtype(train))  # type: ignore[arg-type]
    ends = eos_ids(learner.model, learner.tokenizer) | {learner.eos_id}
    learner.model.generation_config.eos_token_id = min(ends) if len(ends) == 1 else sorted(ends)
    folder = Path(train.out) / MODEL_FOLDER
    with written_whole(folder) as part:
        save_model_folder(learner.model, learner.tokenizer, part, learner.pasta_config(train))
    return folder


def save_trained(
    learner: Learner, model: PeftModel, base: BaseReference, lora: LoraConfig, train: TrainConfig
) -> Path:
    check_finite(learner.model)
    scale, weights = lora.alpha / lora.rank, dict(learner.model.named_parameters())
    a, b = ".lora_A.default.weight", ".lora_B.default.weight"
    names = [name.removesuffix(a) for name in weights if name.endswith(a)]
    pairs = {name: (weights[name + a].clone(), scale * weights[name + b]) for name in names}
    dtype, is_of_parts = learner.saved_dtype(train), learner.trained_strategy == PARTS
    config = learner.config if is_of_parts else learner.pasta_config(train)  # parts are no tags
    # The merged weights give the rows of the tag pieces.
    adapter = with_tag_rows(pairs, model.merge_and_unload(), config.piece_ids if config else {})
    folder = Path(train.out) / MODEL_FOLDER
    with written_whole(folder) as part:
        save_adapter(part, adapter, base=base, config=config, dtype=dtype)
    return folder


def with_tag_rows(
    low_rank: Mapping[str, tuple[Tensor, Tensor]], model: PreTrainedModel,
    piece_ids: Mapping[str, int],
) -> Adapter:  # fmt: skip
    ids = list(piece_ids.values())
    matrices = token_matrices(model) if ids else {}
    rows = {name: weight.detach()[ids] for name, weight in matrices.items()}
    return Adapter(low_rank=low_rank, rows=rows, token_ids=dict.fromkeys(rows, ids))


def check_finite(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            reason = f"the weights {name} are NaN or infinite: they are not saved"
            hint = "lower learning_rate; --resume goes on from the last checkpoint"
            raise ModelError(reason, hint=hint)


@contextmanager
def open_output(out: str, *, resume: bool, overwrite: bool) -> Iterator[RunFolder]:
    """Hold the folder of a run; a UsageError if several processes were started for it."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("a training is one process", hint="start it without `accelerate launch`")
    run = RunFolder(Path(out), RECIPE)
    run.require_new(resume=resume, overwrite=overwrite)
    with run.locked(), full_disk_named(run.path):
        yield run


def append_row(log: Path, row: Mapping[str, object]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), **row}) + "\n")
