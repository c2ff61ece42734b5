"""Draw results of ``pasta bench engine --json``: one panel for each, time of a pass over its rows.

    pasta bench engine --dtype bfloat16 --json > bfloat16.json
    python lab/benchmarks/engine_plot.py float32.json bfloat16.json int8.json --svg OUT.svg

Contexts are lines of their own; llama.cpp and the time of reading the weights once stand beside.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

COLOURS = ("#2f6db5", "#1b998b", "#7a4fa3", "#555555")
PEER_COLOUR = "#c0562f"


def draw(results: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write the figure as SVG."""
    figure, panels = plt.subplots(
        1, len(results), figsize=(4.6 * len(results), 4.2), sharey=True, squeeze=False
    )
    for axes, found in zip(panels[0], results, strict=True):
        for colour, (context, steps) in zip(COLOURS, found["contexts"].items(), strict=False):
            axes.plot(*_line(steps), "o-", color=colour, label=f"pasta-lm, {context} tokens")
        if peer := (found["peers"].get("llama.cpp") or {}).get("step_ms"):
            label = f"llama.cpp, {found['context']} tokens"
            axes.plot(*_line(peer), "s--", color=PEER_COLOUR, label=label)
        axes.axhline(found["reading_ms"], color="#999999", linewidth=1, label="reading the weights")
        axes.set(title=found["dtype"], xlabel="rows of a pass", xscale="log", ylim=(0, None))
        ticks = sorted({int(rows) for steps in found["contexts"].values() for rows in steps})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(color="#e8e8e8")
        axes.legend(fontsize=8, loc="upper left")
    panels[0][0].set_ylabel("milliseconds a pass")
    machine = results[0]["machine"]
    figure.suptitle(f"{results[0]['model']}: {machine['cpu']}, {machine['threads']} thread(s)")
    figure.tight_layout()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pasta"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)


def _line(steps: Mapping[str, float]) -> tuple[list[int], list[float]]:
    return [int(rows) for rows in steps], list(steps.values())


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    parser.add_argument("--svg", type=Path, required=True, metavar="OUT.svg")
    arguments = parser.parse_args()
    draw([json.loads(one.read_text("utf-8")) for one in arguments.results], arguments.svg)


if __name__ == "__main__":
    main()
