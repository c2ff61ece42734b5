"""Threads as rows: each logit is that of the model's own pass over one plain causal text."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pasta_lm.engines.local import rows
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel, pool_slots
from pasta_lm.engines.passes.row_reader import RowCache, RowReading, copy_cache
from pasta_lm.engines.passes.self_test import TOLERANCE
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.parser import Form
from pasta_lm.strategies.model import Pasta
from tests.architectures import each_of
from tests.engines.local.test_oracle import programs, recomputing
from tests.engines.rows.hybrids import HYBRIDS, hybrid
from tests.fakes.recording_engine import Recorded, Recording
from tests.plain_sequences import plain_sequences, seen_sequence

CONTINUE = PositionStrategy.CONTINUE
DIFFERENT = {"qwen3_next", "jamba", "mamba2", "mixtral"}  # deltas, scans, no attention, experts
families = each_of(HYBRIDS, DIFFERENT)


def plain(model: LoadedModel, ids: Sequence[int]) -> Tensor:
    """Return the logits behind a text from one pass over all of it, without a cache."""
    with torch.no_grad():
        out = model.model(input_ids=torch.tensor([[*ids]]), use_cache=False)
    logits: Tensor = out.logits[0, -1]
    return logits


def check(model: LoadedModel, seen: Recorded, every: int = 1) -> None:
    for slot, logits in [*zip(seen.slots, seen.logits, strict=True)][::-every]:
        expected = plain(model, seen_sequence(seen.entries, slot))
        assert torch.allclose(logits, expected, atol=TOLERANCE, rtol=0)


def sampling(**params: object) -> Request:
    settings = {"max_tokens": 40, "temperature": 1.0, "seed": 3, **params}
    return Request(
        prompt=(5, 6, 7, 8),
        params=SamplingParams(**settings),  # type: ignore[arg-type]
        positions=CONTINUE,
        join=Join.RECOMPUTE,
    )


@families
def test_programs_meet_the_logits_of_the_models_own_passes(name: str) -> None:
    model = hybrid(name)
    many = programs(model, 3, f"rows {name}", num_parts=8)
    requests = [recomputing(p, max_threads=(None, 2)[i % 2]) for i, p in enumerate(many)]
    found = [seen for (seen,) in Recording(model).run(requests)]
    assert sum(seen.response.trace.num_recomputed for seen in found) > 0
    for program, seen in zip(many, found, strict=True):
        expected = plain_sequences(model.vocabulary, program.prompt, program.answer)
        sequences = {seen_sequence(seen.entries, slot) for slot in seen.slots}
        assert sequences <= {program.prompt, *expected.values()}
        check(model, seen, every=3)


@families
def test_greedy_tokens_are_those_of_the_models_own_passes(name: str) -> None:
    model = hybrid(name)
    request = replace(sampling(temperature=0.0, max_tokens=24), forks=False)
    ((answer,),) = TorchEngine(model).generate([request])
    ids = [*request.prompt]
    for token in answer.trace.tokens_of(0):
        logits = plain(model, ids)[: model.vocabulary.num_tokens]
        logits[[*model.vocabulary.piece_ids.values()]] = -torch.inf
        assert logits[token.token] >= logits.max() - TOLERANCE
        ids.append(token.token)


@contextmanager
def counted(model: LoadedModel, *failing: int) -> Iterator[tuple[list[int], list[int]]]:
    """Collect the tokens that each reading of a text adds, and those of copies; some fail."""
    assert model.reader is not None
    read, copied, reader_read = list[int](), list[int](), model.reader.read

    def reading(cache: RowCache | None, text: Sequence[int]) -> tuple[RowCache, Tensor]:
        read.append(len(text) - len(cache.text if cache else ()))
        if len(read) in failing:
            raise RuntimeError("a fault of the machine")
        return reader_read(cache, text)

    def copying(cache: RowCache) -> RowCache:
        copied.append(len(cache.text))
        return copy_cache(cache)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.reader, "read", reading)
        patch.setattr(rows, "copy_cache", copying)
        yield read, copied


@each_of(["qwen3_next", "jamba", "mamba2", "recurrent_gemma"], DIFFERENT)
def test_a_cache_is_copied_at_a_fork_and_no_token_is_read_twice(name: str) -> None:
    model = hybrid(name)
    for program in programs(model, 3, "costs", num_parts=8):
        engine = TorchEngine(model)
        with counted(model) as (read, copied):
            ((answer,),) = engine.generate([recomputing(program)])
        trace = answer.trace
        assert len(copied) == len(trace.threads) - 1
        fed = [token for token in trace.tokens if token.position is not None]
        assert sum(read) <= len(program.prompt) + len(fed) + trace.num_recomputed
        assert engine.rows is not None
        assert not engine.rows.caches


def test_requests_at_once_are_decoded_as_each_alone() -> None:
    model = hybrid("qwen3_next")
    requests = [sampling(seed=seed, n=1 + seed % 2, max_tokens=30) for seed in range(4)]
    together = TorchEngine(model).generate(requests)
    alone = [samples for each in requests for samples in TorchEngine(model).generate([each])]
    texts, expected = ([[a.program for a in each] for each in all_] for all_ in (together, alone))
    assert texts == expected
    assert sum(len(a.trace.threads) for samples in together for a in samples) > 8


@pytest.mark.parametrize("name", ["falcon_h1", "jamba"])
def test_samples_that_are_preempted_meet_the_same_logits(name: str) -> None:
    model = hybrid(name)
    requests = [sampling(seed=seed, n=2, max_tokens=30) for seed in range(2)]
    samples = Recording(model).run(requests, preempt_every=7)
    found = [seen for each in samples for seen in each]
    assert all(seen.num_preemptions > 1 for seen in found)
    for seen in found:
        check(model, seen, every=4)


def test_a_long_prompt_is_read_in_chunks_while_others_decode() -> None:
    model = hybrid("qwen3_next")
    long = replace(sampling(max_tokens=4, temperature=0.0), prompt=tuple(range(20, 120)))
    with counted(model) as (read, copied):
        found = Recording(model, max_batch_tokens=16).run([long, sampling(max_tokens=20)])
    assert max(read) <= 16
    assert len(copied) <= sum(len(seen.response.trace.threads) - 1 for (seen,) in found)
    for (seen,) in found:
        check(model, seen, every=3)


def test_a_cancelled_request_leaves_no_cache() -> None:
    engine = TorchEngine(hybrid("lfm2"))
    number = engine.submit(sampling(max_tokens=60))
    for _ in range(12):
        engine.step()
    assert engine.rows is not None
    assert engine.rows.caches
    engine.cancel(number)
    assert not engine.rows.caches


@pytest.mark.parametrize("positions", ["predict", "continue"])
def test_what_needs_keys_that_threads_share_is_refused(positions: str) -> None:
    engine = TorchEngine(hybrid("lfm2"))
    request = replace(sampling(), positions=PositionStrategy(positions), join=Join.SHARED)
    with pytest.raises(RequestError, match="need keys that threads share"):
        engine.submit(request)
    apar = replace(request, form=Form.FORKED, positions=CONTINUE)
    ((alone,), (forked,)) = engine.generate([replace(request, forks=False), apar])
    assert len(alone.trace.threads) == 1
    assert forked.finish_reason is not None


def test_each_family_reads_its_texts_in_the_fastest_way_that_is_exact() -> None:
    readers = [hybrid(name).reader for name in ("qwen3_next", "jamba", "recurrent_gemma")]
    expected = [RowReading.PARTS, RowReading.STEPS, RowReading.WHOLE]
    assert [reader and reader.reading for reader in readers] == expected
    bamba = hybrid("bamba").reader  # it does not ask its cache where the text goes on
    assert bamba is not None
    assert bamba.counts


def test_a_model_that_flattened_passes_refuse_is_loaded_as_rows_and_this_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = hybrid("lfm2")
    model.model.save_pretrained(tmp_path)
    model.vocabulary.tokenizer.save_pretrained(tmp_path)
    models = [Pasta.from_pretrained(tmp_path, dtype="float32", pool_tokens=1024) for _ in range(2)]
    first, second = (each.generate("A", max_tokens=9) for each in models)
    assert first.program == second.program
    assert first.trace.positions == "continue"
    (record,) = [each for each in caplog.records if "decoded by itself" in each.message]
    assert "Lfm2ForCausalLM is not exact when flattened" in record.message


def test_a_model_of_rows_takes_no_cache_in_bytes() -> None:
    model = hybrid("lfm2")
    assert pool_slots(None, model) is None
    with pytest.raises(UsageError, match="tiny-lfm2 has no cache that threads share"):
        pool_slots("1GiB", model)


def test_a_pass_that_fails_is_run_again_for_each_request_alone() -> None:
    model = hybrid("lfm2")
    requests = [sampling(seed=seed, max_tokens=20) for seed in range(2)]
    expected = TorchEngine(model).generate(requests)
    with counted(model, 9, 24) as (read, _):
        found = TorchEngine(model).generate(requests)
    assert [each.program for (each,) in found] == [each.program for (each,) in expected]
    assert len([num for num in read if num > 2]) > len(requests)


def test_rows_on_a_gpu_store_no_scores() -> None:
    model = hybrid(next(iter(HYBRIDS)))
    there = replace(model, model=copy.deepcopy(model.model).to("meta"))
    assert [each.model.config._attn_implementation for each in (model, there)] == ["eager", "sdpa"]
