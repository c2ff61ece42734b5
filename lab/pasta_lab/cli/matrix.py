"""``pasta-lab matrix``: how each causal family of transformers runs here, with tiny weights."""

from __future__ import annotations

import resource
from collections import defaultdict
from multiprocessing import get_context
from typing import Annotated, Any

import typer

from pasta_lm.cli.terminal import silence_libraries

MEMORY = 6 << 30  # bytes of address space of each process
BATCH = 4  # families that a process tests
TIMEOUT_S = 900  # of each; a process that crashed answers never
# Of families whose configuration of transformers is no model that somebody made.
SETTINGS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "nemotron": {"num_key_value_heads": 8},
    "phi4_multimodal": {
        "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        "audio_config": {"hidden_size": 32, "num_blocks": 1, "num_attention_heads": 2},
    },
}


def matrix(
    families: Annotated[
        list[str] | None, typer.Argument(help="Families by their names; without: all.")
    ] = None,
) -> None:
    """Say of each causal family of transformers whether it runs here exactly, and how.

    The self-test of loading decides, on tiny random weights of its default configuration.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = families or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    by_way: dict[str, list[str]] = defaultdict(list)
    bounds = resource.RLIMIT_AS, (MEMORY, MEMORY)
    with get_context("spawn").Pool(1, resource.setrlimit, bounds, maxtasksperchild=BATCH) as pool:
        verdicts = pool.imap(examine, names)
        for name in names:
            way, reason = verdicts.next(TIMEOUT_S)
            typer.echo(": ".join(filter(None, (name, way, reason))))
            by_way[way].append(name)
    for way, members in sorted(by_way.items()):
        typer.echo(f"- {way} ({len(members)}): {', '.join(members)}")


def examine(name: str) -> tuple[str, str]:
    """Return how a family runs, and why it is refused if it is."""
    from transformers import AutoConfig

    from pasta_lm.engines.passes.row_reader import exact_reader
    from pasta_lm.engines.passes.self_test import tiny_model

    silence_libraries()
    try:
        config = AutoConfig.for_model(name, **SETTINGS.get(name, {}))
        if hasattr(config, "is_decoder"):  # of an encoder: its causal form
            config.is_decoder = True
        reader = exact_reader(tiny_model(config))
    except Exception as exc:  # also of a configuration that is none without the files of a model
        return "refused", str(exc).partition("\n")[0]
    return "flattened" if reader is None else f"rows, {reader.reading.value}", ""
