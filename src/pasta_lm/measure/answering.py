"""Decode systems' answers to prompts: many at once for scores, one at a time for clocks.

Decoding prompts together does not change the tokens of any. Answers go to a store; what the store
has is not decoded again. Knows nothing of grades, judges and figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import ModelNotFoundError, UsageError
from pasta_lm.journal import Journal, Row
from pasta_lm.machine import processor, provenance
from pasta_lm.models.names import BUILTIN, resolve
from pasta_lm.strategies import pasta, sequential
from pasta_lm.strategies.model import Pasta, Servers, baseline_of

Progress = Callable[[str, int, int], None]
"""Called with what is being decoded, how many prompts are done, and of how many."""
BATCH_SIZE = 250  # prompts that the engine gets together
TOO_LONG = "prompt_too_long"
"""The finish reason of a prompt that does not fit the model's context: a failed answer."""
MODEL_FILES = ("config.json", "adapter_config.json")


class SetPrompt(NamedTuple):
    """One prompt of a benchmark."""

    id: str
    text: str
    group: str = ""  # prompts of one group have figures of their own
    parts: str | None = None
    """One thing is asked for, several independent parts, or neither clearly; None: not labelled."""
    checked: Mapping[str, Any] | None = None  # the row of IFEval, whose checkers need it


class System(NamedTuple):
    """A model that answers by a strategy."""

    name: str
    strategy: str
    model: str  # the name under which the model was loaded: a folder, a hub id, a built-in name


Models = Mapping[str, Pasta]
Replay = Callable[[SetPrompt], tuple[Pasta, Request]]
"""Returns what is decoded in turn with the systems' answers to a prompt, and by which model."""
Details = Callable[[System, SetPrompt], Row]  # returns what a row has besides the record
Provenance = Mapping[str, Mapping[str, str]]
"""By model: the hardware, the dtype and the commit of its answers."""
Decoded = tuple[AnswerRecord, Row]  # an answer's record, with its engine and its positions


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """The models that answer, and the engine that decodes."""

    model: str | None = None  # a folder, a hub id or a built-in name; None: the built-in model
    baseline: str | None = None
    """Whose sequential answers are the baseline; None: the built-in one, or the model itself."""
    limit: int | None = None  # the first so many prompts; None: all
    pool_tokens: int = 65_536  # cache entries of each model's engine
    dtype: str | None = None
    device: str | None = None
    servers: Servers | None = None
    """Stock servers that hold the model, which is then its own baseline; None: it is loaded."""

    @property
    def taught(self) -> str:
        """Return the name of the model."""
        return self.model or BUILTIN

    @property
    def sequential(self) -> System:
        """Return the sequential baseline."""
        own = baseline_of(self.taught) if self.servers is None else self.taught
        return System(sequential.NAME, sequential.NAME, self.baseline or own)


def check_served(servers: Servers | None, model: str | None, names: Iterable[str]) -> None:
    """Refuse other models beside one that servers hold: clocks of two machines say nothing."""
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


def require_models(names: Iterable[str | None]) -> None:
    """Refuse folders and files without a model before anything slow happens."""
    for name in filter(None, names):
        path = Path(resolve(name))
        is_local = path.is_absolute() or name.startswith((".", "~")) or path.exists()
        has_model = path.is_file() or any((path / file).is_file() for file in MODEL_FILES)
        if is_local and not has_model:
            raise ModelNotFoundError(
                f"no model at {name}: there is no config.json",
                hint="name a model folder, an adapter folder, a GGUF file or a hub id",
            )


def load_models(settings: AnswerSettings, systems: Iterable[System]) -> tuple[Models, Provenance]:
    """Load the models of some systems by name, and describe where their answers are made."""
    names, servers = dict.fromkeys(system.model for system in systems), settings.servers
    if servers is None:
        require_models(names)
    dtype, device, pool_tokens = settings.dtype, settings.device, settings.pool_tokens
    local = partial(Pasta.from_pretrained, dtype=dtype, device=device, pool_tokens=pool_tokens)
    models = {name: (servers.holding if servers else local)(name) for name in names}
    return models, {name: _provenance_of(model) for name, model in models.items()}


def _provenance_of(model: Pasta) -> dict[str, str]:
    loaded = model.engine.loaded
    device = machine_of(model) or str(loaded.device)
    has_own = "cuda" in device or model.engine.is_remote
    return provenance(device if has_own else f"{device}, {processor()}", loaded.dtype_name)


def machine_of(model: Pasta) -> str | None:
    """Return the name of the device on which a model runs; None if it is not known."""
    from pasta_lm.engines.local.self_test import devices  # imports torch

    device = str(model.engine.loaded.device)
    return next((name for name in devices() if name.startswith(device)), None)


class AnswerStore:
    """Answers by system and prompt, in memory or in a journal with which a stopped run goes on."""

    def __init__(self, journal: Journal | None = None, details: Details = lambda *_: {}) -> None:
        """Begin with the answers that the journal has."""
        self._journal = journal
        self._details = details
        self._rows: dict[str, Row] = {}

    @property
    def rows(self) -> Mapping[str, Row]:
        """Return the rows by ``answer_id``."""
        return self._rows if self._journal is None else self._journal.rows

    def has(self, system: str, prompt: SetPrompt) -> bool:
        """Return whether a system's answer to a prompt is there."""
        return answer_id(system, prompt.id) in self.rows

    def answers(self, system: str, prompts: Sequence[SetPrompt]) -> list[AnswerRecord]:
        """Return a system's answers in the order of the prompts."""
        rows = self.rows
        return [AnswerRecord.from_row(rows[answer_id(system, item.id)]) for item in prompts]

    def add(self, answers: Iterable[tuple[System, SetPrompt, Decoded]]) -> None:
        """Add answers that are not there yet; in a journal they are on disk afterwards."""
        rows = [self._row(*item) for item in answers if not self.has(item[0].name, item[1])]
        if self._journal is None:
            self._rows |= {row["id"]: row for row in rows}
        else:
            self._journal.append(rows)

    def _row(self, system: System, prompt: SetPrompt, decoded: Decoded) -> Row:
        record, origin = decoded
        return {
            "id": answer_id(system.name, prompt.id),
            "system": system.name,
            "strategy": system.strategy,
            "model": system.model,
            **origin,
            **record.to_row(),
            **self._details(system, prompt),
        }


def answer_id(system: str, prompt_id: str) -> str:
    """Return the id of an answer's row in a journal."""
    return f"{system}/{prompt_id}"


@dataclass(frozen=True, kw_only=True)
class Answerer:
    """Models and how they decode."""

    models: Models
    params: SamplingParams
    positions: str | None = None
    """The position strategy of ``pasta``; None: the one that the model was trained with."""
    progress: Progress = lambda *_: None
    batch_size: int = BATCH_SIZE

    def answer_together(
        self, prompts: Sequence[SetPrompt], systems: Iterable[System], store: AnswerStore
    ) -> None:
        """Decode the answers that the store lacks, many prompts at once."""
        for system in systems:
            model = self.models[system.model]
            lacking = [item for item in prompts if not store.has(system.name, item)]
            for first in range(0, len(lacking), self.batch_size):
                batch = lacking[first : first + self.batch_size]
                decoded = _decode(model, [self._request(system, item) for item in batch])
                store.add((system, *item) for item in zip(batch, decoded, strict=True))
                self.progress(system.name, first + len(batch), len(lacking))

    def answer_in_turn(
        self,
        prompts: Sequence[SetPrompt],
        systems: Sequence[System],
        store: AnswerStore,
        replays: Mapping[str, Replay] | None = None,
    ) -> None:
        """Decode one prompt at a time, by all systems in turn, so that clocks can be compared.

        If a system's answer is missing, all systems answer the prompt again: clocks of one prompt
        belong to one run. The first prompt is decoded twice, to warm up.
        """
        lacking = [
            item for item in prompts if not all(store.has(system.name, item) for system in systems)
        ]
        for number, prompt in enumerate([*lacking[:1], *lacking]):
            jobs = {
                system: (self.models[system.model], self._request(system, prompt))
                for system in systems
            }
            jobs |= {System(name, name, ""): of(prompt) for name, of in (replays or {}).items()}
            answers = [(system, prompt, self._timed(*job)) for system, job in jobs.items()]
            if number > 0:
                store.add(answers)
            self.progress("clocks", number, len(lacking))

    def _timed(self, model: Pasta, request: Request) -> Decoded:
        (decoded,) = _decode(model, [request], is_timed=True)
        return decoded

    def _request(self, system: System, prompt: SetPrompt) -> Request:
        positions = self.positions if system.strategy == pasta.NAME else None
        return self.models[system.model].request(
            prompt.text, self.params, strategy=system.strategy, positions=positions
        )


def _decode(model: Pasta, requests: Sequence[Request], *, is_timed: bool = False) -> list[Decoded]:
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
    decoded: list[Decoded] = []
    for request, is_served in zip(requests, fits, strict=True):
        if is_served:
            (answer,) = next(answers)
            origin = {"engine": answer.trace.engine, "positions": answer.trace.positions}
            decoded.append((AnswerRecord.of(answer, is_timed=is_timed), origin))
        else:
            decoded.append((failed, {"engine": None, "positions": request.positions.value}))
    return decoded
