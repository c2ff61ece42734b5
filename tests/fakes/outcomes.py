"""The outcome of a response, apart from times: tokens and places of each thread, what they saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import Answer, Finished, Request
from pasta_lm.interpreter.placement import Entries
from pasta_lm.language.tags import ASYNC_CLOSE
from tests.visibility import is_visible


class Outcome(NamedTuple):
    finish_reason: str
    program: str
    tokens: dict[int, list[tuple[int | None, int | None]]]
    """Of each thread, the tokens with their positions; those that were not fed have none."""
    sees: dict[tuple[int, int], frozenset[tuple[int, int]]]
    """For each fed token, by thread and index, the tokens that it saw."""


def decoded(
    model: LoadedModel, requests: Sequence[Request], preempt_every: int = 0, **settings: object
) -> tuple[list[Answer], list[Outcome]]:
    """Decode requests together; return all samples of all of them, and what they outcome_of.

    With ``preempt_every``, all pages are taken away after each so many passes.
    """
    engine = TorchEngine(model, **{"pool_tokens": 4096, **settings})  # type: ignore[arg-type]
    numbers = [engine.submit(request) for request in requests]
    active = [engine.active[number] for number in numbers]
    answers: dict[tuple[int, int], Answer] = {}
    while engine.has_work:
        for number, event in engine.step():
            if isinstance(event, Finished):
                answers[number, event.sample] = event.answer
        if preempt_every and engine.num_passes % preempt_every == 0:
            for ticket in engine.scheduler.running[::-1]:
                engine.scheduler.preempt(ticket)
    assert engine.pool.num_free_pages == engine.pool.num_pages
    found, outcomes = [], []
    for number, one in zip(numbers, active, strict=True):
        for response in one.responses:
            answer = answers[number, response.sample]
            found.append(answer)
            closing = model.vocabulary.piece_id(ASYNC_CLOSE)
            outcomes.append(outcome_of(answer, one.entries, len(one.request.prompt), closing))
    return found, outcomes


def outcome_of(answer: Answer, entries: Entries, num_prompt: int, closing: int) -> Outcome:
    """Return what an answer tells; ``closing`` is the id of ``</async>``."""
    names = {slot: (-1, slot) for slot in range(num_prompt)}
    tokens: dict[int, list[tuple[int | None, int | None]]] = {}
    for token in answer.trace.tokens:
        lane = tokens.setdefault(token.thread, [])
        is_end = token.token == closing  # the last one of a response to come is not fed
        if token.slot is not None and not is_end:
            assert token.slot not in names, "two tokens in one slot"
            assert entries[token.slot].token == token.token
            names[token.slot] = token.thread, len(lane)
        lane.append((token.token, None if is_end else token.position))
    sees = {
        name: frozenset(other for key, other in names.items() if is_visible(entries, slot, key))
        for slot, name in names.items()
        if slot >= num_prompt
    }
    return Outcome(answer.finish_reason, answer.program, tokens, sees)
