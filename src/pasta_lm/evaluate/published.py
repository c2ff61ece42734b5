"""What the paper reports, as points of reference: of another model, judge and baseline than ours.

The figures are copied from the paper and nothing of ours enters them, nor they anything of ours:
no frontier, no verdict, no mean.

Source: PASTA (arXiv 2502.11517), results on AlpacaEval.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Figures = dict[str, Any]

LABEL = (
    "published, Gemma 7B, AlpacaEval, not comparable with ours unless judge, baseline and prompts "
    "are the same"
)
NUM_PROMPTS = 805
PAPER = "arXiv 2502.11517, results on AlpacaEval: geometric means over 805 prompts, one H100"


class Published(NamedTuple):
    """One row of the paper's results."""

    name: str
    method: str
    win_rate: float
    """Percent, length-controlled, against Baseline-SFT."""
    realised_speedup: float
    theoretical_speedup: float
    efficiency: float | None
    """Realised / theoretical, where the paper gives it."""
    source: str = PAPER


_BON = f"{PAPER}; two rounds of preference optimisation with this weight of quality"

PUBLISHED = (
    Published("baseline", "sequential", 50.0, 1.00, 1.00, None, f"{PAPER}; the baseline itself"),
    Published("Pasta-SFT", "PASTA", 32.7, 1.31, 1.90, 0.69),
    Published("Pasta-BoN, quality alone", "PASTA", 52.3, 1.21, 1.40, 0.86, _BON),
    Published("Pasta-BoN, 8", "PASTA", 48.7, 1.46, 1.78, 0.82, _BON),
    Published("Pasta-BoN, 4", "PASTA", 47.5, 1.54, 1.90, 0.81, _BON),
    Published("Pasta-BoN, 2", "PASTA", 45.5, 1.62, 2.08, 0.78, _BON),
    Published("Pasta-BoN, 1", "PASTA", 42.9, 1.93, 2.44, 0.79, _BON),
    Published("APAR", "APAR", 41.2, 1.60, 1.79, 0.89, f"{PAPER}; retrained on the same data"),
    Published("SoT", "SoT", 38.4, 0.73, 0.90, None, f"{PAPER}; prompted, on the baseline model"),
)


def published() -> Figures:
    """Return the paper's figures as a report has them, each with its source."""
    return {
        "label": LABEL,
        "num_prompts": NUM_PROMPTS,
        "points": [one._asdict() for one in PUBLISHED],
    }
