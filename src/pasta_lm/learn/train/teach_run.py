"""The run of ``pasta teach``: its folder, its journal, and how much of everything each step has.

Each step is a verb with a recipe in a folder of its own, so that it can be run by hand as well. A
step is done when the journal says so; its amounts are fixed when it begins.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import Journal, Row, write_whole
from pasta_lm.learn.annotate.own_answers import read_instructions
from pasta_lm.learn.train.learner import MODEL_FOLDER
from pasta_lm.learn.train.teach_config import TeachConfig
from pasta_lm.learn.train.teach_cost import Amounts, Rates, fit, hours
from pasta_lm.models.annotated import read_ids
from pasta_lm.recipe import check_same_settings

STEPS = ("answers", "annotated", "baseline", "pasta", "preference", "model", "measures", "card")
FOLDERS = {
    "answers": "01-answers",
    "annotated": "02-annotated",
    "baseline": "03-baseline",
    "pasta": "04-pasta",
    "preference": "05-preference",
    "model": MODEL_FOLDER,
    "measures": "06-measures",
    "card": MODEL_FOLDER,
}
VERBS = {
    "answers": "pasta teach carries it out",
    "annotated": "pasta annotate {}/recipe.toml",
    "baseline": "pasta train sft {}/recipe.toml --resume",
    "pasta": "pasta train sft {}/recipe.toml --resume",
    "preference": "pasta train preference {}/recipe.toml --resume",
    "measures": "pasta evaluate instructions {0}/recipe.toml --out {0}",
}
"""The command of each step that can be run alone."""
SETTINGS, JOURNAL, PLAN = "teach.json", "journal.jsonl", "plan"
HELD_OUT = "held_out.txt"
CORPORA = Path(__file__).parents[3] / "corpora"
"""The project's own data; only a checkout has it."""


@dataclass(frozen=True)
class TeachRun:
    """A model that is taught in a folder."""

    folder: Path
    model: str
    config: TeachConfig
    budget_hours: float | None = None

    @cached_property
    def journal(self) -> Journal:
        """Return the journal: a row for the plan, one when a step begins, one when it is done."""
        return Journal(self.folder / JOURNAL)

    def at(self, step: str, *names: str) -> Path:
        """Return a step's folder, or a file in it."""
        return self.folder.joinpath(FOLDERS[step], *names)

    @property
    def plan(self) -> Row:
        """Return what was planned before the first step."""
        return self.journal.rows[PLAN]

    @property
    def trains_all(self) -> bool:
        """Return whether all weights learn."""
        return self.config.trains_all(int(self.plan["num_weights"]))

    def is_done(self, step: str) -> bool:
        """Return whether a step is over."""
        return step in self.journal.rows

    def finish(self, step: str, wall_s: float, **result: Any) -> None:
        """Write down that a step is over."""
        self.journal.append([{"id": step, "wall_s": round(wall_s, 2), **result}])

    @property
    def spent_hours(self) -> float:
        """Return the hours of all finished steps."""
        return sum(float(row.get("wall_s", 0.0)) for row in self.journal.rows.values()) / 3600

    def rates(self) -> Rates:
        """Return the machine's rates: those of finished steps, else those measured before."""
        found = Rates(**self.plan["rates"])
        answered, trained = (self.journal.rows.get(one, {}) for one in ("answers", "baseline"))
        if answered.get("is_whole") and answered["wall_s"] > 0:
            decode = max(answered["num_tokens"], 1) / answered["wall_s"]
            found = replace(found, decode_tokens_per_s=decode)
        if trained.get("is_whole") and trained["wall_s"] > 0:
            tokens = self._begun("baseline").passes * self.config.data.max_tokens
            found = replace(found, train_s_per_token=trained["wall_s"] / tokens)
        return found

    def amounts(self, step: str) -> Amounts:
        """Return the amounts with which a step is carried out, fixed when it begins.

        With a budget they are the largest with which this step and all later ones fit into what is
        left of it, by the rates known by then.
        """
        if f"{step}/begun" in self.journal.rows:
            return self._begun(step)
        place = STEPS.index(step)
        before = self._begun(STEPS[place - 1]) if place else Amounts(*self.plan["amounts"])
        later, rates = STEPS[place:], self.rates()

        def cost(amounts: Amounts) -> float:
            each = hours(amounts, self.config, rates)
            return sum(each.get(name, 0.0) for name in later)

        left = None if self.budget_hours is None else self.budget_hours - self.spent_hours
        # Both models of stage one learn from the same number of passes.
        found, cuts = (before, []) if step == "pasta" else fit(before, left, cost)
        self.journal.append([{"id": f"{step}/begun", "amounts": [*found], "cuts": cuts}])
        return found

    def _begun(self, step: str) -> Amounts:
        return Amounts(*self.journal.rows[f"{step}/begun"]["amounts"])

    @property
    def cuts(self) -> list[str]:
        """Return what a budget made smaller, in the order in which it did."""
        rows = self.journal.rows.values()
        return [cut for row in rows for cut in row.get("cuts", ())]


def begin(
    folder: Path, model: str, config: TeachConfig, budget_hours: float | None = None
) -> TeachRun:
    """Begin a run in a folder, or go on with the one that it holds.

    Raises:
        UsageError: the folder holds a run with another model or recipe; the project's own data are
            needed and not there.
        InputError: the instructions cannot be read, or are too few.
    """
    source = str(Path(model).resolve()) if Path(model).exists() else model
    run = TeachRun(folder.resolve(), source, config, budget_hours)
    path = run.folder / SETTINGS
    now = {"model": source, **asdict(config)}
    if path.exists():
        check_same_settings(folder, json.loads(path.read_text("utf-8")), now)
    instructions_of(config)
    write_whole(path, (json.dumps(now, indent=1) + "\n").encode())
    return run


def instructions_of(config: TeachConfig) -> tuple[Path, list[str]]:
    """Return the file of instructions, and the ids of those that only measure.

    Raises:
        UsageError: the project's own are not there.
        InputError: the file cannot be read, or has too few.
    """
    given = config.answers.file
    if given is None:
        folder = CORPORA / "instructions"
        if not folder.is_dir():
            raise UsageError(
                "the project's own instructions are in its repository only, and this is a package",
                hint="clone it, or name a file of yours: answers.file in --recipe",
            )
        return folder / "instructions.jsonl", read_ids(folder / HELD_OUT)
    names = list(read_instructions(Path(given)))
    if len(names) < config.answers.num_held_out + 2:
        raise InputError(
            f"{given} has {len(names)} instructions, too few beside answers.num_held_out = "
            f"{config.answers.num_held_out}"
        )
    return Path(given).resolve(), names[-config.answers.num_held_out :]


def mixed_in(config: TeachConfig) -> tuple[list[str], list[str]]:
    """Return the files of annotated answers beside the own ones, and the files that exclude."""
    if config.data.file is not None:
        return [*config.data.file], [*config.data.exclude]
    names = ("starter/starter.jsonl", "written_answers/written_answers.jsonl")
    found = [str(CORPORA / name) for name in names if (CORPORA / name).exists()]
    held_out = CORPORA / "starter" / HELD_OUT
    return found, [*config.data.exclude, *([str(held_out)] if found else [])]
