"""Watch an engine decode: every logit with the entry that it came from, every choice's margin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pasta_lm.engines.request import Answer, Finished, Request, SamplingParams
from pasta_lm.engines.torch.engine import TorchEngine
from pasta_lm.engines.torch.loading import LoadedModel
from pasta_lm.engines.torch.naive import naive_logits
from pasta_lm.engines.torch.response import Lane, Response
from pasta_lm.engines.torch.sampling import uniform_number
from pasta_lm.interpreter import Entries
from pasta_lm.interpreter.visibility import PROMPT_OWNER

MARGIN = 1e-3
"""Below it a choice may fall either way (semantics, "Equality")."""
TOLERANCE = 1e-4
"""Largest difference of logits in float32."""


@dataclass(eq=False)
class Seen:
    """What was met while one response was decoded."""

    response: Response
    slots: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    """Whose logits they are: the thread's place in document order."""
    answer: Answer | None = None
    num_preemptions: int = 0

    @property
    def entries(self) -> Entries:
        """Return everything that was fed in its request."""
        return self.response.placement.entries

    def worst_difference(self, loaded: LoadedModel) -> float:
        """Return how far the logits met are from one masked pass over all that was fed."""
        rotations = loaded.rotations if _has_moved(self.entries) else None
        expected = naive_logits(loaded.model, self.entries, rotations)[self.slots]
        found = torch.stack(self.logits)
        assert torch.isfinite(found).all()
        return float((found - expected).abs().max())

    def steps(self) -> dict[tuple[int, ...], list[tuple[int, Tensor]]]:
        """Return for each thread its decoded tokens, each with the logits that it came from."""
        assert self.answer is not None
        tokens: dict[int, list[int]] = defaultdict(list)
        for record in self.answer.trace.tokens:
            if not (record.is_forced and record.thread and not tokens[record.thread]):
                tokens[record.thread].append(record.token or 0)
            else:
                tokens[record.thread].append(-1)  # <async>: no logits
        logits: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for path, row in zip(self.paths, self.logits, strict=True):
            logits[path].append(row)
        threads = {t.path: t.id for t in self.response.interpreter.threads}
        return {
            path: list(zip([t for t in tokens[threads[path]] if t >= 0], rows, strict=False))
            for path, rows in logits.items()
        }


class Witness:
    """An engine whose every logit is kept."""

    def __init__(self, loaded: LoadedModel, **settings: object) -> None:
        settings = {"pool_tokens": 8192, **settings}
        self.engine = TorchEngine(loaded, on_logits=self._look, **settings)  # type: ignore[arg-type]
        self.loaded = loaded
        self._seen: dict[int, Seen] = {}

    def _look(self, response: Response, lane: Lane, logits_V: Tensor) -> None:
        seen = self._seen.setdefault(id(response), Seen(response))
        seen.slots.append(_last_slot(seen.entries, lane.thread.owner))
        seen.logits.append(logits_V.clone())
        seen.paths.append(lane.thread.path)

    def run(
        self, requests: Sequence[Request], *, preempt_every: int | None = None
    ) -> list[list[Seen]]:
        """Decode requests together; return what was seen of each one's samples.

        Args:
            requests: What to decode.
            preempt_every: Take all pages away after each so many passes.
        """
        engine = self.engine
        numbers = [engine.submit(request) for request in requests]
        running = [engine._requests[number] for number in numbers]
        answers: dict[tuple[int, int], Answer] = {}
        while engine.has_work:
            for number, event in engine.step():
                if isinstance(event, Finished):
                    answers[number, event.sample] = event.answer
            if preempt_every and engine.num_passes % preempt_every == 0:
                for ticket in engine.scheduler._running[::-1]:
                    engine.scheduler._preempt(ticket)
        assert engine.pool.num_runs == 0
        found = []
        for number, request in zip(numbers, running, strict=True):
            samples = [self._seen[id(response)] for response in request.responses]
            for index, seen in enumerate(samples):
                seen.answer = answers[number, index]
                seen.num_preemptions = request.ticket.num_preemptions
            found.append(samples)
        return found


def _has_moved(entries: Entries) -> bool:
    return any(entry.epoch.moved for entry in entries.items)


def _last_slot(entries: Entries, owner: int) -> int:
    """Return where a thread's last fed token is; for one that fed nothing, the prompt's."""
    for slot in range(len(entries) - 1, -1, -1):
        if entries[slot].owner in (owner, PROMPT_OWNER):
            return slot
    raise AssertionError("a prompt is never empty")


def margin(
    scores_V: Tensor, params: SamplingParams, sample: int, path: tuple[int, ...], index: int
) -> float:
    """Return how much a choice could be disturbed before another token came out.

    Args:
        scores_V: The scores after penalties and mask.
        params: How the token was chosen.
        sample: Which of the request's samples.
        path: The thread's place in document order.
        index: Index of the token in its thread.
    """
    if params.temperature == 0:
        best = scores_V.topk(2).values
        return float(best[0] - best[1])
    scores = (scores_V / params.temperature).sort(descending=True, stable=True).values
    cumulated = torch.softmax(scores.double(), 0).cumsum(0)
    assert params.seed is not None
    target = uniform_number(params.seed, sample, path, index) * cumulated[-1]
    chosen = int(torch.searchsorted(cumulated, target, right=True))
    below = target - cumulated[chosen - 1] if chosen else target + 1
    # Neighbours of nearly equal score may change places.
    gaps = [float(scores[max(chosen - 1, 0)] - scores[chosen]) if chosen else 1.0]
    gaps.append(float(scores[chosen] - scores[chosen + 1]))
    return min(float(below), float(cumulated[chosen] - target), *gaps)
