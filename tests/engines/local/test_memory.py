"""A budget in bytes or as a share of the device becomes a number of cache entries."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from math import inf
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from pasta_lm.cli.app import _known
from pasta_lm.engines.devices import budget_bytes
from pasta_lm.engines.local import loading
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel, pool_slots
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import DeviceMemoryError, RequestError, UsageError
from pasta_lm.serve.errors import from_error
from tests.architectures import loaded
from tests.small_tokenizers import byte_level
from tests.tiny import random_llama

LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6}
LARGE |= {"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 16_000}
BLOCK_MB = 68  # of large pages, which are taken from the system at once


@pytest.mark.parametrize(
    ("memory", "expected"),
    [("4096", 4096), ("800MB", 800_000_000), ("2GiB", 2 << 30), ("1.5 kib", 1536), ("40%", 400)]
    + [("100%", 1000)],
)
def test_a_budget_is_a_number_of_bytes_or_a_share_of_what_is_free(
    memory: str, expected: int
) -> None:
    assert budget_bytes(memory, 1000) == expected


@pytest.mark.parametrize("memory", ["", "-1GB", "lots", "101%", "3 apples", "GB"])
def test_what_is_no_size_is_refused(memory: str) -> None:
    with pytest.raises(UsageError, match="has no size"):
        budget_bytes(memory, 1000)


def test_the_cache_of_a_budget_takes_that_many_bytes() -> None:
    model = loaded("llama")
    num_slots = pool_slots("1MiB", model)
    pool = TorchEngine(model, pool_tokens=num_slots).pool
    size = sum(one.numel() * one.element_size() for one in (*pool.keys, *pool.values))
    page = pool.page_size * size // pool.num_slots
    assert (1 << 20) - page < size < (1 << 20) + page
    with pytest.raises(UsageError, match="holds nothing"):
        pool_slots("10", model)


GB = 10**9


@pytest.mark.parametrize(
    ("free", "num_tokens", "budget"),
    [(5 * GB, None, 2.5 * GB), (5 * GB, 10**9, 2.5 * GB), (85 * GB, 10**9, 81.7 * GB)],
)
def test_a_gpus_cache_leaves_room_for_passes_whoever_sizes_it(
    free: int, num_tokens: int | None, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, steps = replace(loaded("llama")), list[str]()
    model.device = torch.device("cuda")  # type: ignore[misc]
    model.fast_logits = None  # type: ignore[misc]
    monkeypatch.setattr(LoadedModel, "logits", property(lambda _: steps.append("joined")))
    monkeypatch.setattr(loading.devices, "free_memory", lambda: steps.append("emptied"))

    def free_bytes(device: torch.device) -> int:
        steps.append("asked")
        return free

    monkeypatch.setattr(loading.devices, "free_bytes", free_bytes)
    monkeypatch.setattr(loading, "MAX_DEFAULT_SLOTS", 10**9)
    num_slots = pool_slots(None, model, num_tokens)
    assert num_slots is not None
    entry = sum(4 * s.num_heads * (s.key_size + s.value_size) for s in model.layer_shapes)
    assert num_slots * entry == pytest.approx(budget, rel=0.01)
    assert steps == ["joined", "emptied", "asked"]
    assert pool_slots(None, model, 100) == 100


def test_a_closed_engine_has_given_its_cache_back() -> None:
    engine = TorchEngine(loaded("llama"), pool_tokens=256, paged=True)
    engine.warm_up(2)
    memory = [weakref.ref(layer.untyped_storage()) for layer in engine.pool.keys]
    engine.close()
    assert not any(storage() for storage in memory)
    with pytest.raises(RequestError, match="the pool holds 0"):
        engine.submit(Request(prompt=[1, 2]))


def test_pool_and_scheduler_die_with_their_engine() -> None:
    engine = TorchEngine(loaded("llama"), pool_tokens=256)
    pool = weakref.ref(engine.pool)
    gc.disable()
    try:
        del engine
        assert pool() is None, "a notebook's next model would find no memory"
    finally:
        gc.enable()


def test_a_full_gpu_is_told_what_takes_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = torch.OutOfMemoryError("CUDA out of memory. 4.19 MiB is free.\nSee")
    engine = TorchEngine(loaded("llama"), pool_tokens=256)
    monkeypatch.setattr(engine, "run_batch", Mock(side_effect=fault))
    with pytest.raises(DeviceMemoryError, match=r"MiB is free\.; the model has 0\.0 GB") as caught:
        engine.generate([Request(prompt=[1, 2], params=SamplingParams(max_tokens=4))])
    assert "pasta serve --set cache_memory=20%" in str(caught.value.hint)
    assert from_error(caught.value).status == 503
    loose = _known(torch.OutOfMemoryError("CUDA out of memory."))
    assert isinstance(loose, DeviceMemoryError)


MEASURE = """
import re, sys
from pathlib import Path
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import load
from pasta_lm.engines.request import Request, SamplingParams

def most_mb(folder):
    Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text
    before, (dtype, *_) = int(re.search(r"VmRSS:\\s+(\\d+)", status())[1]), sys.argv[1:]
    request = Request(prompt=[1, 2, 3], params=SamplingParams(max_tokens=4))
    TorchEngine(load(folder, dtype=dtype, device="cpu"), pool_tokens=512).generate([request])
    return (int(re.search(r"VmHWM:\\s+(\\d+)", status())[1]) - before) / 1e3

most_mb(sys.argv[2])  # what libraries import at the first use
print(most_mb(sys.argv[3]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts the pages")
@pytest.mark.parametrize(("dtype", "bytes_of_a_weight"), [("bfloat16", 2), ("int8", 1)])
def test_a_start_takes_a_third_more_memory_than_its_weights(
    dtype: str, bytes_of_a_weight: int, tmp_path: Path
) -> None:
    tokenizer = byte_level()
    for name, settings in (("tiny", {}), ("large", LARGE)):
        model = random_llama(tokenizer, **settings).to(torch.bfloat16)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    os.sync()  # pages that the disk has not can not leave memory
    command = [sys.executable, "-c", MEASURE, dtype, tmp_path / "tiny", tmp_path / "large"]
    most_mb, peaks = 1.3 * model.num_parameters() * bytes_of_a_weight / 1e6 + BLOCK_MB, [inf]
    while min(peaks) >= most_mb and len(peaks) < 6:  # Linux may keep pages that were let go
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(float(result.stdout.split()[-1]))
    assert min(peaks) < most_mb
