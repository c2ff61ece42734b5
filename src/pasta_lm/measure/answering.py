"""Decode systems' answers to prompts: many at once for scores, one at a time for clocks.

Decoding prompts together does not change the tokens of any. Answers go to a store; what the store
has is not decoded again. Knows nothing of grades, judges and figures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.journal import Journal, Row
from pasta_lm.strategies import pasta

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta, Servers

Progress = Callable[[str, int, int], None]
"""Called with what is being decoded, how many prompts are done, and of how many."""
BATCH_SIZE = 250
"""Prompts that the engine gets together."""
WORKER_BATCH_SIZE = 50
"""Prompts that a process gets together."""
TOO_LONG = "prompt_too_long"
"""The finish reason of a prompt that does not fit the model's context: a failed answer."""


class Prompt(NamedTuple):
    """One prompt of a benchmark."""

    id: str
    text: str
    group: str = ""
    """Prompts of one group have figures of their own."""


class System(NamedTuple):
    """A model that answers by a strategy."""

    name: str
    strategy: str
    model: str
    """The name under which the model was loaded: a folder, a hub id, a built-in name."""


class Decoded(NamedTuple):
    """An answer's record, and two facts that records of tasks leave out."""

    record: AnswerRecord
    engine: str | None
    positions: str | None


def check_served(servers: Servers | None, model: str | None, names: Iterable[str]) -> None:
    """Refuse other models beside one that servers hold: clocks of two machines say nothing.

    Raises:
        UsageError: the model is not named, or there are others.
    """
    if servers is None:
        return
    if model is None:
        raise UsageError("--engine needs --model", hint="name the folder that the servers serve")
    others = sorted({*names} - {model})
    if others:
        raise UsageError(
            f"the servers hold {model}, and {others[0]} is to answer too",
            hint="compare strategies of one model: leave out --baseline and --system",
        )


Models = Mapping[str, "Pasta"]
Replay = Callable[[Prompt], tuple["Pasta", Request]]
"""Returns what is decoded in turn with the systems' answers to a prompt, and by which model."""
Details = Callable[[System, Prompt], Row]
"""Returns what a journal's row has besides the record."""


class AnswerStore:
    """Answers by system and prompt, in memory or in a journal with which a stopped run goes on."""

    def __init__(self, journal: Journal | None = None, details: Details = lambda *_: {}) -> None:
        """Begin with the answers that the journal has."""
        self._journal = journal
        self._details = details
        self._answers: dict[str, AnswerRecord] = {}

    def has(self, system: str, prompt: Prompt) -> bool:
        """Return whether a system's answer to a prompt is there."""
        key = answer_id(system, prompt.id)
        return key in self._answers or (self._journal is not None and key in self._journal.rows)

    def answer(self, system: str, prompt: Prompt) -> AnswerRecord:
        """Return a system's answer to a prompt."""
        key = answer_id(system, prompt.id)
        if key in self._answers or self._journal is None:
            return self._answers[key]
        return AnswerRecord.from_row(self._journal.rows[key])

    def answers(self, system: str, prompts: Sequence[Prompt]) -> list[AnswerRecord]:
        """Return a system's answers in the order of the prompts."""
        return [self.answer(system, prompt) for prompt in prompts]

    def add(self, found: Iterable[tuple[System, Prompt, Decoded]]) -> None:
        """Add answers that are not there yet; in a journal they are on disk afterwards."""
        new = [one for one in found if not self.has(one[0].name, one[1])]
        if self._journal is None:
            self._answers |= {answer_id(s.name, p.id): one.record for s, p, one in new}
        else:
            self._journal.append([self._row(*one) for one in new])

    def _row(self, system: System, prompt: Prompt, decoded: Decoded) -> Row:
        row = decoded.record.to_row()
        if row["trace"] is None:
            del row["trace"]
        return {
            "id": answer_id(system.name, prompt.id),
            "system": system.name,
            "strategy": system.strategy,
            "model": system.model,
            "engine": decoded.engine,
            "positions": decoded.positions,
            **row,
            **self._details(system, prompt),
        }


def answer_id(system: str, prompt_id: str) -> str:
    """Return the id of an answer's row in a journal."""
    return f"{system}/{prompt_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerer:
    """Models and how they decode."""

    models: Models
    params: SamplingParams
    positions: str | None = None
    """The position strategy of ``pasta``; None: the one that the model was trained with."""
    progress: Progress = lambda *_: None
    batch_size: int = BATCH_SIZE
    keeps_traces: bool = True
    """Whether records of timed answers hold the packed trace."""
    workers: Executor | None = None
    """Processes with the same models, which decode what is not timed."""

    def answer_together(
        self, prompts: Sequence[Prompt], systems: Iterable[System], store: AnswerStore
    ) -> None:
        """Decode what the store lacks, many prompts at once."""
        for system in systems:
            lacking = [one for one in prompts if not store.has(system.name, one)]
            num_done = 0
            for batch, decoded in self._batches(system, lacking):
                store.add((system, *one) for one in zip(batch, decoded, strict=True))
                num_done += len(batch)
                self.progress(system.name, num_done, len(lacking))

    def _batches(
        self, system: System, prompts: Sequence[Prompt]
    ) -> Iterator[tuple[Sequence[Prompt], Sequence[Decoded]]]:
        size = min(self.batch_size, WORKER_BATCH_SIZE) if self.workers else self.batch_size
        batches = [prompts[first : first + size] for first in range(0, len(prompts), size)]
        settings = repeat(system), batches, repeat(self.params), repeat(self.positions)
        if self.workers is not None:
            decoded = self.workers.map(_decode_in_process, *settings)
        else:
            decoded = map(partial(decode_prompts, self.models[system.model]), *settings)
        return zip(batches, decoded, strict=True)

    def answer_in_turn(
        self,
        prompts: Sequence[Prompt],
        systems: Sequence[System],
        store: AnswerStore,
        replays: Mapping[str, Replay] | None = None,
    ) -> None:
        """Decode one prompt at a time, by all systems in turn, so that clocks can be compared.

        If a system's answer is missing, all systems answer the prompt again: clocks of one prompt
        belong to one run. The first prompt is decoded twice, to warm up.
        """
        lacking = [
            one for one in prompts if not all(store.has(system.name, one) for system in systems)
        ]
        for number, prompt in enumerate([*lacking[:1], *lacking]):
            found = []
            for system in systems:
                model = self.models[system.model]
                request = request_of(model, system, prompt, self.params, self.positions)
                found.append((system, prompt, self._timed(model, request)))
            for name, replay in (replays or {}).items():
                decoded = self._timed(*replay(prompt))
                found.append((System(name, name, ""), prompt, decoded))
            if number > 0:
                store.add(found)
            self.progress("clocks", number, len(lacking))

    def _timed(self, model: Pasta, request: Request) -> Decoded:
        (found,) = decode(model, [request], is_timed=True, keeps_trace=self.keeps_traces)
        return found


def request_of(
    model: Pasta, system: System, prompt: Prompt, params: SamplingParams, positions: str | None
) -> Request:
    """Return the request that lets a system answer a prompt."""
    own = positions if system.strategy == pasta.NAME else None
    return model.request(prompt.text, params, strategy=system.strategy, positions=own)


def decode_prompts(
    model: Pasta,
    system: System,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    positions: str | None,
) -> list[Decoded]:
    """Decode a system's answers to prompts together; in order."""
    return decode(model, [request_of(model, system, one, params, positions) for one in prompts])


def decode(model: Pasta, requests: Sequence[Request], **keeps: bool) -> list[Decoded]:
    """Decode requests together; a prompt that does not fit the context is a failed answer.

    Args:
        model: Who decodes.
        requests: What is decoded.
        keeps: Options of ``AnswerRecord.of``.
    """
    longest = model.engine.max_prompt_tokens
    fits = [longest is None or len(request.prompt) <= longest for request in requests]
    served = [request for request, is_served in zip(requests, fits, strict=True) if is_served]
    answers = iter(model.engine.generate(served) if served else [])
    failed = AnswerRecord(
        text="",
        program="",
        finish_reason=TOO_LONG,
        num_illegal=0,
        num_content_tokens=0,
        critical_path=0,
        kind=model.engine.loaded.kind.value,
    )
    found = []
    for request, is_served in zip(requests, fits, strict=True):
        if is_served:
            (answer,) = next(answers)
            record = AnswerRecord.of(answer, **keeps)
            found.append(Decoded(record, answer.trace.engine, answer.trace.positions))
        else:
            found.append(Decoded(failed, None, request.positions.value))
    return found


_models: dict[str, Pasta] = {}


@contextmanager
def worker_pool(num: int, load: Callable[[], Models]) -> Iterator[Executor]:
    """Provide processes that decode, each with all models and one CPU thread.

    Args:
        num: How many processes.
        load: Returns the models; called once in each process.
    """
    pool = ProcessPoolExecutor(
        num, mp_context=get_context("spawn"), initializer=_load, initargs=(load,)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _load(load: Callable[[], Models]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it once, when it is imported with the models
    _models.update(load())


def _decode_in_process(
    system: System, prompts: Sequence[Prompt], params: SamplingParams, positions: str | None
) -> list[Decoded]:
    return decode_prompts(_models[system.model], system, prompts, params, positions)
