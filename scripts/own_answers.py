"""Let a model answer instructions; count its usable answers, and why the others are not.

``python scripts/own_answers.py MODEL OUT.jsonl`` samples like ``corpora/own_answers``; the same
command goes on after an interrupt.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from pasta_lm.journal import write_rows
from pasta_lm.learn.annotate.answer_run import read_instructions
from pasta_lm.learn.annotate.own_answers import IN_FLIGHT, OWN_SAMPLING, own_answers, usable_answers
from pasta_lm.strategies.model import Pasta

INSTRUCTIONS = Path(__file__).parents[1] / "corpora" / "instructions" / "instructions.jsonl"
TOKENS_IN_FLIGHT = IN_FLIGHT * 760
"""Room for all answers in flight: 500 tokens each, and up to 260 of the prompt."""


def main() -> None:
    """Answer what is lacking, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder or a hub id")
    parser.add_argument("out", type=Path, help="all answers, in the order of their completion")
    parser.add_argument("--instructions", type=Path, default=INSTRUCTIONS)
    parser.add_argument("--usable", type=Path, help="also write the usable ones to a file")
    parser.add_argument("--temperature", type=float, default=OWN_SAMPLING.temperature)
    parser.add_argument("--max-tokens", type=int, default=OWN_SAMPLING.max_tokens)
    parser.add_argument("--seed", type=int, default=OWN_SAMPLING.seed)
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    model = Pasta.from_pretrained(
        arguments.model, dtype=arguments.dtype, pool_tokens=TOKENS_IN_FLIGHT
    )
    names = ("temperature", "max_tokens", "seed")
    sampling = replace(OWN_SAMPLING, **{name: getattr(arguments, name) for name in names})
    rows = read_instructions(arguments.instructions)
    instructions = {name: row["instruction"] for name, row in rows.items()}

    def progress(done: int, total: int) -> None:
        print(f"\r{done} of {total} answers", end="", file=sys.stderr)

    rows = own_answers(model, instructions, sampling, arguments.out, progress=progress)
    kept, reasons = usable_answers(rows, instructions)
    if arguments.usable:
        write_rows(arguments.usable, kept)
    print(file=sys.stderr)
    for reason, count in reasons.most_common():
        print(f"{reason}: {count} ({count / len(rows):.0%})")


if __name__ == "__main__":
    main()
