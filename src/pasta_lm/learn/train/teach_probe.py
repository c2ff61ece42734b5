"""Measure how fast this machine decodes and trains with a model, before it is taught.

A few passes of many short answers, and two steps of training on a short text: seconds for a small
model, a minute or two for a large one.
"""

from __future__ import annotations

import gc
import time

import torch
from torch import nn

from pasta_lm.engines.cpu.kernels import MAX_COPIED_ELEMENTS
from pasta_lm.engines.local.loading import usable_device
from pasta_lm.engines.request import SamplingParams
from pasta_lm.language.document import parse
from pasta_lm.learn.data.encode import EncodedExample
from pasta_lm.learn.train.adapters import adapted
from pasta_lm.learn.train.collate import collate, labelled_logits
from pasta_lm.learn.train.config import LoraConfig, ModelConfig, TrainConfig
from pasta_lm.learn.train.learner import load_learner
from pasta_lm.learn.train.losses import next_token_loss
from pasta_lm.learn.train.teach_config import TeachConfig
from pasta_lm.learn.train.teach_cost import Rates, Shape
from pasta_lm.models.annotated import Record
from pasta_lm.strategies import sequential
from pasta_lm.strategies.model import Pasta

PROBE_PASSES, PROBE_SENTENCES = 8, 10
ROOM = 128
"""Cache entries for one answer of the probe and its prompt."""
PROMPT = "Name three ways to save water at home, and say for each how much it saves in a year."
TEXT = " The bath is large and a shower of five minutes takes a third of its water, so it saves."


def measured_rates(name: str, config: TeachConfig, in_flight: int) -> tuple[Shape, Rates]:
    """Decode a few tokens and take one step of training with a model; return what that took.

    Args:
        name: A folder, a GGUF file or a hub id.
        config: The recipe.
        in_flight: Answers that are decoded at the same time.

    Raises:
        ModelNotFoundError: there is no model.
        UnsupportedModelError: the engine would not be exact for this model.
    """
    decode = _decoding_rate(name, in_flight, dtype_of(config))
    free_memory()
    learner = load_learner(ModelConfig(base=name), getattr(torch, dtype_of(config)))
    shape = Shape.of(learner.model)
    if config.trains_all(shape.num_weights):
        model: nn.Module = learner.model.float()
    else:
        model = adapted(learner, LoraConfig(rank=config.train.rank, alpha=config.train.rank))
    document = parse(TEXT.strip(" ") * PROBE_SENTENCES)
    example = learner.encoder(TrainConfig(out="", steps=1))(Record("probe", PROMPT, document))
    seconds = _training_s(model, example, dtype_of(config))
    del learner, model
    free_memory()
    return shape, Rates(decode, seconds / len(example))


def dtype_of(config: TeachConfig) -> str:
    """Return the dtype of frozen and of saved weights on this machine."""
    return config.train.dtype or ("bfloat16" if torch.cuda.is_available() else "float32")


def in_flight_of(config: TeachConfig) -> int:
    """Return how many answers are decoded at the same time on this machine."""
    return config.answers.in_flight or (64 if torch.cuda.is_available() else 16)


def layouts_of(num_weights: int) -> int:
    """Return how many layouts of the weights an engine keeps on this machine."""
    copies = usable_device(None).type == "cpu" and num_weights <= MAX_COPIED_ELEMENTS
    return 2 if copies else 1


def free_memory() -> None:
    """Give back the memory of models that nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _decoding_rate(name: str, in_flight: int, dtype: str) -> float:
    """Return tokens a second of so many answers at once: a longer run less a shorter one."""
    model = Pasta.from_pretrained(name, dtype=dtype, pool_tokens=in_flight * ROOM)

    def seconds(num_tokens: int) -> float:
        params = [
            SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0.3, seed=seed)
            for seed in range(in_flight)
        ]
        asked = [model.request(PROMPT, one, strategy=sequential.NAME) for one in params]
        start = time.monotonic()
        model.engine.generate(asked)
        return time.monotonic() - start

    seconds(1)  # what is made at the first pass only
    gained = seconds(1 + PROBE_PASSES) - seconds(1)
    return PROBE_PASSES * in_flight / max(gained, 1e-3)


def _training_s(model: nn.Module, example: EncodedExample, dtype: str) -> float:
    """Return the seconds of the second of two steps."""
    device = usable_device(None)
    model.to(device).train()
    optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=0.0)
    batch = {
        key: one.to(device) if isinstance(one, torch.Tensor) else one
        for key, one in collate([[example]]).items()
    }
    is_mixed = device.type == "cuda" and dtype == "bfloat16"
    taken = 0.0
    for _ in range(2):
        start = time.monotonic()
        with torch.autocast(device.type, torch.bfloat16, enabled=is_mixed):
            loss = next_token_loss(*labelled_logits(model, batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken = time.monotonic() - start
    return taken
