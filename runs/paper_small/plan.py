"""The steps of runs/paper-small.mk as values, and the options that make them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAKEFILE = "runs/paper-small.mk"
FIRST = "4"
"""The paper's lambda; the run with this one samples round one for all others."""
WEIGHTS = (FIRST, "1", "2", "8", "inf")
SEEDS = (0, 1, 2)
SHAPES = ("llama", "gemma", "qwen")
"""Of the bases from random weights; the toy has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What ``runs/paper-small.sh`` was asked for; its comment says what each flag means."""

    out: Path
    base: str | None = None
    seeds: tuple[int, ...] = (0,)
    num_prompts: int = 8400
    num_timed: int = 10
    num_sampled: int | None = None
    is_tiny: bool = False
    has_trials: bool = False
    has_ablations: bool = False
    jobs: int = 1
    flags: str = ""
    """How these options are typed, without the seeds and the parts that are asked for."""

    @property
    def begun_with(self) -> dict[str, object]:
        """What must stay the same as long as a folder is gone on with."""
        kept = ("num_prompts", "num_timed", "num_sampled", "is_tiny", "base")
        return {name: getattr(self, name) for name in kept}

    @property
    def groups(self) -> list[str]:
        """The groups of steps that are asked for, in the order in which they are made."""
        groups = [f"seed-{seed}" for seed in dict.fromkeys(self.seeds)]
        groups += ["trials"] * self.has_trials
        return groups + ["ablations"] * self.has_ablations

    @property
    def pasta(self) -> str:
        """The command ``pasta``; the environment may name another one."""
        return os.environ.get("PASTA") or f"{shlex.quote(sys.executable)} -m pasta_lm"

    def make(self, *words: str) -> list[str]:
        """Return the make command with these options as variables."""
        variables: dict[str, object] = {
            "PYTHON": sys.executable,
            "PASTA": self.pasta,
            "OUT": self.out,
            "BASE": self.base or "",
            "SEEDS": " ".join(map(str, self.seeds)),
            "PROMPTS": self.num_prompts,
            "TIMED": self.num_timed,
            "SAMPLED": "" if self.num_sampled is None else self.num_sampled,
            "TINY": "1" if self.is_tiny else "",
            "JOBS": self.jobs,
        }
        assigned = [f"{name}={value}" for name, value in variables.items()]
        return ["make", "--no-print-directory", "-f", MAKEFILE, *assigned, *words]

    def again(self, step: str) -> str:
        """Return what is typed to carry out one step with all that it needs."""
        folder = f"OUT={shlex.quote(os.environ['OUT'])}" if os.environ.get("OUT") else ""
        words = (folder, "runs/paper-small.sh", self.flags, "--only", step)
        return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the makefile."""

    name: str
    group: str
    file: Path
    """There when the step is done."""
    is_timed: bool
    needs: tuple[str, ...]
    command: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Return whether what it makes is there."""
        return self.file.exists()

    def flag(self, name: str) -> str:
        """Return the value of a flag of its command."""
        return self.command[self.command.index(name) + 1]


def read_steps(options: Options) -> dict[str, Step]:
    """Return all steps by name, in order."""
    words = options.make("plan")
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    steps = {}
    for line in printed.splitlines():
        name, group, file, clock, needs, command = line.split("\t")
        steps[name] = Step(
            name=name,
            group=group,
            file=Path(file),
            is_timed=bool(clock),
            needs=tuple(needs.split()),
            command=tuple(shlex.split(command)),
        )
    return steps


@dataclass(slots=True)
class Page:
    """One comparison on a page of its own, as ``pasta evaluate frontier`` reads it."""

    name: str
    title: str
    ours: str
    baseline: str
    split: str
    num_prompts: int
    num_timed: int
    points: list[dict[str, str]] = field(default_factory=list)
    step_costs: list[dict[str, str]] = field(default_factory=list)
    replays: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """The options, the steps and the pages of a comparison."""

    options: Options
    steps: Mapping[str, Step]
    pages: Mapping[str, Page]
