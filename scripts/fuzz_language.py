"""Check random texts against the laws of the language; stop at the first violation.

python -m scripts.fuzz_language [--cases 1000000] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parents[1])]

from tests.language.laws import FRAGMENTS, assert_laws  # noqa: E402

CHARACTERS = "<>&;/=\"' \n\tapromiseyncltx0123456789_-\u00e9\u0663"
REPORT_EVERY = 50_000


def random_text(chance: random.Random) -> str:
    """Return a short text that consists mostly of tags and of text similar to tags."""
    parts = []
    for _ in range(chance.randint(0, 12)):
        is_noise = chance.random() < 0.25
        parts.append(chance.choice(CHARACTERS if is_noise else FRAGMENTS))
    return "".join(parts)


def main() -> None:
    """Check the requested number of texts; print the text that fails."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--cases", type=int, default=1_000_000)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    chance = random.Random(options.seed)
    for number in range(1, options.cases + 1):
        text = random_text(chance)
        try:
            assert_laws(text)
        except Exception:
            print(f"case {number} of seed {options.seed} breaks a law: {text!r}", file=sys.stderr)
            raise
        if number % REPORT_EVERY == 0:
            print(f"{number:,} texts, no law broken", file=sys.stderr)
    print(f"{options.cases:,} texts of seed {options.seed}: no law broken")


if __name__ == "__main__":
    main()
