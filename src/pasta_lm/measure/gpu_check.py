"""Check a GPU before it is used: each kernel against plain torch, captured passes against a CPU."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from pasta_lm.engines.devices import default_dtype, on_device
from pasta_lm.engines.gpu import attention
from pasta_lm.engines.gpu.attention import Attend, LayerMemory, attend_split
from pasta_lm.engines.gpu.batch import PagedBatch, RequestRows, bucket_of
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.passes.attention import LayerCall
from pasta_lm.engines.passes.self_test import tiny_llama
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.placement import PROMPT_ROW, Entry
from pasta_lm.interpreter.visibility import PROMPT_OWNER
from pasta_lm.learn.random_model import random_model, train_tokenizer
from pasta_lm.machine import installed_version

PAGE, NUM_KEYS, NUM_KEY_HEADS, GROUP = 16, 200, 2, 4
CASES = tuple(product((1, 8, 64), (64, 128), (torch.bfloat16, torch.float32)))
"""Rows of a pass, head size and dtype of each check of the kernels."""
TOLERANCES = {torch.bfloat16: 3e-2, torch.float32: 1e-4}
MAX_LOGPROB_DIFFERENCE = 1e-3  # float32, of captured passes from a CPU's
DRIVER = Path("/proc/driver/nvidia/version")


def check_gpu(device: torch.device, attend: Attend = attend_split) -> tuple[dict[str, str], bool]:
    facts, faults, is_old = _about(device), list[str](), False
    if device.type == "cuda":
        is_old = torch.cuda.get_device_capability(device) < attention.MIN_CAPABILITY
    with torch.inference_mode(), on_device(device):
        for num_rows, size, dtype in () if is_old else CASES:
            if (fault := _kernel_fault(num_rows, size, dtype, device, attend)) is not None:
                name = f"{num_rows} rows, heads of {size}, {str(dtype).removeprefix('torch.')}"
                faults.append(f"{name}: {fault}")
    facts["kernels"] = "; ".join(faults) or f"{len(CASES)} settings as plain torch"
    if is_old:
        facts["kernels"] = "not for this GPU"
    try:
        passes, fault = _check_passes(device, is_old=is_old)
    except Exception as exc:  # a driver or a card may refuse anything
        passes, fault = "", f"{type(exc).__name__}: {exc}"
    facts["passes"] = passes if fault is None else fault
    return facts, fault is None and not faults


def _about(device: torch.device) -> dict[str, str]:
    facts = {"torch": f"{torch.__version__}, CUDA {torch.version.cuda}"}
    facts["Triton"] = installed_version("triton") or "not installed: passes are slow"
    if DRIVER.exists():
        facts["driver"] = DRIVER.read_text("utf-8").splitlines()[0]
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        facts["memory"] = f"{about.total_memory / 1e9:.1f} GB"
        facts["capability"] = f"{about.major}.{about.minor}"
        facts["bfloat16"] = str(default_dtype(device) is torch.bfloat16).lower()
        if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
            facts["hint"] = "torch 2.9 and later compute a norm in one kernel: a tenth faster"
    return facts


def _kernel_fault(
    num_rows: int, size: int, dtype: torch.dtype, device: torch.device, attend: Attend
) -> str | None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    entries = [Entry(0, PROMPT_OWNER, slot, PROMPT_ROW) for slot in range(NUM_KEYS)]
    first, pages = NUM_KEYS - num_rows, range(-(-NUM_KEYS // PAGE))
    request = RequestRows(entries[first:], first, pages, num_owners=2)
    bucket = bucket_of([request.size], GROUP)
    batch = PagedBatch.of([request], bucket, PAGE).to(device)
    pool = NUM_KEY_HEADS, len(pages) * PAGE, size
    slots = torch.arange(pool[1], dtype=torch.int32, device=device)
    keys, values = normal(*pool), normal(*pool)
    rows = NUM_KEY_HEADS, bucket.num_rows, size
    q_HND, k_GND, v_GND = normal(GROUP * rows[0], *rows[1:]), normal(*rows), normal(*rows)

    def out(function: Attend) -> Tensor:
        owners = torch.full_like(slots, PROMPT_OWNER)
        memory = LayerMemory(keys.clone(), values.clone(), torch.stack([owners, slots]), batch)
        attention.place_entries(batch, memory.entries)
        call = LayerCall(0, scaling=None, window=None, softcap=None, sinks_H=None)
        return function(call, q_HND, k_GND, v_GND, memory)[:, :num_rows].float()

    try:
        difference = float((out(attend) - out(attention.attend_gathered)).abs().max())
    except Exception as exc:  # a compiler, a driver or a card may refuse anything
        return f"{type(exc).__name__}: {exc}"
    return None if difference <= TOLERANCES[dtype] else f"differs by {difference:.1g}"


def _check_passes(device: torch.device, *, is_old: bool) -> tuple[str, str | None]:
    """Decode with a tiny random model there and on a CPU; return a summary, and a fault."""
    tokenizer = train_tokenizer(["A tiny model decodes a tiny answer."], num_pieces=300)
    tiny = random_model(tiny_llama().config, tokenizer, name="tiny")
    for matrix in (each for each in tiny.model.parameters() if each.dim() > 1):
        with torch.no_grad():
            matrix.mul_(10)  # or its logits would hardly depend on what came before
    there = replace(tiny, model=copy.deepcopy(tiny.model))
    there.model.to(device)  # type: ignore[arg-type]
    engine = TorchEngine(there, pool_tokens=1024, paged=True)
    expected, ours = _logprobs(TorchEngine(tiny, pool_tokens=1024)), _logprobs(engine)
    if ours.keys() != expected.keys():
        return "", "other tokens than on a CPU"
    difference = max(abs(ours[token] - expected[token]) for token in ours)
    if not difference <= MAX_LOGPROB_DIFFERENCE:
        return "", f"log-probabilities differ by {difference:.1g} from a CPU's"
    if engine.paged is None and not is_old:
        return "", "Triton cannot launch here: passes run over views, more slowly"
    how = "over views" if engine.paged is None else engine.paged.capture
    return f"as on a CPU ({difference:.0e}); {how}", None


def _logprobs(engine: TorchEngine) -> dict[tuple[int | None, ...], float]:
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=0, logprobs=0)
    prompt = engine.loaded.vocabulary.encode_text("A tiny answer.")
    ((answer,),) = engine.generate([Request(prompt=prompt, params=params)])
    tokens = {thread.id: answer.trace.tokens_of(thread.id) for thread in answer.trace.threads}
    items = answer.logprobs.items()
    return {(*at, tokens[at[0]][at[1]].token): chosen.logprob for at, chosen in items}
