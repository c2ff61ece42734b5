"""Estimate what `pasta teach` would take with the recipes of runs/teach: ``teach_costs.py``.

No model is loaded: sizes come from configurations that are written here, rates from assumptions
about a machine. ``--recipe`` prints one recipe's steps.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pasta_lm.learn.train.teach_config import TeachConfig
from pasta_lm.learn.train.teach_cost import (
    Amounts,
    Machine,
    Shape,
    assumed_rates,
    disk,
    hours,
    memory,
)
from pasta_lm.recipe import read_recipe

RECIPES = Path(__file__).parents[1] / "runs" / "teach"
MACHINES = (
    # 40 % of 165 TFLOP/s in bfloat16 and 60 % of 1.0 TB/s: assumptions, nothing was measured.
    Machine("RTX 4090, 24 GB", flops=66e12, bytes_per_s=0.6e12, launch_s=15e-6),
    # 40 % of 989 TFLOP/s and 60 % of 3.35 TB/s.
    Machine("H100, 80 GB", flops=395e12, bytes_per_s=2.0e12, launch_s=15e-6),
)
IN_FLIGHT = 64
GB = 1e9


class HubModel(NamedTuple):
    """A model of the hub: its configuration as its authors published it."""

    hub_id: str
    kind: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    is_tied: bool = True

    def shape(self) -> Shape:
        """Return the shape, from a model without weights."""
        keys: dict[str, Any] = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.is_tied,
        }
        with torch.device("meta"):
            config = AutoConfig.for_model(self.kind, **keys)
            return Shape.of(AutoModelForCausalLM.from_config(config))


MODELS = {
    "gemma-3-270m": HubModel(
        "google/gemma-3-270m-it", "gemma3_text", 18, 640, 2048, 4, 1, 256, 262144
    ),
    "qwen3-0.6b": HubModel("Qwen/Qwen3-0.6B", "qwen3", 28, 1024, 3072, 16, 8, 128, 151936),
    "gemma-3-1b": HubModel(
        "google/gemma-3-1b-it", "gemma3_text", 26, 1152, 6912, 4, 1, 256, 262144
    ),
    "llama-3.2-1b": HubModel(
        "meta-llama/Llama-3.2-1B-Instruct", "llama", 16, 2048, 8192, 32, 8, 64, 128256
    ),
    "smollm2-1.7b": HubModel(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama", 24, 2048, 8192, 32, 32, 64, 49152
    ),
    "qwen3-1.7b": HubModel("Qwen/Qwen3-1.7B", "qwen3", 28, 2048, 6144, 16, 8, 128, 151936),
    "llama-3.2-3b": HubModel(
        "meta-llama/Llama-3.2-3B-Instruct", "llama", 28, 3072, 8192, 24, 8, 128, 128256
    ),
    "qwen3-4b": HubModel("Qwen/Qwen3-4B", "qwen3", 36, 2560, 9728, 32, 8, 128, 151936),
    "qwen3-8b": HubModel(
        "Qwen/Qwen3-8B", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, is_tied=False
    ),
}


def main() -> None:
    """Print a table row for each recipe, or the steps of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", choices=sorted(MODELS))
    chosen = parser.parse_args().recipe
    names = " | ".join(one.name for one in MACHINES)
    print(f"| recipe | weights | {names} | memory, training | two models at once | disk |")
    print("|---" * (5 + len(MACHINES)) + "|")
    for name, model in MODELS.items():
        if chosen in (None, name):
            print(row(name, model))
            for machine in MACHINES if chosen else ():
                print(
                    machine.name, {k: f"{v:.2f} h" for k, v in cost(name, model, machine).items()}
                )


def cost(name: str, model: HubModel, machine: Machine) -> dict[str, float]:
    """Return the hours of each step."""
    config = read_recipe(RECIPES / f"{name}.toml", TeachConfig)
    rates = assumed_rates(model.shape(), machine, config, config.answers.in_flight or IN_FLIGHT)
    return hours(Amounts.of(config), config, rates)


def row(name: str, model: HubModel) -> str:
    """Return a model's row of the table."""
    config, shape = read_recipe(RECIPES / f"{name}.toml", TeachConfig), model.shape()
    in_flight = config.answers.in_flight or IN_FLIGHT
    needed = memory(shape, config, in_flight, 2)
    each = [f"{sum(cost(name, model, one).values()):.1f} h" for one in MACHINES]
    cells = [
        f"[`{name}`](../runs/teach/{name}.toml)",
        f"{shape.num_weights / 1e9:.2f} B",
        *each,
        f"{needed['training'] / GB:.0f} GB",
        f"{max(needed['preference'], needed['measures']) / GB:.0f} GB",
        f"{disk(shape, config, Amounts.of(config), 2) / GB:.0f} GB",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
