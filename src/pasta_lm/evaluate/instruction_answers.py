"""Let systems answer instructions, each answer in a journal before the next is begun.

A system is a model that answers by a strategy. Prompts are decoded one at a time, by all systems in
turn, as the paper does, so that clocks can be compared; beyond a number of prompts, many at once.

Source: PASTA, section 5.1 (batch 1, greedy).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.engines.request import Answer, SamplingParams
from pasta_lm.evaluate.answering import Progress
from pasta_lm.evaluate.instructions import Instruction
from pasta_lm.journal import Journal, Row

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta

BATCH = 64
"""Prompts that are handed to the engine together where nobody looks at the clock."""


class System(NamedTuple):
    """A model that answers by a strategy."""

    name: str
    strategy: str
    model: str
    """A folder, a hub id or the name of a built-in model."""


def answer_id(system: str, instruction_id: str) -> str:
    """Return the id of an answer's row."""
    return f"{system}/{instruction_id}"


def answer_instructions(
    systems: Sequence[System],
    models: Mapping[str, Pasta],
    instructions: Sequence[Instruction],
    journal: Journal,
    params: SamplingParams,
    progress: Progress,
    *,
    num_timed: int | None = None,
    provenance: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Answer what has no row in the journal yet.

    Args:
        systems: Who answers.
        models: By name, loaded.
        instructions: What is asked.
        journal: Where answers are kept.
        params: How tokens are chosen, and the limits.
        progress: Told after each prompt or batch.
        num_timed: The first so many are decoded alone; None: all.
        provenance: By model, what its rows say of where they were made: hardware and so on.
    """
    made = provenance or {}
    num_alone = len(instructions) if num_timed is None else num_timed
    _answer_alone(systems, models, instructions[:num_alone], journal, params, progress, made)
    for system in systems:
        rest = [
            one
            for one in instructions[num_alone:]
            if answer_id(system.name, one.id) not in journal.rows
        ]
        for first in range(0, len(rest), BATCH):
            some = rest[first : first + BATCH]
            model = models[system.model]
            requests = [model.request(one.text, params, strategy=system.strategy) for one in some]
            answers = [samples[0] for samples in model.engine.generate(requests)]
            pairs = zip(some, answers, strict=True)
            journal.append([_row(system, one, answer, None, made) for one, answer in pairs])
            progress(system.name, first + len(some), len(rest))


def _answer_alone(
    systems: Sequence[System],
    models: Mapping[str, Pasta],
    instructions: Sequence[Instruction],
    journal: Journal,
    params: SamplingParams,
    progress: Progress,
    made: Mapping[str, Mapping[str, str]],
) -> None:
    """Answer one prompt after another, a prompt's systems in turn; the first one warms up."""
    wanted = [
        one
        for one in instructions
        if any(answer_id(system.name, one.id) not in journal.rows for system in systems)
    ]
    ask = _asking(models, params)
    for system in systems if wanted else ():
        ask(system, wanted[0])
    for number, one in enumerate(wanted, start=1):
        # All systems again where one was cut off: clocks of one prompt belong to one run.
        found = [(system, ask(system, one)) for system in systems]
        rows = [_row(system, one, answer, answer.trace.wall_s, made) for system, answer in found]
        journal.append([row for row in rows if row["id"] not in journal.rows])
        progress("answers", number, len(wanted))


def _asking(
    models: Mapping[str, Pasta], params: SamplingParams
) -> Callable[[System, Instruction], Answer]:
    def ask(system: System, one: Instruction) -> Answer:
        model = models[system.model]
        request = model.request(one.text, params, strategy=system.strategy)
        return model.engine.generate([request])[0][0]

    return ask


def _row(
    system: System,
    one: Instruction,
    answer: Answer,
    wall_s: float | None,
    made: Mapping[str, Mapping[str, str]],
) -> Row:
    """Return all of an answer that any figure needs."""
    trace = answer.trace
    return {
        "id": answer_id(system.name, one.id),
        "instruction_id": one.id,
        "row": one.row,
        "dataset": one.dataset,
        "instruction": one.text,
        "system": system.name,
        "strategy": system.strategy,
        "model": system.model,
        "kind": trace.kind.value,
        "engine": trace.engine,
        "positions": trace.positions,
        "text": answer.text,
        "program": answer.program,
        "finish_reason": answer.finish_reason,
        "num_illegal": trace.num_illegal,
        "num_content_tokens": trace.num_content_tokens,
        "critical_path": trace.critical_path,
        "wall_s": wall_s,
        **made.get(system.model, {}),
    }
