"""An engine whose logits and choices are kept, to be compared with one masked pass or a run."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.planning import ActiveRequest
from pasta_lm.engines.passes.sampling import Choice, TokenMasks, adjusted
from pasta_lm.engines.request import Answer, Finished, Request
from pasta_lm.engines.response import Response
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.visibility import PROMPT_OWNER
from pasta_lm.language.tags import ASYNC_CLOSE
from tests.engines.local.naive import naive_logits
from tests.reference import is_visible

MARGIN = 1e-3
"""Below it a choice may fall either way (semantics, "Equality")."""
TOLERANCE = 1e-4
"""Largest difference of logits in float32."""


class Step(NamedTuple):
    path: tuple[int, ...]
    """Whose it is: the thread's place in document order."""
    index: int
    """Index of the token in its thread."""
    token: int | None
    """None: an end-of-text, or a token that came too late."""
    logits_V: Tensor
    choice: Choice


@dataclass(eq=False)
class Recorded:
    """What was met while one response was decoded."""

    response: Response
    slots: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    """Whose logits they are: the thread's place in document order."""
    choices: list[Choice] = field(default_factory=list)
    answer: Answer | None = None
    num_preemptions: int = 0

    @property
    def entries(self) -> Entries:
        return self.response.placer.entries

    def worst_difference(self, loaded: LoadedModel) -> float:
        """Return how far the logits met are from one masked pass, in double, over all fed."""
        expected = naive_logits(_in_double(loaded.model), self.entries)[self.slots]
        found = torch.stack(self.logits)
        assert torch.isfinite(found).all()
        return float((found - expected).abs().max())

    def steps(self) -> Iterator[Step]:
        assert self.answer is not None
        paths = {thread.id: thread.path for thread in self.response.interpreter.threads}
        tokens: dict[tuple[int, ...], list[int | None]] = defaultdict(list)
        for record in self.answer.trace.tokens:
            is_opening = record.is_forced and record.thread and not tokens[paths[record.thread]]
            # A block's <async> is chosen from no logits.
            tokens[paths[record.thread]].append(None if is_opening else record.token)
        count: dict[tuple[int, ...], int] = defaultdict(int)
        for path, logits, choice in zip(self.paths, self.logits, self.choices, strict=True):
            index = count[path] + bool(path)
            count[path] += 1
            lane = tokens[path]
            yield Step(path, index, lane[index] if index < len(lane) else None, logits, choice)


def decode(
    engine: TorchEngine,
    requests: Sequence[Request],
    preempt_every: int | None = None,
    is_due: Callable[[], bool] = lambda: True,
) -> list[tuple[ActiveRequest, list[Answer]]]:
    """Decode requests together; return each with the answers of its samples.

    With ``preempt_every``, all pages are taken away after each so many passes for which it is due.
    """
    numbers = [engine.submit(request) for request in requests]
    active = [engine.active[number] for number in numbers]
    answers: dict[tuple[int, int], Answer] = {}
    while engine.has_work:
        for number, event in engine.step():
            if isinstance(event, Finished):
                answers[number, event.sample] = event.answer
        if preempt_every and engine.num_passes % preempt_every == 0 and is_due():
            for ticket in engine.scheduler.running[::-1]:
                engine.scheduler.preempt(ticket)
    assert engine.pool.num_free_pages == engine.pool.num_pages
    return [
        (one, [answers[number, sample] for sample in range(len(one.responses))])
        for number, one in zip(numbers, active, strict=True)
    ]


class Recording:
    """An engine whose every logit is kept."""

    def __init__(self, loaded: LoadedModel, **settings: object) -> None:
        settings = {"pool_tokens": 8192, **settings}
        self.engine = TorchEngine(loaded, on_logits=self._look, **settings)  # type: ignore[arg-type]
        self.loaded = loaded
        self._seen: dict[int, Recorded] = {}

    def _look(self, response: Response, live: LiveThread, choice: Choice, logits_V: Tensor) -> None:
        seen = self._seen.setdefault(id(response), Recorded(response))
        seen.slots.append(_last_slot(seen.entries, live.thread.owner))
        seen.logits.append(logits_V.clone())
        seen.paths.append(live.thread.path)
        seen.choices.append(choice)

    def run(
        self, requests: Sequence[Request], *, preempt_every: int | None = None
    ) -> list[list[Recorded]]:
        """Decode requests together; return what was seen of each one's samples.

        ``preempt_every``: take all pages away after each so many passes, if a token was chosen
        since the last time: feeding many keys again can take that many passes.
        """
        num_chosen = 0

        def is_due() -> bool:
            nonlocal num_chosen
            before, num_chosen = num_chosen, sum(len(seen.logits) for seen in self._seen.values())
            return num_chosen > before

        found = []
        for request, answers in decode(self.engine, requests, preempt_every, is_due):
            samples = [self._seen[id(response)] for response in request.responses]
            for seen, answer in zip(samples, answers, strict=True):
                seen.answer = answer
                seen.num_preemptions = request.ticket.num_preemptions
            found.append(samples)
        return found


@lru_cache(maxsize=32)
def _in_double(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def _last_slot(entries: Entries, owner: int) -> int:
    """Return where a thread's last fed token is; for one that fed nothing, the prompt's."""
    for slot in range(len(entries) - 1, -1, -1):
        if entries[slot].owner in (owner, PROMPT_OWNER):
            return slot
    raise AssertionError("a prompt is never empty")


def margin(scores_V: Tensor, choice: Choice) -> float:
    """Return how little would let another token come out, of logits after penalties and mask."""
    if choice.params.temperature == 0:
        best = scores_V.topk(2).values
        return float(best[0] - best[1])
    scores = scores_V.sort(descending=True, stable=True).values
    cumulated = torch.softmax(scores.double() / choice.params.temperature, 0).cumsum(0)
    target = choice.uniform * float(cumulated[-1])
    chosen = int(torch.searchsorted(cumulated, target, right=True))
    around = [abs(target - float(bound)) for bound in cumulated[max(chosen - 1, 0) : chosen + 1]]
    # Neighbours of nearly equal score may change places.
    near = scores[max(chosen - 1, 0) : chosen + 2]
    return min(*around, *(float(a - b) for a, b in zip(near, near[1:], strict=False)))


def is_tied(alone: Recorded, other: Recorded, masks: TokenMasks) -> bool:
    """Assert that two runs of one request agree; tell whether a tie ended the comparison.

    Tokens are the same up to the first choice that differs; there the run alone had next to no
    margin. Up to there logits agree.
    """
    others = {(step.path, step.index): step for step in other.steps()}
    for step in alone.steps():
        twin = others[step.path, step.index]
        assert (step.logits_V - twin.logits_V).abs().max() <= TOLERANCE
        if step.token != twin.token:
            legal = masks.row(step.choice.legal, step.choice.params.ignore_eos)
            scores = adjusted(step.logits_V[None], [step.choice], masks.fork_id)[0] + legal
            assert margin(scores, step.choice) < MARGIN
            return True
    assert alone.answer is not None
    assert other.answer is not None
    assert alone.answer.document == other.answer.document
    return False


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
    closing = model.vocabulary.piece_id(ASYNC_CLOSE)
    found, outcomes = [], []
    for one, answers in decode(engine, requests, preempt_every):
        found += answers
        num_prompt = len(one.request.prompt)
        outcomes += [outcome_of(answer, one.entries, num_prompt, closing) for answer in answers]
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
