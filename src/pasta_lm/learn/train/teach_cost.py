"""Hours, memory and disk of teaching a model, and a smaller plan where a budget asks for one.

Rates are measured with the model on this machine (``measured_rates``), or assumed for a machine
that is only described. Everything else is arithmetic: an estimate, good for an order of magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel

from pasta_lm.learn.train.teach_config import TeachConfig

ANSWER_TOKENS, PROMPT_TOKENS = 250, 50
"""Guesses of the mean length of an own answer and of its prompt."""
STEP_LOADING_S = 20.0
"""A guess of what one step takes to load its models."""
LAYER_STARTS = 20
"""A guess of the operations of a layer beside attention."""
LIBRARIES = 0.6e9
"""Bytes of torch, transformers and Python themselves."""


class Shape(NamedTuple):
    """What a model's cost depends on."""

    num_weights: int
    num_layers: int
    hidden: int
    intermediate: int
    vocab: int
    kv_width: int
    """Numbers in the cache for one token of one layer, keys and values together."""
    adapter_width: int
    """Sum over the linear layers of a layer of inputs and outputs: an adapter's size per rank."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> Shape:
        """Return the shape of a model of transformers, which may be on the meta device."""
        inside: Any = model  # transformers has no types for most of it
        config = inside.config.get_text_config()
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        output = inside.get_output_embeddings()
        linear = [
            one for one in inside.modules() if isinstance(one, nn.Linear) and one is not output
        ]
        width = sum(one.in_features + one.out_features for one in linear)
        return cls(
            num_weights=sum(one.numel() for one in inside.parameters()),
            num_layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
            vocab=config.vocab_size,
            kv_width=2 * (getattr(config, "num_key_value_heads", None) or heads) * head_dim,
            adapter_width=width // config.num_hidden_layers,
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a machine handles a model."""

    decode_tokens_per_s: float
    """Of all answers in flight together."""
    train_s_per_token: float
    """Forward, backward and update, by the kind of training that is planned."""
    is_measured: bool = True

    @property
    def read_s_per_token(self) -> float:
        """Return the time of a forward pass alone: a backward pass takes at least as long again."""
        return self.train_s_per_token / 2


class Machine(NamedTuple):
    """A machine that is only described; its figures are what software reaches, not peaks."""

    name: str
    flops: float
    bytes_per_s: float
    launch_s: float
    """What starting one small operation takes, however little it computes."""


class Amounts(NamedTuple):
    """How much of everything a run has: what a budget changes."""

    num_answers: int
    passes: int
    """Of stage one, for each of its two models."""
    rounds: int
    num_prompts: int
    """Of a round."""
    num_development: int
    steps: int
    """Of a round."""
    num_measured: int
    """Prompts of each set."""

    @classmethod
    def of(cls, config: TeachConfig) -> Amounts:
        """Return what a recipe says."""
        two = config.preference
        return cls(
            num_answers=config.answers.num,
            passes=config.train.passes,
            rounds=two.rounds,
            num_prompts=two.num_prompts,
            num_development=two.num_development,
            steps=two.steps,
            num_measured=config.measures.num_prompts,
        )

    def leaner(self) -> Iterator[Amounts]:
        """Yield smaller and smaller amounts: what teaches least goes first.

        First answers, prompts and measures shrink to a quarter, then stage two goes, then the
        passes of stage one shrink to a twentieth.
        """
        yield self
        for percent in range(90, 20, -10):
            yield self._scaled(percent / 100, self.passes)
        bare = self._scaled(0.25, self.passes)._replace(rounds=0)
        yield bare
        for percent in range(90, 0, -10):
            yield bare._scaled(max(percent / 100, 0.2), round(self.passes * percent / 100))
        yield bare._scaled(0.1, self.passes // 20)

    def _scaled(self, share: float, passes: int) -> Amounts:
        def few(value: int, least: int) -> int:
            return min(value, max(round(value * share), least))

        return Amounts(
            num_answers=few(self.num_answers, 40),
            passes=max(passes, 2),
            rounds=self.rounds,
            num_prompts=few(self.num_prompts, 8),
            num_development=few(self.num_development, 8),
            steps=few(self.steps, 4),
            num_measured=few(self.num_measured, 8),
        )


def hours(amounts: Amounts, config: TeachConfig, rates: Rates) -> dict[str, float]:
    """Return the hours of each step of a run, in order."""
    two, max_tokens = config.preference, config.data.max_tokens
    answer_s = ANSWER_TOKENS / rates.decode_tokens_per_s
    example = ANSWER_TOKENS + PROMPT_TOKENS
    sft = amounts.passes * max_tokens * rates.train_s_per_token
    sampled = amounts.num_prompts * (two.samples + 1) + 2 * amounts.num_development
    judged = amounts.num_prompts * (two.samples + 1) * example * rates.read_s_per_token
    pairs = min(amounts.steps * max_tokens, amounts.num_prompts * 2 * example)
    learned = amounts.steps * max_tokens * rates.train_s_per_token
    each_round = sampled * answer_s + judged + pairs * rates.read_s_per_token + learned
    num_sets = 1 + bool(config.measures.alpaca) + bool(config.measures.ifeval)
    measured = 2 * num_sets * amounts.num_measured
    alone = 3 * num_sets * config.measures.num_timed * 8  # one at a time is slow
    seconds = {
        "answers": amounts.num_answers * answer_s,
        "annotated": 0.0,
        "baseline": sft,
        "pasta": sft,
        "preference": amounts.rounds * each_round,
        "measures": (measured + alone) * answer_s + measured * example * rates.read_s_per_token,
    }
    is_used = {name: name != "preference" or amounts.rounds > 0 for name in seconds}
    return {name: (one + STEP_LOADING_S * is_used[name]) / 3600 for name, one in seconds.items()}


def fit(
    amounts: Amounts, budget_hours: float | None, cost: Callable[[Amounts], float]
) -> tuple[Amounts, list[str]]:
    """Return the largest of the leaner amounts that cost no more than a budget, and what was cut.

    If none does, it is the leanest one.
    """
    found = amounts
    for found in amounts.leaner():
        if budget_hours is None or cost(found) <= budget_hours:
            break
    return found, [
        f"{name.removeprefix('num_').replace('_', ' ')} {old} -> {new}"
        for name, old, new in zip(Amounts._fields, amounts, found, strict=True)
        if old != new
    ]


def assumed_rates(shape: Shape, machine: Machine, config: TeachConfig, in_flight: int) -> Rates:
    """Return the rates of a machine that is not at hand, weights in bfloat16.

    Decoding reads all weights once in a pass and computes two operations for each weight and row;
    training computes six for each weight and token, of frozen weights four, six with checkpoints.
    Attention starts a few operations for each answer and layer.
    """
    weights = shape.num_weights
    reading, computing = 2 * weights / machine.bytes_per_s, 2 * weights * in_flight / machine.flops
    starts = machine.launch_s * shape.num_layers
    one_pass = starts * (LAYER_STARTS + 3 * in_flight) + max(reading, computing)
    operations = 6 if config.trains_all(weights) or config.train.checkpointing else 4
    train_s = operations * weights / machine.flops
    train_s += starts * 10 * LAYER_STARTS / config.data.max_tokens
    return Rates(in_flight / one_pass, train_s, is_measured=False)


def memory(
    shape: Shape, config: TeachConfig, in_flight: int, num_bytes: int, num_layouts: int = 1
) -> dict[str, float]:
    """Return the bytes that each kind of step needs at its peak.

    Args:
        shape: The model's.
        config: The recipe.
        in_flight: Answers that are decoded at the same time.
        num_bytes: Of one weight that is frozen or decoded with: 4 or 2.
        num_layouts: Copies of the weights that an engine has; two for a small model on a CPU.
    """
    two, weights = config.preference, shape.num_weights
    cache = shape.kv_width * shape.num_layers * num_bytes
    room = config.answers.max_tokens + PROMPT_TOKENS
    trains_all = config.trains_all(weights)
    learned = weights if trains_all else shape.adapter_width * shape.num_layers * config.train.rank
    # Weight, gradient and two moments in float32; a frozen weight as it is.
    held = 16 * learned + (0 if trains_all else num_bytes * weights)
    kept_layers = 1 if config.train.checkpointing else shape.num_layers
    width = 8 * shape.hidden + 3 * shape.intermediate
    inside = kept_layers * width + shape.num_layers * shape.hidden * (kept_layers == 1)
    each_token = num_bytes * inside + 12 * shape.vocab
    one_engine = num_layouts * num_bytes * weights
    decoding = LIBRARIES + one_engine + cache * in_flight * room
    return {
        "answers": decoding,
        "training": LIBRARIES + held + each_token * config.data.max_tokens,
        # Two models at once: the one that is sampled or measured, and the baseline.
        "preference": 2 * one_engine
        + LIBRARIES
        + cache * in_flight * room * (1 if two.rounds else 0),
        "measures": decoding + one_engine,
    }


def disk(shape: Shape, config: TeachConfig, amounts: Amounts, num_bytes: int) -> float:
    """Return the bytes of everything that a run leaves behind, checkpoints included."""
    weights = shape.num_weights
    adapter = shape.adapter_width * shape.num_layers * config.train.rank
    trains_all = config.trains_all(weights)
    model = num_bytes * (weights if trains_all else adapter)
    checkpoint = 12 * (weights if trains_all else adapter)
    stage_one = 2 * (model + 2 * checkpoint)
    # Models of a round are whole: the round's and that of its first tenth.
    stage_two = amounts.rounds * (2 * num_bytes * weights + 2 * checkpoint)
    return stage_one + stage_two + model + 20_000 * amounts.num_answers
