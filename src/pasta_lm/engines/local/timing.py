"""Time an engine: passes of several rows, sequential decoding, and reading the weights once.

Tokens are forced or arbitrary, so any weights will do. All times are wall-clock seconds of one
process; what is compared must be timed in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch
from torch import Tensor

from pasta_lm.engines.local.attention import NAME
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language.tags import PROMISE_OPEN, closing_piece
from pasta_lm.machine import describe_machine
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.models.vocabulary import Vocabulary

NUM_STEADY = 24  # passes of a measurement in which all its threads decode
NUM_READS = 3  # times that the weights are read; the fastest counts
_COLUMNS = 4096  # of the matrix that stands for the weights when they are read
_TEXT = " the rain falls on the green hills, and the river carries it to the sea."  # any will do


def step_s(engine: TorchEngine, num_rows: int, num_context: int) -> float:
    """Return the median seconds of a pass in which each of T threads feeds one token.

    Args:
        engine: Of a model with tag pieces; its pool holds ``num_entries`` at least.
        num_rows: T.
        num_context: Tokens of the prompt, which all threads see.
    """
    vocabulary = engine.loaded.vocabulary
    prompt = tokens(vocabulary, num_context)
    if num_rows == 1:
        line = EncodedDocument(main=tokens(vocabulary, NUM_STEADY + 16), blocks=())
        ends, first = _decode(engine, prompt, line, forks=False).trace.step_s, 8
    else:
        forced = _wide_answer(vocabulary, num_rows)
        ends = _decode(engine, prompt, forced, forks=True).trace.step_s
        first = 3 * num_rows + 4
    steady = ends[first : first + NUM_STEADY]
    return median(after - before for before, after in zip(steady, steady[1:], strict=False))


def num_entries(num_rows: int, num_context: int) -> int:
    """Return how many cache entries ``step_s`` needs."""
    return num_context + num_rows * (3 * num_rows + NUM_STEADY + 16) + 64


def _wide_answer(vocabulary: Vocabulary, num_threads: int) -> EncodedDocument:
    """Return an answer whose main thread forks and ends, so that only blocks are decoded."""
    opening, closing = vocabulary.piece_id(PROMISE_OPEN), vocabulary.piece_id(closing_piece(6))
    block = tokens(vocabulary, 3 * num_threads + NUM_STEADY + 8)
    topic = next(token for token in block if vocabulary.token_text(token).strip().isalpha())
    promise = (opening, topic, closing)
    return EncodedDocument(main=promise * num_threads, blocks=(block,) * num_threads)


def _decode(
    engine: TorchEngine, prompt: tuple[int, ...], forced: EncodedDocument, *, forks: bool
) -> Answer:
    size = num_entries(max(1, len(forced.blocks)), 0)
    params = SamplingParams(max_tokens=size, max_blocks=max(1, len(forced.blocks)))
    request = Request(prompt=prompt, params=params, forced=forced, forks=forks)
    return engine.generate([request])[0][0]


def tokens(vocabulary: Vocabulary, count: int) -> tuple[int, ...]:
    """Return so many ordinary tokens."""
    return tuple(islice(cycle(vocabulary.encode_text(_TEXT)), count))


def sequential_s(engine: TorchEngine, num_context: int, num_tokens: int) -> float:
    """Return the seconds in which the engine decodes greedy tokens of one thread, prompt included.

    The tokens are the model's own; an end-of-text does not end them.
    """
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    request = Request(
        prompt=tokens(engine.loaded.vocabulary, num_context), params=params, forks=False
    )
    began = time.perf_counter()
    engine.generate([request])
    return time.perf_counter() - began


def generate_s(loaded: LoadedModel, num_context: int, num_tokens: int) -> float:
    """Return the seconds that ``transformers.generate`` takes for the same, with the same weights.

    Its attention is ``sdpa``, or ``eager`` if the model refuses that.
    """
    model: Any = loaded.model
    prompt = torch.tensor([tokens(loaded.vocabulary, num_context)], device=loaded.device)
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:
        model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            began = time.perf_counter()
            model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=num_tokens,
                min_new_tokens=num_tokens, do_sample=False, pad_token_id=0,
            )  # fmt: skip
            _wait(loaded.device)
            return time.perf_counter() - began
    finally:
        model.set_attn_implementation(NAME)


def read_bytes(loaded: LoadedModel) -> int:
    """Return the bytes of weights that a pass of one row reads: all but an untied input matrix."""
    model: Any = loaded.model
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    parts = {parameter.data_ptr(): parameter for parameter in model.parameters()}
    if inputs.data_ptr() != outputs.data_ptr():
        parts.pop(inputs.data_ptr(), None)
    if loaded.eight_bits is not None:  # a byte of each weight; vectors as they are
        return sum(one.numel() if one.dim() > 1 else one.nbytes for one in parts.values())
    return sum(one.numel() * one.element_size() for one in parts.values())


def reading_s(num_bytes: int, device: torch.device) -> float:
    """Return the least seconds in which so many bytes of memory were read once.

    Read as a float32 matrix times a vector and as a sum; the faster of the two counts.
    """
    rows = max(1, num_bytes // (4 * _COLUMNS))
    matrix = torch.ones(rows, _COLUMNS, device=device)
    vector = torch.ones(_COLUMNS, device=device)
    kernels: tuple[Callable[[], Tensor], ...] = (lambda: matrix @ vector, matrix.sum)
    spent = []
    for _ in range(NUM_READS):
        for kernel in kernels:
            _wait(device)
            began = time.perf_counter()
            kernel()
            _wait(device)
            spent.append(time.perf_counter() - began)
    return min(spent) * num_bytes / (rows * _COLUMNS * 4)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def describe_run(loaded: LoadedModel) -> dict[str, object]:
    """Return the conditions of a measurement: kind, weights, model, dtype, device and machine."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "kind": Kind.REPLAYED.value,
        "weights": "random" if loaded.kind is Kind.RANDOM_WEIGHTS else "given",
        "model": loaded.name,
        "dtype": loaded.dtype_name,
        "device": str(loaded.device),
        "machine": describe_machine(gpu, torch.get_num_threads()),
    }
