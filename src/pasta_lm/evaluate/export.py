"""Export recorded answers as annotated data, so that another model can replay them."""

from __future__ import annotations

from pathlib import Path

from pasta_lm.errors import InputError
from pasta_lm.evaluate.records import GradedAnswer, read_answers, task_of
from pasta_lm.journal import Row, write_rows
from pasta_lm.language.document import parse_program
from pasta_lm.tasks.registry import training_families


def export_answers(records: Path, strategy: str, out: Path, *, wordings: str | None = None) -> int:
    """Write the timed answers of one strategy as annotated data; return how many there are.

    Only answers with text, in the families that training sees.

    Args:
        records: What ``pasta evaluate tasks --records`` wrote.
        strategy: Whose answers.
        out: The file; it is written as a whole or not at all.
        wordings: The split of the wordings, if it is another than that of the prompts.

    Raises:
        InputError: the records cannot be read, or have no timed answer by this strategy.
    """
    trained = set(training_families())
    timed = [
        one
        for one in read_answers(records)
        if one.strategy == strategy and one.wall_s is not None and one.family in trained
    ]
    if not timed:
        raise InputError(
            f"{records} has no timed answer by {strategy}",
            hint="write it with `pasta evaluate tasks --num-timed`",
        )
    rows = [_row(one, wordings) for one in timed if one.text.strip()]
    write_rows(out, rows)
    return len(rows)


def _row(one: GradedAnswer, wordings: str | None) -> Row:
    has_lengths = all(block.units is not None for block in parse_program(one.program).blocks)
    prompt = task_of(one.task_id, one.family, wordings).prompt
    return {
        "id": one.task_id,
        "messages": [{"role": "user", "content": prompt}],
        "response" if has_lengths else "annotated": one.program,
        "source": one.strategy,
    }
