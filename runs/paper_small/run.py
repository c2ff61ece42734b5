"""Carry the comparison out: every step that is not done, then pages and a report.

Called by ``runs/paper-small.sh``, which says what its flags mean.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from order import comparison, wanted
from plan import Plan
from report import write_report
from steps import Options, Page, Step, part_of

INTERRUPTED = 130
Run = Callable[[Sequence[str], IO[str]], int]
"""Words of a command and where its standard output goes, to its exit code."""


def say(line: str) -> None:
    """Write a line for whoever watches."""
    print(f"[{time.strftime('%T')}] {line}", file=sys.stderr, flush=True)


def as_process(words: Sequence[str], out: IO[str]) -> int:
    """Run a command in a process of its own; ``PASTA`` names another one than this pasta."""
    pasta = os.environ.get("PASTA") or f"{shlex.quote(sys.executable)} -m pasta_lm"
    start = [sys.executable] if words[0].endswith(".py") else shlex.split(pasta)
    return subprocess.run([*start, *words], stdout=out).returncode


def in_process(words: Sequence[str], out: IO[str]) -> int:
    """Run a command here: torch is imported once for all commands of a toy."""
    before, is_script = sys.argv, words[0].endswith(".py")
    sys.argv = [*words] if is_script else ["pasta", *words]
    try:
        with contextlib.redirect_stdout(out):
            if is_script:
                sys.path.insert(0, str(Path(words[0]).parent))
                runpy.run_path(words[0], run_name="__main__")
            else:
                from pasta_lm.cli import main as pasta

                pasta()
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    finally:
        sys.argv = before
    return 0


class Runner:
    """Makes steps and what they need; one that fails is said and left, the others go on."""

    def __init__(self, plan: Plan, run: Run) -> None:
        """Keep what is to be made and how commands are run."""
        self._plan, self._run = plan, run
        self.failed: set[str] = set()
        self.num_made = 0

    def make(self, step: Step) -> bool:
        """Make a step unless it is done; tell whether it is now."""
        if step.is_done:
            return True
        if step.name in self.failed or not all(
            [self.make(self._plan.steps[need]) for need in step.needs]
        ):
            self.failed.add(step.name)
            return False
        say(f"{step.name}: begins")
        code = carry_out(step, self._run)
        if code == INTERRUPTED:
            sys.exit(code)
        self.num_made += 1
        if code or not step.is_done:
            say(f"{step.name}: failed; again: {self._plan.command_of(step.name)}")
            self.failed.add(step.name)
        return step.name not in self.failed


def carry_out(step: Step, run: Run) -> int:
    """Run a step's command and return its exit code; its files appear when it has ended well."""
    for file in step.parts:
        file.parent.mkdir(parents=True, exist_ok=True)
        part_of(file).unlink(missing_ok=True)
    if step.prints_to is None:
        code = run(step.command, sys.stderr)
    else:
        with part_of(step.prints_to).open("w", encoding="utf-8") as out:
            code = run(step.command, out)
    if not code:
        for file in step.parts:
            part_of(file).replace(file)
    return code


def write_pages(plan: Plan, run: Run) -> bool:
    """Compare what was measured, a page for each comparison that has a point; tell if all went."""
    return all([_write_page(plan.options, page, run) for page in plan.pages.values()])


def _write_page(options: Options, page: Page, run: Run) -> bool:
    results = options.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    asked = results / f"{page.name}.toml"
    asked.write_text(page.toml(), encoding="utf-8")
    if not any(Path(point["records"]).exists() for point in page.points):
        return True
    said = results / f"{page.name}.json"
    words = ["evaluate", "frontier", str(asked), "--json"]
    words += ["--html", str(said.with_suffix(".html")), "--plot", str(said.with_suffix(".svg"))]
    step = Step(
        name=page.name, group="", command=tuple(words), makes=said, parts=(said,), prints_to=said
    )
    return carry_out(step, run) == 0


def options_of(typed: argparse.Namespace) -> Options:
    """Return what was asked for; a toy has a folder and figures of its own."""
    usual = "build/paper-tiny" if typed.tiny else "build/paper"
    flags = ["--tiny"] if typed.tiny else []
    flags += ["--prompts", str(typed.prompts)] if typed.prompts is not None else []
    flags += ["--base", str(typed.base)] if typed.base is not None else []
    return Options(
        out=Path(os.environ.get("OUT") or usual),
        laptop=Path(os.environ.get("LAPTOP") or "build/laptop"),
        base=typed.base,
        seeds=tuple(int(seed) for seed in typed.seeds.split(",")),
        num_prompts=typed.prompts or (3 if typed.tiny else 8400),
        is_tiny=typed.tiny,
        has_ablations=typed.ablations,
        flags=shlex.join(flags),
    )


def read_flags() -> argparse.Namespace:
    """Return what was typed."""
    parser = argparse.ArgumentParser(prog="runs/paper-small.sh", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="all of it as a toy")
    parser.add_argument("--seeds", default="0", help="of training, by comma: 0,1,2")
    parser.add_argument("--ablations", action="store_true", help="the ablations too, last")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="and its needs")
    parser.add_argument("--prompts", type=int, help="test prompts; 8400 is 400 of each family")
    parser.add_argument("--base", type=Path, help="the base model; else that of runs/laptop.sh")
    parser.add_argument("--list", action="store_true", help="name the steps, and stop")
    parser.add_argument("--report", action="store_true", help="make the report again, and no step")
    typed = parser.parse_args()
    if not all(seed.isdigit() for seed in typed.seeds.split(",")):
        parser.error(f"--seeds {typed.seeds}: numbers by comma, as 0,1,2")
    return typed


def main() -> None:
    """Carry out what was typed."""
    typed = read_flags()
    plan = comparison(options_of(typed))
    if unknown := [name for name in typed.only if name not in plan.steps]:
        sys.exit(f"runs/paper-small.sh: no step {unknown[0]}; --list names them")
    run = in_process if typed.tiny and "PASTA" not in os.environ else as_process
    steps = [plan.steps[name] for name in typed.only] or list(wanted(plan))
    if typed.list:
        print("\n".join(f"{'done' if step.is_done else '    '}  {step.name}" for step in steps))
        return
    runner = Runner(plan, run)
    for step in () if typed.report else steps:
        if step.is_done:
            say(f"{step.name}: done before")
        runner.make(step)
    report = plan.options.out / "report.md"
    is_whole = True
    if runner.num_made or typed.report or not report.exists():
        is_whole = write_pages(plan, run)
        write_report(report, plan)
    print(report)
    sys.exit(1 if runner.failed or not is_whole else 0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        sys.exit(INTERRUPTED)
