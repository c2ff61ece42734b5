"""What the comparison is made of: options, steps with the file that says they are done, pages."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for.

    Attributes:
        out: Where all is made.
        laptop: Where ``runs/laptop.sh`` made its models.
        base: The base model, where it is neither there nor to be trained.
        kept: The sequential model that comes with the package, where there is no other.
        seeds: Of training, in order.
        num_prompts: Test prompts of the families that training sees.
        num_timed: Of each family, decoded alone for clocks.
        num_sampled: Prompts of a round of stage two; None: as many as its recipe has.
        is_tiny: Whether all of it is a toy.
        has_trials: Whether those of the rates are carried out too; they are listed anyway.
        has_ablations: The same of the ablations.
        jobs: How many steps at the same time; what has clocks runs alone.
        flags: How these options are typed.
        folders: What names other folders, as it is typed before the command.
    """

    out: Path
    laptop: Path
    base: Path | None = None
    kept: Path | None = Path("src/pasta_lm/models/builtin-sequential")
    seeds: tuple[int, ...] = (0,)
    num_prompts: int = 8400
    num_timed: int = 10
    num_sampled: int | None = None
    is_tiny: bool = False
    has_trials: bool = False
    has_ablations: bool = False
    jobs: int = 1
    flags: str = ""
    folders: str = ""

    @property
    def asked(self) -> dict[str, object]:
        """Return what of this must stay the same as long as a folder is gone on with."""
        kept = ("num_prompts", "num_timed", "num_sampled", "is_tiny")
        return {name: getattr(self, name) for name in kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of pasta, or a script of ours where it begins with one.

    Attributes:
        name: What ``--only`` calls it.
        group: To which part of the compute it belongs: ``seed-0``, ``ablations``.
        command: Its words.
        makes: There when it is done.
        needs: Names of steps before it; what was found on the disk is no step.
        parts: Files that it writes under another name until they are whole.
        prints_to: Where its standard output goes; it is one of ``parts``.
        is_alone: Whether nothing may run beside it, because it has clocks.
    """

    name: str
    group: str
    command: tuple[str, ...]
    makes: Path
    needs: tuple[str, ...] = ()
    parts: tuple[Path, ...] = ()
    prints_to: Path | None = None
    is_alone: bool = False

    @property
    def is_done(self) -> bool:
        """Tell whether what it makes is there."""
        return self.makes.exists()


@dataclass(slots=True)
class Page:
    """One comparison, on a page of its own."""

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

    def toml(self) -> str:
        """Return it as ``pasta evaluate frontier`` reads it."""
        head = ("title", "ours", "baseline", "split", "num_prompts", "num_timed")
        lines = [f"{key} = {json.dumps(getattr(self, key))}" for key in head]
        for key in ("points", "step_costs", "replays"):
            for table in getattr(self, key):
                lines += [f"\n[[{key}]]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
        return "\n".join(lines) + "\n"


def part_of(path: Path) -> Path:
    """Return under which name a file is written until it is whole."""
    return path.with_name(path.name + ".part")
