"""Other engines beside the benchmark of ours, with the same weights in the same rounds."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pasta_lab import llama_cpp
from pasta_lm.engines.local.loading import LoadedModel, load
from pasta_lm.engines.passes.attention import NAME
from pasta_lm.errors import PastaError
from pasta_lm.measure.bench import (
    NUM_DECODED,
    BenchSettings,
    Figures,
    Progress,
    bench,
    milliseconds,
    prompt_of,
)
from pasta_lm.models.export import export_gguf
from pasta_lm.models.names import BUILTIN

GENERATE, LLAMA_CPP = "generate", "llama.cpp"
GGUF_KINDS = {"int8": "q8_0"}
"""Other names of dtypes in GGUF files."""

logger = logging.getLogger(__name__)

Peers = dict[str, dict[str, Any] | None]
"""Figures by the name of the engine; None: it is not installed, or does not take the model."""


def bench_with_peers(
    model: str | None,
    dtype: str | None,
    device: str | None,
    num_cpu_threads: int,
    settings: BenchSettings,
    progress: Progress,
) -> tuple[Figures, Peers]:
    """Time our engine, ``generate`` of transformers and llama.cpp in turn, with one model."""
    loaded = load(model or BUILTIN, dtype=dtype, device=device)
    # A copy: the engine lays out the weights of its model anew.
    untouched = replace(loaded, model=copy.deepcopy(loaded.model))
    generated, steps = list[float](), dict[int, list[float]]()
    beside: list[Callable[[], None]] = [lambda: generated.append(generate_s(untouched))]
    with ExitStack() as stack:
        rows, prompt = max(settings.rows), prompt_of(loaded.vocabulary)
        decoder = _llama_cpp(model or BUILTIN, loaded.dtype_name, stack)
        if decoder is not None:
            timed = llama_cpp.Decoder(decoder, rows, prompt, num_cpu_threads)
            opened = stack.enter_context(timed.opened())

            def time_llama_cpp() -> None:
                for count in settings.rows:
                    steps.setdefault(count, []).append(opened.step_s(count))

            beside.append(time_llama_cpp)
        result = bench(loaded, settings, progress, beside)
    tokens_per_s = round(NUM_DECODED / median(generated), 2)
    steps_ms = {"step_ms": milliseconds(steps)} if steps else None
    return result, {GENERATE: {"tokens_per_s": tokens_per_s}, LLAMA_CPP: steps_ms}


def generate_s(loaded: LoadedModel) -> float:
    """Return the seconds that ``transformers.generate`` takes for the sequential answer.

    Its attention is ``sdpa``, or ``eager`` if the model refuses that.
    """
    model: Any = loaded.model
    prompt = torch.tensor([prompt_of(loaded.vocabulary)], device=loaded.device)
    model.set_attn_implementation("eager")
    with suppress(ValueError):
        model.set_attn_implementation("sdpa")
    try:
        with torch.inference_mode():
            began = time.perf_counter()
            model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NUM_DECODED,
                min_new_tokens=NUM_DECODED, do_sample=False, pad_token_id=0,
            )  # fmt: skip
            if loaded.device.type == "cuda":
                torch.cuda.synchronize(loaded.device)
            return time.perf_counter() - began
    finally:
        model.set_attn_implementation(NAME)


def _llama_cpp(source: str, dtype: str, stack: ExitStack) -> Path | None:
    """Write the model for llama.cpp; None if it is not installed or cannot have it."""
    if not llama_cpp.is_installed():
        return None
    file = Path(stack.enter_context(TemporaryDirectory())) / "model.gguf"
    try:
        export_gguf(source, file, GGUF_KINDS.get(dtype, dtype))
    except PastaError as exc:
        logger.warning("no figures of llama.cpp: %s", exc)
        return None
    return file
