"""Logits met while decoding equal one masked forward pass over everything that was fed.

Every architecture, every position strategy, alone and in company, with limits, chunks, samples of
one prompt and preemption. That the oracle can fail is a test as well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from pasta_lm.engines.local import scheduler
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.visibility import UNBOUNDED, Row
from pasta_lm.language.tags import PROMISE_OPEN, closing_piece
from pasta_lm.models.encoded import EncodedDocument
from tests.architectures import every_architecture, loaded, own_attention
from tests.engines.local.naive import naive_logits
from tests.fakes.recording_engine import TOLERANCE, Recorded, Recording
from tests.plain_sequences import plain_sequences, seen_sequence
from tests.programs import Program, random_program
from tests.reference import is_visible

STRATEGIES = list(PositionStrategy)
FREE = [s for s in STRATEGIES if s is not PositionStrategy.ORACLE]  # what a model can decode with
VISIBLE_MISTAKE = 100 * TOLERANCE

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
gpu = pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])
devices = pytest.mark.parametrize("device", ["cpu", gpu])


@pytest.fixture
def eager_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admit requests with next to no room to grow, so that they get in each other's way."""
    monkeypatch.setattr(scheduler, "FIRST_STRETCH", 4)


def programs(
    model: LoadedModel, count: int, seed: str, num_parts: int | None = None
) -> list[Program]:
    rng = random.Random(seed)
    return [random_program(rng, model.vocabulary, num_parts=num_parts) for _ in range(count)]


def replay(program: Program, positions: PositionStrategy, **params: int | None) -> Request:
    """Ask for a program, token by token, with no more room than it needs."""
    room = program.answer.num_tokens + 1
    return Request(
        prompt=program.prompt,
        forced=program.answer,
        positions=positions,
        params=SamplingParams(**{"max_tokens": room, **params}),  # type: ignore[arg-type]
    )


def check(model: LoadedModel, seen: Sequence[Recorded]) -> None:
    assert max(one.worst_difference(model) for one in seen) <= TOLERANCE


@devices
@every_architecture
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_program_decoded_alone_meets_the_logits_of_one_masked_pass(
    name: str, strategy: PositionStrategy, device: str
) -> None:
    model = loaded(name, device)
    for program in programs(model, 2, f"alone {name} {strategy}"):
        ((seen,),) = Recording(model).run([replay(program, strategy)])
        assert len(seen.slots) >= len(program.answer.main)
        check(model, [seen])


@devices
@every_architecture
def test_programs_decoded_at_once_meet_the_logits_of_their_own_masked_pass(
    name: str, device: str
) -> None:
    model = loaded(name, device)
    many = programs(model, 8, f"crowd {name}")
    requests = [replay(p, STRATEGIES[i % 3]) for i, p in enumerate(many)]
    requests[::2] = [replace(r, params=replace(r.params, max_threads=2)) for r in requests[::2]]
    seen = Recording(model, max_batch_tokens=16).run(requests)
    check(model, [one for (one,) in seen])


@devices
@every_architecture
def test_preempted_programs_meet_the_same_logits_when_they_are_computed_again(
    name: str, device: str, eager_admission: None
) -> None:
    model = loaded(name, device)
    many = programs(model, 5, f"preempted {name}", num_parts=14)
    requests = [replay(p, STRATEGIES[(i + 2) % 3]) for i, p in enumerate(many)]
    largest = max(len(r.prompt) + r.params.max_tokens for r in requests)
    seen = Recording(model, pool_tokens=largest, max_batch_tokens=24).run(requests)
    assert sum(one.num_preemptions for (one,) in seen) > 0
    assert seen[0][0].num_preemptions == 0
    check(model, [one for (one,) in seen])


@devices
@every_architecture
def test_samples_of_one_prompt_meet_the_logits_of_one_masked_pass(name: str, device: str) -> None:
    model = loaded(name, device)
    prompt = programs(model, 1, f"samples {name}")[0].prompt
    params = SamplingParams(max_tokens=40, temperature=1.0, n=3, seed=7)
    requests = [Request(prompt=prompt, params=params, positions=s) for s in FREE]
    seen = Recording(model).run(requests)
    assert any(one.response.interpreter.threads[1:] for samples in seen for one in samples)
    check(model, [one for samples in seen for one in samples])


@devices
@pytest.mark.parametrize("name", ["llama", "gemma3", "smollm3", "cohere2", "recomputing llama"])
def test_several_samples_survive_any_preemption(name: str, device: str) -> None:
    recomputes, name = name.startswith("recomputing"), name.split()[-1]
    model = loaded(name, device)
    request = Request(prompt=(), params=SamplingParams(max_tokens=60, temperature=1.0, n=3, seed=3))
    if recomputes:
        request = replace(request, positions=PositionStrategy.CONTINUE, join=Join.RECOMPUTE)
    requests = [replace(request, prompt=p.prompt) for p in programs(model, 3, f"moved {name}")]
    seen = Recording(model).run(requests, preempt_every=7)
    everything = [one for samples in seen for one in samples]
    assert all(one.num_preemptions > 3 for one in everything)
    assert sum(len(one.answer.trace.syncs) for one in everything if one.answer) > 1
    assert any(one.response.trace.num_recomputed for one in everything) is recomputes
    check(model, everything)
    for one in everything if recomputes else ():
        check_plain(model, one, num_checked=5)


@every_architecture
def test_a_model_that_runs_as_it_is_meets_the_same_logits(name: str) -> None:
    model = loaded(name)
    many = programs(model, 3, f"uncaptured {name}")
    requests = [replay(p, STRATEGIES[i]) for i, p in enumerate(many)]
    seen = Recording(model, captures=False).run(requests)
    check(model, [one for (one,) in seen])


def test_the_oracle_equals_a_masked_pass_of_the_models_own_attention() -> None:
    model = loaded("llama")
    (program,) = programs(model, 1, "eager")
    ((seen,),) = Recording(model).run([replay(program, PositionStrategy.PREDICT)])
    entries = seen.entries
    slots = range(len(entries))
    hidden = [[not is_visible(entries, query, key) for key in slots] for query in slots]
    mask = torch.zeros(len(entries), len(entries)).masked_fill(torch.tensor(hidden), float("-inf"))
    with own_attention(model), torch.inference_mode():
        expected = model.model(
            input_ids=torch.tensor([[entry.token for entry in entries.items]]),
            position_ids=torch.tensor([[entry.position for entry in entries.items]]),
            attention_mask=mask[None, None],
        ).logits[0]
    assert torch.allclose(naive_logits(model.model, entries), expected, atol=TOLERANCE, rtol=0)


def shifted(entries: Entries, owner: int) -> Entries:
    """Return entries whose block stands one position too late from its first word on."""
    first = next(s for s, e in enumerate(entries.items) if e.owner == owner)
    items = [
        replace(e, position=e.position + 1) if e.owner == owner and slot > first else e
        for slot, e in enumerate(entries.items)
    ]
    return Entries(items, entries.num_owners)


def leaking(entries: Entries, owner: int, reader: int) -> Entries:
    """Return entries whose reader sees a block that no sync has joined."""
    items = [
        replace(e, row=Row({**e.row.cutoffs, owner: UNBOUNDED})) if e.owner == reader else e
        for e in entries.items
    ]
    return Entries(items, entries.num_owners)


@every_architecture
@pytest.mark.parametrize("mistake", ["shifted", "leaking"])
def test_a_mistake_of_one_position_or_one_row_would_show(name: str, mistake: str) -> None:
    model = loaded(name)
    text = model.vocabulary.encode_text("Read the same prompt")[:6]
    promise = [PROMISE_OPEN, closing_piece(1)]
    opening, closing = map(model.vocabulary.piece_id, promise)
    main = (*text, opening, text[0], closing, *text)
    program = Program(tuple(text), EncodedDocument(main, (tuple(text),)))
    ((seen,),) = Recording(model).run([replay(program, PositionStrategy.CONTINUE)])
    main_thread, block = seen.response.interpreter.threads
    wrong = shifted(seen.entries, block.owner)
    if mistake == "leaking":
        wrong = leaking(seen.entries, block.owner, main_thread.owner)
    right = naive_logits(model.model, seen.entries)
    difference = (naive_logits(model.model, wrong) - right).abs().max()
    assert difference > VISIBLE_MISTAKE


def recomputing(program: Program, **params: int | None) -> Request:
    request = replay(program, PositionStrategy.CONTINUE, **params)
    return replace(request, join=Join.RECOMPUTE)


def check_plain(model: LoadedModel, seen: Recorded, num_checked: int) -> None:
    """Hold the last logits of a response against plain causal passes over what they saw."""
    for slot, logits in list(zip(seen.slots, seen.logits, strict=True))[-num_checked:]:
        plain = Entries.of_prompt(seen_sequence(seen.entries, slot))
        expected = naive_logits(model.model, plain)[-1]
        assert torch.allclose(logits, expected, atol=TOLERANCE, rtol=0)


@every_architecture
def test_programs_meet_the_logits_of_a_masked_pass_and_of_plain_causal_ones(name: str) -> None:
    model = loaded(name)
    many = programs(model, 4, f"recompute {name}", num_parts=12)
    requests = [recomputing(p, max_threads=(None, 2)[i % 2]) for i, p in enumerate(many)]
    found = [seen for (seen,) in Recording(model, max_batch_tokens=16).run(requests)]
    assert sum(seen.response.trace.num_recomputed for seen in found) > 10
    check(model, found)
    for seen in found:
        check_plain(model, seen, num_checked=8)


def test_each_thread_decodes_behind_the_plain_sequence_of_the_written_form() -> None:
    model = loaded("llama")
    for program in programs(model, 3, "written", num_parts=10):
        ((seen,),) = Recording(model).run([recomputing(program)])
        expected = plain_sequences(model.vocabulary, program.prompt, program.answer)
        sequences = {seen_sequence(seen.entries, slot) for slot in seen.slots}
        assert sequences <= {program.prompt, *expected.values()}
        check_plain(model, seen, num_checked=len(seen.slots))


def test_a_pool_of_just_the_largest_need_is_enough() -> None:
    model = loaded("llama")
    (program,) = programs(model, 1, "tight", num_parts=16)
    request = recomputing(program)
    engine = TorchEngine(model, pool_tokens=request.max_entries, captures=False)
    ((answer,),) = engine.generate([request])
    assert answer.trace.num_recomputed
    smaller = TorchEngine(model, pool_tokens=request.max_entries // 2, captures=False)
    with pytest.raises(RequestError, match="twice with join"):
        smaller.submit(request)
