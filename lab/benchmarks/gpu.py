"""Measure what one GPU can tell in under ten minutes and one call; written after every section.

    python lab/benchmarks/gpu.py OUT.json [--answers ANSWERS.jsonl[.gz]] [--weights FOLDER] [--tiny]

Sections run in order of importance, each within its own seconds; one that fails is recorded and the
next begins. A second call with the same file goes on with what is not done. ``--tiny`` runs all of
it on a CPU in a minute, with a model of two layers. ``gpu_report.py`` draws the result.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.benchmarks.gpu_sections import (
    Conditions,
    alternatives,
    answers,
    attention,
    exactness,
    host_share,
    load_sweep,
    machine,
    small_model,
    step_times,
)

Figures = dict[str, Any]
ROOT = Path(__file__).parents[2]
SHAPES = Path(__file__).parent / "shapes"
OWN_ANSWERS = ROOT / "corpora" / "starter" / "starter.jsonl"
DONE, CUT, FAILED = "done", "cut", "failed"

# In order of importance, with the seconds that each may take. Together nine minutes and a half, and
# the last where time is left.
SECTIONS: dict[str, tuple[Callable[[Conditions], None], float]] = {
    "machine": (machine, 20),
    "exactness": (exactness, 60),
    "steps": (step_times, 120),
    "answers": (answers, 130),
    "host": (host_share, 20),
    "load": (load_sweep, 80),
    "attention": (attention, 60),
    "small": (small_model, 80),
    "alternatives": (alternatives, 60),
}


@dataclass
class Results:
    """The file of results: read where it exists, written after each change."""

    path: Path
    sections: dict[str, Figures] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path) -> Results:
        """Return the results of a file, none if it does not exist."""
        found = json.loads(path.read_text("utf-8"))["sections"] if path.exists() else {}
        return cls(path, found)

    def is_done(self, name: str) -> bool:
        """Return whether a section need not run again."""
        return self.sections.get(name, {}).get("status") == DONE

    def write(self, name: str, status: str, seconds: float, figures: Figures) -> None:
        """Replace a section, and the file as a whole, so that a kill leaves the old or the new."""
        self.sections[name] = {"status": status, "seconds": round(seconds, 1), **figures}
        text = json.dumps({"sections": self.sections}, indent=1)
        part = self.path.with_suffix(".part")
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(self.path)


def run(
    results: Results, settings: Figures, names: Sequence[str], *, seconds: float = 570.0
) -> None:
    """Run sections that are not done, as long as there is time.

    Args:
        results: Where figures go.
        settings: Arguments of ``Conditions``.
        names: The sections.
        seconds: For all together.
    """
    end = time.monotonic() + seconds
    for name in names:
        began, (function, budget) = time.monotonic(), SECTIONS[name]
        if results.is_done(name) or began > end:
            continue
        conditions = Conditions(**settings, deadline=min(end, began + budget))

        save = partial(_save, results, name, began, conditions)
        conditions.on_figures = partial(save, CUT)
        try:
            function(conditions)
            save(CUT if conditions.was_cut else DONE)
        except Exception as exc:  # the sections behind it are worth their time all the same
            conditions.figures["error"] = "".join(traceback.format_exception(exc)[-6:])
            save(FAILED)
        status = results.sections[name]["status"]
        print(f"{name}: {status} in {time.monotonic() - began:.0f} s", flush=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _save(results: Results, name: str, began: float, conditions: Conditions, status: str) -> None:
    results.write(name, status, time.monotonic() - began, conditions.figures)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--answers", type=Path, default=OWN_ANSWERS)
    parser.add_argument(
        "--weights", type=Path, help="a model folder with real weights, SmolLM2 say"
    )
    parser.add_argument("--only", help="sections, comma-separated")
    parser.add_argument("--seconds", type=float, default=570.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, for a CPU")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(SECTIONS)
    shape = "tiny" if args.tiny else "gemma-7b"
    settings = {
        "device": args.device, "is_tiny": args.tiny, "weights": args.weights,
        "answers_file": args.answers, "shape": SHAPES / f"{shape}.json",
    }  # fmt: skip
    run(Results.at(args.out), settings, names, seconds=args.seconds)


if __name__ == "__main__":
    main()
