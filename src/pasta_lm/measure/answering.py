"""Decode systems' answers to prompts: many at once for scores, one at a time for clocks.

Decoding prompts together does not change the tokens of any. Answers are rows; one that is there is
not decoded again. Knows nothing of grades, judges and figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.journal import Journal, Row
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.machine import processor, provenance
from pasta_lm.models.names import BUILTIN, require_model, resolve
from pasta_lm.strategies import PASTA, SEQUENTIAL
from pasta_lm.strategies.model import Pasta, Servers, baseline_of

Progress = Callable[[str, int, int], None]
"""Called with what is being decoded, how many prompts are done, and of how many."""
TOO_LONG = "prompt_too_long"
"""The finish reason of a prompt that does not fit the model's context: a failed answer."""
FAILED: Row = {"text": "", "program": "", "finish_reason": TOO_LONG}
FAILED |= dict.fromkeys(("num_illegal", "num_content_tokens", "critical_path"), 0)


class SetPrompt(NamedTuple):
    """One prompt of a benchmark."""

    id: str
    text: str
    group: str = ""  # each group has its figures
    parts: str | None = None
    """What is asked for: one thing, several independent ones, or between; None: not labelled."""
    checked: Row | None = None  # the row of IFEval, whose checkers need it


class System(NamedTuple):
    """A model that answers by a strategy."""

    name: str
    strategy: str
    model: str  # the name under which the model was loaded: a folder, a hub id, a built-in name


Models = Mapping[str, Pasta]
Replay = Callable[[SetPrompt], tuple[Pasta, Request]]
"""Returns what is decoded in turn with the systems' answers to a prompt, and by which model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """The models that answer, and the engine that decodes."""

    model: str | None = None  # a folder, a hub id or a built-in name; None: the built-in model
    baseline: str | None = None
    """Whose sequential answers are the baseline; None: the built-in one, or the model itself."""
    limit: int | None = None  # the first so many prompts; None: all
    max_tokens: int = 512  # an answer's, all threads together, with tags
    repetition_penalty: float | None = None  # for all systems; None: each model's own
    batch_size: int = 64  # prompts that are decoded together; their answers are written together
    pool_tokens: int = 65_536  # cache entries of each model's engine
    dtype: str | None = None
    device: str | None = None
    servers: Servers | None = None
    """Stock servers that hold the model, which is then its own baseline; None: it is loaded."""

    @property
    def taught(self) -> str:
        return self.model or BUILTIN

    @property
    def sequential(self) -> System:
        model = baseline_of(self.taught) if self.servers is None else self.taught
        return System(SEQUENTIAL, SEQUENTIAL, self.baseline or model)

    def hashes(self, systems: Iterable[System]) -> dict[str, str]:
        local = [system for system in systems if self.servers is None]
        for system in local:
            require_model(system.model)
        from pasta_lm.models.load import hashes_of  # imports torch

        hashes = [hashes_of(system.name, system.model) for system in local]
        return {key: value for pairs in hashes for key, value in pairs.items()}

    def load(self, names: Iterable[str]) -> Models:
        if self.servers is not None:
            return {name: self.servers.holding(name) for name in names}
        dtype, device, pool_tokens = self.dtype, self.device, self.pool_tokens
        load = partial(Pasta.from_pretrained, dtype=dtype, device=device, pool_tokens=pool_tokens)
        return {name: load(name) for name in names}


def check_served(servers: Servers | None, model: str | None, names: Iterable[str]) -> None:
    """Refuse other models beside one that servers hold: clocks of two machines say nothing."""
    if servers is None:
        return
    if model is None:
        raise UsageError("--engine needs --model", hint="name the folder that the servers serve")
    if others := sorted({*names} - {model}):
        hint = "compare strategies of one model: leave out --baseline and --system"
        raise UsageError(f"the servers hold {model}, and {others[0]} is to answer too", hint=hint)


def require_models(names: Iterable[str | None]) -> None:
    models = [*filter(None, names)]
    for name in models:
        require_model(name)
    if not models:
        return
    from pasta_lm.models.checkpoint import gguf_of_package, require_on_hub  # imports torch

    for name in models:
        if not Path(resolve(name)).exists() and gguf_of_package(name) is None:
            require_on_hub(name)


def _provenance_of(model: Pasta) -> dict[str, str]:
    loaded = model.engine.loaded
    device = machine_of(model) or str(loaded.device)
    is_named = "cuda" in device or model.engine.is_remote
    return provenance(device if is_named else f"{device}, {processor()}", loaded.dtype_name)


def machine_of(model: Pasta) -> str | None:
    from pasta_lm.engines.devices import devices  # imports torch

    device = str(model.engine.loaded.device)
    return next((name for name in devices() if name.startswith(device)), None)


class Workload(NamedTuple):
    """Prompts that systems answer, and the journal of their answers."""

    answers: Journal
    prompts: Sequence[SetPrompt]
    systems: Sequence[System]
    is_timed: bool = False  # decoded one at a time
    mask: bool = True  # False: also tags that the grammar does not allow

    def lacking(self, *systems: System) -> list[SetPrompt]:
        rows, names = self.answers.rows, [system.name for system in systems or self.systems]
        return [
            item for item in self.prompts if any(answer_id(n, item.id) not in rows for n in names)
        ]


def answer_id(system: str, prompt_id: str) -> str:
    return f"{system}/{prompt_id}"


@dataclass(frozen=True, kw_only=True)
class Answerer:
    """Models and how they decode."""

    models: Models
    params: SamplingParams
    penalty: float | None = None  # of repetition; None: each model's own
    positions: str | None = None
    """The position strategy of ``pasta``; None: the one that the model was trained with."""
    details: Callable[[System, SetPrompt], Row] = lambda *_: {}  # a row's, besides the record
    progress: Progress = lambda *_: None
    batch_size: int = 250  # prompts that the engine gets together

    def answer(self, workload: Workload, replays: Mapping[str, Replay] = {}) -> None:
        """Decode the answers that a workload lacks; ``replays`` are timed beside them, by name."""
        if workload.is_timed:
            self._answer_in_turn(workload, replays)
            return
        for system in workload.systems:
            lacking = workload.lacking(system)
            for first in range(0, len(lacking), self.batch_size):
                batch = lacking[first : first + self.batch_size]
                requests = [self._request(system, item, workload) for item in batch]
                decoded = _decode(self.models[system.model], requests)
                workload.answers.append([*map(partial(self._row, system), batch, decoded)])
                self.progress(system.name, first + len(batch), len(lacking))

    def _answer_in_turn(self, workload: Workload, replays: Mapping[str, Replay]) -> None:
        # If a system's answer is missing, all systems answer the prompt again: clocks of one
        # prompt belong to one run. The first prompt is decoded twice, to warm up.
        lacking, known = workload.lacking(), workload.answers.rows
        for number, prompt in enumerate([*lacking[:1], *lacking]):
            jobs = {
                system: (self.models[system.model], self._request(system, prompt, workload))
                for system in workload.systems
            }
            jobs |= {System(name, name, ""): of(prompt) for name, of in replays.items()}
            rows = [
                self._row(system, prompt, *_decode(model, [request], is_timed=True))
                for system, (model, request) in jobs.items()
            ]
            if number > 0:
                workload.answers.append([row for row in rows if row["id"] not in known])
            self.progress("clocks", number, len(lacking))

    def _row(self, system: System, prompt: SetPrompt, decoded: Row) -> Row:
        name, strategy, model = system
        key = {"id": answer_id(name, prompt.id), "system": name, "strategy": strategy}
        return {**key, "model": model, **decoded, **self.details(system, prompt)}

    def _request(self, system: System, prompt: SetPrompt, workload: Workload) -> Request:
        strategy, model = system.strategy, self.models[system.model]
        positions = self.positions if strategy == PASTA else None
        penalty = model.own_penalty if self.penalty is None else self.penalty
        params = replace(self.params, mask=workload.mask, repetition_penalty=penalty)
        return model.request(prompt.text, params, strategy=strategy, positions=positions)


def _decode(model: Pasta, requests: Sequence[Request], *, is_timed: bool = False) -> list[Row]:
    """Return the rows of the answers; a prompt that does not fit the context has a failed one."""
    longest, kind = model.engine.max_prompt_tokens, model.engine.loaded.kind.value
    fits = [longest is None or len(item.prompt) <= longest for item in requests]
    fitting = [*compress(requests, fits)]
    num_shapes = getattr(model.engine, "num_shapes", 0)  # captured passes of a GPU
    decoded = model.engine.generate(fitting) if fitting else []
    if is_timed and getattr(model.engine, "num_shapes", 0) > num_shapes:  # capturing took time
        decoded = model.engine.generate(fitting)
    failed = AnswerRecord.from_row({**FAILED, "kind": kind}).to_row()
    rows = [{"engine": None, "positions": item.positions.value} | failed for item in requests]
    for row, (answer,) in zip(compress(rows, fits), decoded, strict=True):
        row |= {"engine": answer.trace.engine, "positions": answer.trace.positions}
        row |= AnswerRecord.of(answer, is_timed=is_timed).to_row()
    return rows


def answer_workloads(
    workloads: Sequence[Workload], settings: AnswerSettings, details: Callable[[SetPrompt], Row],
    progress: Progress,
) -> None:  # fmt: skip
    """Let systems answer what has no row yet; the models are loaded only if there is any.

    One model at a time is in memory, unless answers are timed in turn.

    Source: PASTA, section 5.1 (greedy, clocks at batch 1).
    """
    lacking = [workload for workload in workloads if workload.lacking()]
    systems = [system for workload in lacking for system in workload.systems]
    names = tuple(dict.fromkeys(system.model for system in systems))
    params, penalty = SamplingParams(max_tokens=settings.max_tokens), settings.repetition_penalty
    answerer = partial(
        Answerer, params=params, penalty=penalty, progress=progress, batch_size=settings.batch_size
    )
    if settings.servers is None:
        require_models(names)
    is_timed = any(workload.is_timed for workload in lacking)
    for group in [names] if is_timed else [(name,) for name in names]:
        held = {**settings.load(group)}
        made = {name: _provenance_of(model) for name, model in held.items()}
        about = lambda system, prompt, made=made: details(prompt) | made[system.model]  # noqa: E731
        for workload in lacking:
            systems = [system for system in workload.systems if system.model in made]
            answerer(models=held, details=about).answer(workload._replace(systems=systems))
        while held:  # before the next is loaded
            held.popitem()[1].close()
