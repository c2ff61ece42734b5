"""Choose the rows of the corpora that no training reads, and write their ids.

    python scripts/held_out.py

Writes `held_out.txt` beside each corpus, one id a line. A row's rank is the hash of the seed and
its id, so the choice depends neither on the order of the file nor on a random number generator,
and rows that are not chosen can be deleted.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

CORPORA = Path(__file__).parents[1] / "corpora"
SEED = 18
NUM_STARTER = 100
NUM_INSTRUCTIONS_OF_EACH_KIND = 100


def first_by_hash(ids: list[str], count: int) -> list[str]:
    """Return the `count` ids of least rank, in the order of their names."""
    ranked = sorted(ids, key=lambda name: hashlib.sha256(f"{SEED}:{name}".encode()).digest())
    return sorted(ranked[:count])


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def starter() -> list[str]:
    """Return held-out ids of the starter; all have a second annotation."""
    twice = [row["id"] for row in rows_of(CORPORA / "starter" / "second_pass.jsonl")]
    return first_by_hash(twice, NUM_STARTER)


def instructions() -> list[str]:
    """Return held-out ids of the instructions: as many that ask for one part as for several."""
    rows = rows_of(CORPORA / "instructions" / "instructions.jsonl")
    chosen: list[str] = []
    for parts in ("one", "several"):
        ids = [row["id"] for row in rows if row["parts"] == parts]
        chosen += first_by_hash(ids, NUM_INSTRUCTIONS_OF_EACH_KIND)
    return sorted(chosen)


def main() -> None:
    """Write both files."""
    for name, ids in (("starter", starter()), ("instructions", instructions())):
        (CORPORA / name / "held_out.txt").write_text("\n".join(ids) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
