"""Let a model answer instructions sequentially; its own answers are what it is then taught on.

Every answer is on disk as soon as it is complete, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from pasta_lm.annotate.usable import why_unusable
from pasta_lm.engines.request import Answer, Finished, SamplingParams
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.journal import Journal, Row
from pasta_lm.strategies import sequential
from pasta_lm.strategies.model import Pasta

OWN_SAMPLING = SamplingParams(temperature=0.3, top_k=40, max_tokens=500)
"""How the answers of ``corpora/own_answers`` were sampled."""
IN_FLIGHT = 160
"""Answers that are decoded at the same time, if the engine's pool has room for them."""
USABLE = "usable"

Progress = Callable[[int, int], None]


def own_answers(
    model: Pasta,
    instructions: Mapping[str, str],
    sampling: SamplingParams,
    out: Path,
    *,
    resume: bool = True,
    progress: Progress = lambda done, total: None,
) -> list[Row]:
    """Answer the instructions that a file lacks, and return its rows in the order of instructions.

    A row is ``{"id", "answer", "num_tokens", "ended", "temperature"}``; ``ended`` is false where
    the limit of tokens cut an answer off, and where a prompt was too long for the model (then the
    answer is empty). Each instruction has a seed of its own, so an answer does not depend on which
    others are decoded.

    Args:
        model: Answers each instruction as a user's message, without tags.
        instructions: Texts by their ids.
        sampling: One sample of each; its ``seed`` is combined with the id.
        out: A file of JSON lines, in the order in which answers were complete.
        resume: Whether the file may exist; its answers are kept.
        progress: Called with the number of answers and of instructions.

    Raises:
        UsageError: the file exists and is not to be resumed, its answers were sampled at another
            temperature, or more than one sample is asked for.
        InputError: the file is not one of answers.
        PastaError: the disk cannot be written.
    """
    if sampling.n != 1:
        raise UsageError(f"n is {sampling.n}, but an instruction has one own answer")
    if out.exists() and not resume:
        raise UsageError(f"{out} exists", hint="resume it, or name another file")
    journal = Journal(out)
    for row in journal.rows.values():
        if row.get("temperature") != sampling.temperature:
            raise UsageError(
                f"{out} was begun with temperature = {row.get('temperature')!r}, not "
                f"{sampling.temperature!r}",
                hint="restore the temperature, or name another file",
            )
    lacking = {name: text for name, text in instructions.items() if name not in journal.rows}
    for row in _answers(model, lacking, sampling):
        journal.append([row])
        progress(len(journal.rows), len(instructions))
    return [journal.rows[name] for name in instructions]


def usable_answers(
    rows: Iterable[Row], instructions: Mapping[str, str]
) -> tuple[list[Row], Counter[str]]:
    """Return the answers that pass the rules, and how many did or failed for which reason."""
    kept, reasons = [], Counter[str]()
    for row in rows:
        why = why_unusable(instructions[row["id"]], row["answer"], has_ended=row["ended"])
        reasons[why or USABLE] += 1
        if why is None:
            kept.append(row)
    return kept, reasons


def _answers(
    model: Pasta, instructions: Mapping[str, str], sampling: SamplingParams
) -> Iterator[Row]:
    """Yield a row for each instruction as soon as it is complete."""
    engine, waiting = model.engine, iter(instructions.items())
    running: dict[int, str] = {}
    try:
        while True:
            for name, text in islice(waiting, IN_FLIGHT - len(running)):
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
                if isinstance(event, Finished) and number in running:
                    yield _row(running.pop(number), sampling, event.answer)
    finally:
        for number in running:
            engine.abort(number)


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
