"""Let a model answer instructions sequentially, and keep the answers it can be trained on.

The first step of teaching a model on its own text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.engines.request import Answer, Failed, Finished, SamplingParams
from pasta_lm.errors import InputError, RequestError, UsageError
from pasta_lm.journal import Journal, Row, read_lines, write_rows
from pasta_lm.learn.annotate.usable import usable_answers
from pasta_lm.models.annotated import read_ids
from pasta_lm.recipe import check_positive
from pasta_lm.strategies import sequential

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta

OWN_SAMPLING = SamplingParams(temperature=0.3, top_k=40, max_tokens=500)
"""How the answers of ``corpora/own_answers`` were sampled."""
IN_FLIGHT = 160
"""Answers that are decoded at the same time, if the engine's pool has room for them."""
ANSWERS, USABLE, COUNTS = "answers.jsonl", "usable.jsonl", "counts.json"
ROOM = 260
"""Tokens of a prompt for which the engine's memory has room, beside its answer."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerConfig:
    """A model that answers instructions; ``[answers]`` of a recipe."""

    model: str
    """A folder, a GGUF file or a hub id."""
    instructions: str
    """JSON lines with ``id`` and ``instruction``, gzipped if named ``.gz``."""
    out: str
    """The folder of the answers."""
    exclude: str | None = None
    """A file with the ids of instructions that are held out."""
    limit: int | None = None
    """Only the first so many; None: all."""
    temperature: float = OWN_SAMPLING.temperature
    max_tokens: int = OWN_SAMPLING.max_tokens
    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    in_flight: int = IN_FLIGHT
    """Answers that are decoded at the same time."""

    def __post_init__(self) -> None:
        """Validate values before a model is loaded."""
        check_positive("answers", self, "limit", "max_tokens", "in_flight")

    @property
    def pool_tokens(self) -> int:
        """Return the cache entries that all answers in flight can need."""
        return self.in_flight * (self.max_tokens + ROOM)


class AnswerCounts(NamedTuple):
    """The counts of a run."""

    num_answers: int
    num_tokens: int
    counts: dict[str, int]
    """Usable answers, and the others by their reason."""


def read_instructions(path: Path) -> dict[str, Row]:
    """Return the rows of a file of instructions by their ids.

    Raises:
        InputError: it cannot be read, or a row has no id or no instruction.
    """
    rows: dict[str, Row] = {}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
            name, text = row["id"], row["instruction"]
        except (ValueError, KeyError, TypeError) as exc:
            raise InputError(
                f"{path}:{number}: no instruction", hint='a line is {"id": ..., "instruction": ...}'
            ) from exc
        if not isinstance(name, str) or not isinstance(text, str) or name in rows:
            raise InputError(f"{path}:{number}: its id is no text or occurs twice")
        rows[name] = row
    return rows


def instructions_of(config: AnswerConfig) -> dict[str, str]:
    """Return the instructions of a recipe by id, in the order of the file.

    Raises:
        InputError: a file cannot be read, or nothing is left.
    """
    held_out = set(read_ids(Path(config.exclude))) if config.exclude else set()
    rows = read_instructions(Path(config.instructions))
    kept = {name: row["instruction"] for name, row in rows.items() if name not in held_out}
    if not kept:
        raise InputError(f"{config.instructions} has no instruction that is not held out")
    return dict(list(kept.items())[: config.limit])


def answer(
    config: AnswerConfig,
    load: Callable[[], Pasta],
    progress: Progress = lambda done, total: None,
) -> AnswerCounts:
    """Answer the instructions without an answer; write all answers, the usable ones, and counts.

    The model is loaded only if an answer is lacking.

    Raises:
        InputError: a file cannot be read.
        UsageError: the folder was begun at another temperature.
        PastaError: the disk cannot be written.
    """
    out, texts = Path(config.out), instructions_of(config)
    params = replace(
        OWN_SAMPLING, temperature=config.temperature, max_tokens=config.max_tokens, seed=config.seed
    )
    rows = own_answers(load, texts, params, out / ANSWERS, progress, in_flight=config.in_flight)
    usable, reasons = usable_answers(rows, texts)
    write_rows(
        out / USABLE,
        [{"id": row["id"], "prompt": texts[row["id"]], "answer": row["answer"]} for row in usable],
    )
    counts = {str(reason): count for reason, count in reasons.most_common()}
    answered = AnswerCounts(len(rows), sum(row["num_tokens"] for row in rows), counts)
    write_rows(out / COUNTS, [answered._asdict()])
    return answered


def own_answers(
    load: Callable[[], Pasta],
    instructions: Mapping[str, str],
    sampling: SamplingParams,
    out: Path,
    progress: Progress = lambda done, total: None,
    *,
    in_flight: int = IN_FLIGHT,
) -> list[Row]:
    """Answer the instructions that a file lacks, and return its rows in the order of instructions.

    A row is ``{"id", "answer", "num_tokens", "ended", "temperature"}``; ``ended`` is false where
    the limit of tokens cut an answer off, and where a prompt was too long for the model (then the
    answer is empty). The seed is combined with the id, so an answer does not depend on which
    others are decoded. The model is loaded only if the file lacks an answer.

    Raises:
        UsageError: the answers of an existing file were sampled at another temperature, or more
            than one sample is asked for.
        InputError: the file is not one of answers.
        PastaError: the disk cannot be written.
    """
    if sampling.n != 1:
        raise UsageError(f"n is {sampling.n}, but an instruction has one own answer")
    journal = Journal(out)
    for row in journal.rows.values():
        if row.get("temperature") != sampling.temperature:
            raise UsageError(
                f"{out} was begun with temperature = {row.get('temperature')!r}, not "
                f"{sampling.temperature!r}",
                hint="restore the temperature, or name another file",
            )
    lacking = {name: text for name, text in instructions.items() if name not in journal.rows}
    for row in _answers(load(), lacking, sampling, in_flight) if lacking else ():
        journal.append([row])
        progress(len(journal.rows), len(instructions))
    return [journal.rows[name] for name in instructions]


def _answers(
    model: Pasta,
    instructions: Mapping[str, str],
    sampling: SamplingParams,
    in_flight: int,
) -> Iterator[Row]:
    """Yield a row for each instruction as soon as it is complete."""
    engine, waiting = model.engine, iter(instructions.items())
    running: dict[int, str] = {}
    try:
        while True:
            while len(running) < in_flight and (item := next(waiting, None)):
                name, text = item
                params = replace(sampling, seed=_seed(name, sampling.seed))
                try:
                    number = engine.submit(model.request(text, params, strategy=sequential.NAME))
                except RequestError:  # longer than the context or the pool
                    yield _row(name, sampling)
                else:
                    running[number] = name
            if not running:
                return
            for number, event in engine.step():
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Finished) and number in running:
                    yield _row(running.pop(number), sampling, event.answer)
    finally:
        for number in running:
            engine.cancel(number)


def _row(name: str, sampling: SamplingParams, answer: Answer | None = None) -> Row:
    return {
        "id": name,
        "answer": answer.text if answer else "",
        "num_tokens": answer.usage["completion_tokens"] if answer else 0,
        "ended": answer is not None and answer.finish_reason == "stop",
        "temperature": sampling.temperature,
    }


def _seed(name: str, seed: int | None) -> int | None:
    """Return a seed for one instruction: counter-based numbers repeat under the same seed."""
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:7])
