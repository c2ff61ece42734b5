"""Several processes that train one model: which one speaks, what each learns, the whole weights.

``accelerate launch`` starts them and says in the environment which is which; the Trainer shares
packs and weights among them. A recipe means the same whatever their number.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer

from pasta_lm.errors import ModelError, UsageError


def num_processes() -> int:
    """Return how many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Tell whether this process is the one that writes and speaks."""
    return int(os.environ.get("RANK", "0")) == 0


def shards_weights() -> bool:
    """Tell whether accelerate was told to spread the weights over the processes (FSDP)."""
    return _is_set("ACCELERATE_USE_FSDP")


def packs_each(accumulate: int) -> int:
    """Return how many packs of a step each process learns from.

    Raises:
        UsageError: the packs of a step cannot be shared evenly.
    """
    if accumulate % num_processes():
        raise UsageError(
            f"train.accumulate is {accumulate}, and {num_processes()} processes share the packs of "
            "a step",
            hint="make it a multiple of the number of processes",
        )
    return accumulate // num_processes()


def check_launch(optimizer: str, *, has_adapters: bool) -> None:
    """Refuse what several processes cannot train.

    Raises:
        UsageError: adapters, Muon on matrices that are in pieces, or weights that only one process
            would load.
    """
    if num_processes() == 1:
        return
    if has_adapters:
        raise UsageError(f"[lora] is for one process, and there are {num_processes()}")
    if not shards_weights():
        return
    if optimizer == "muon":
        raise UsageError("train.optimizer 'muon' needs whole matrices, and FSDP has them in pieces")
    if _is_set("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise UsageError(
            "fsdp_cpu_ram_efficient_loading would leave all processes but one without weights, and "
            "each tests its own",
            hint="set it to false in accelerate's configuration",
        )


def local_part(weight: Tensor) -> Tensor:
    """Return what this process has of a weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def whole_model(trainer: Trainer, like: PreTrainedModel) -> PreTrainedModel | None:
    """Gather trained weights into an ordinary model; every process must call this.

    Args:
        trainer: Has trained.
        like: What was given to it: its configurations are kept.

    Returns:
        The model, on the CPU; None in all processes but the first.

    Raises:
        ModelError: weights are missing.
    """
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not is_first():
        return None
    config = like.config
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.generation_config = like.generation_config
    _fill(model, state)
    return model


def _fill(model: PreTrainedModel, state: Mapping[str, Any]) -> None:
    """Load weights; of tied ones one is enough."""
    whole = {name: weight.detach().cpu().float() for name, weight in state.items()}
    missing = model.load_state_dict(whole, strict=False).missing_keys
    model.tie_weights()
    lacking = {*missing} & {name for name, _ in model.named_parameters()}  # tied ones: once
    if lacking:
        raise ModelError(f"the processes did not hand over {', '.join(sorted(lacking))}")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "false").lower() in ("1", "true", "yes")
