"""The paper's figures as reference points; the model, the judge and the prompts differ from ours.

They enter no frontier, no verdict and no mean of ours.

Source: PASTA (arXiv 2502.11517), results on AlpacaEval.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

LABEL = (
    "published, Gemma 7B, AlpacaEval, not comparable with ours unless judge, baseline and prompts "
    "are the same"
)
NUM_PROMPTS = 805


class Published(NamedTuple):
    """One row of the paper's results."""

    name: str
    method: str
    win_rate: float
    realised_speedup: float
    theoretical_speedup: float
    efficiency: float | None = None
    """Realised / theoretical speedup, if the paper has it."""
    source: str = ""


_FILE = Path(__file__).with_name("published.toml")
PUBLISHED = tuple(Published(**row) for row in tomllib.loads(_FILE.read_text("utf-8"))["points"])


def published() -> dict[str, Any]:
    """Return the paper's figures as a report has them, each with its source."""
    points = [one._asdict() for one in PUBLISHED]
    return {"label": LABEL, "num_prompts": NUM_PROMPTS, "points": points}
