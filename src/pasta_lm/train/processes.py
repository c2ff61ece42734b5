"""Training in several processes, which ``accelerate launch`` starts.

The Trainer shares packs and weights among the processes; a recipe means the same for any number.
"""

from __future__ import annotations

import os

import torch
from accelerate import PartialState
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer

from pasta_lm.errors import ModelError, UsageError


def num_processes() -> int:
    """Return the number of processes that train together."""
    return int(_state().num_processes)


def is_first() -> bool:
    """Return whether this process is the one that writes files and messages."""
    return bool(_state().is_main_process)


def packs_each(accumulate: int) -> int:
    """Return the number of packs of a step for each process; a UsageError if it is uneven."""
    each, rest = divmod(accumulate, num_processes())
    if rest:
        raise UsageError(
            f"train.accumulate is {accumulate}, and {num_processes()} processes share the packs of "
            "a step",
            hint="make it a multiple of the number of processes",
        )
    return each


def check_launch(*, has_adapters: bool) -> None:
    """Refuse adapters, and weights that only one process loads, if there are several processes."""
    if num_processes() == 1:
        return
    if has_adapters:
        raise UsageError(f"[lora] is for one process, and there are {num_processes()}")
    if _is_set("ACCELERATE_USE_FSDP") and _is_set("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise UsageError(
            "fsdp_cpu_ram_efficient_loading would leave all processes but one without weights, and "
            "each runs the self-test",
            hint="set it to false in accelerate's configuration",
        )


def whole_model(trainer: Trainer, like: PreTrainedModel) -> PreTrainedModel | None:
    """Gather the shards of trained weights into an ordinary model; every process must call this.

    Returns:
        The model, on the CPU, with the configurations of ``like``; None in all processes but the
        first.

    Raises:
        ModelError: weights are missing.
    """
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not is_first():
        return None
    config = like.config
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.generation_config = like.generation_config
    whole = {name: weight.detach().cpu().float() for name, weight in state.items()}
    missing = model.load_state_dict(whole, strict=False).missing_keys
    model.tie_weights()
    # Of tied weights the state has one, and named_parameters() lists one.
    lacking = {*missing} & {name for name, _ in model.named_parameters()}
    if lacking:
        raise ModelError(f"the processes did not hand over {', '.join(sorted(lacking))}")
    return model


def _state() -> PartialState:
    # Without a GPU accelerate sees several processes only if it is told to use the CPU.
    return PartialState(cpu=not torch.cuda.is_available())


def _is_set(name: str) -> bool:
    return os.environ.get(name, "false").lower() in ("1", "true", "yes")
