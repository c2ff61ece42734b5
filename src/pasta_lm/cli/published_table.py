"""Print what the paper reports below a table of ours, under a label that says what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pasta_lm.cli.flags import option

NoPublished = Annotated[
    bool, option("--no-published", help="Leave out the figures that the paper reports.")
]


def print_published(found: Mapping[str, Any], out: Callable[[str], object]) -> None:
    """Print what ``published`` returned."""
    out(f"\n{found['label']}")
    out(f"{'':<26}{'win rate, %':>12}{'theoretical':>13}{'realised':>10}{'efficiency':>12}")
    for one in found["points"]:
        share = "-" if one["efficiency"] is None else f"{one['efficiency']:.2f}"
        out(
            f"{one['name']:<26}{one['win_rate']:>12.1f}{one['theoretical_speedup']:>13.2f}"
            f"{one['realised_speedup']:>10.2f}{share:>12}"
        )
