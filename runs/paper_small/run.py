"""Carry the comparison out: make every step that is not done, then the pages and the report.

Called by ``runs/paper-small.sh``, which says what its flags mean.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pages import page_toml, read_plan
from plan import Options, Page, Plan, Step
from report import write_report

INTERRUPTED = 130
BASE = "build/laptop/random/model"
"""The base model unless another is named: the one that runs/laptop.sh trains."""


def say(line: str) -> None:
    """Write a line of progress."""
    print(f"[{time.strftime('%T')}] {line}", file=sys.stderr, flush=True)


def make_steps(options: Options, steps: Sequence[Step], jobs: int) -> int:
    """Make steps with all that they need, so many at the same time, and return make's exit code.

    Make runs in a process group of its own: an interrupt is passed on to all its commands once. It
    comes from the user, or from a command that was interrupted alone.
    """
    names = [step.name for step in steps if not step.is_done]
    if not names:
        return 0
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    own = {} if options.jobs == 1 else {"OMP_NUM_THREADS": str(threads)}
    own |= {"AGAIN": options.again("").removesuffix(" --only"), "CALLER": str(os.getpid())}
    environment = os.environ | own
    words = options.make("--keep-going", "--silent", f"--jobs={jobs}", *names)
    with subprocess.Popen(words, env=environment, process_group=0, stdout=sys.stderr) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise
    return code


def make_all(plan: Plan, steps: Sequence[Step]) -> bool:
    """Make steps group by group; with several jobs, those with clocks alone and after the others.

    Returns:
        Whether all of them are done now.
    """
    timed = {name for name, step in plan.steps.items() if needs_clock(plan, step)}
    for group in dict.fromkeys(step.group for step in steps):
        asked = [step for step in steps if step.group == group]
        if plan.options.jobs > 1:
            untimed = [step for step in asked if step.name not in timed]
            before = [plan.steps[need] for step in asked for need in step.needs]
            untimed += [step for step in before if step.name not in timed]
            make_steps(plan.options, list(dict.fromkeys(untimed)), plan.options.jobs)
        make_steps(plan.options, asked, 1)
    return all(step.is_done for step in steps)


def needs_clock(plan: Plan, step: Step) -> bool:
    """Return whether a step measures time, or needs one that does."""
    return step.is_timed or any(needs_clock(plan, plan.steps[need]) for need in step.needs)


def write_page(options: Options, page: Page) -> bool:
    """Compare what was measured for a page; return whether that worked."""
    results = options.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    asked, said = results / f"{page.name}.toml", results / f"{page.name}.json"
    asked.write_text(page_toml(page), encoding="utf-8")
    said.unlink(missing_ok=True)  # an old page must not stand for one that cannot be made again
    if not any(Path(point["records"]).exists() for point in page.points):
        return True
    words = [*shlex.split(options.pasta), "evaluate", "frontier", str(asked), "--json"]
    words += ["--page", str(said.with_suffix(".md")), "--plot", str(said.with_suffix(".svg"))]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    if done.returncode == 0:
        said.write_bytes(done.stdout)
    return done.returncode == 0


def keep_options(options: Options) -> None:
    """Note the options with which a folder is begun, and refuse to go on with others."""
    file = options.out / "options.json"
    if not file.exists():
        options.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(options.begun_with), encoding="utf-8")
        return
    begun = json.loads(file.read_text(encoding="utf-8"))
    for key, value in options.begun_with.items():
        if begun.get(key) != value:
            sys.exit(
                f"runs/paper-small.sh: {options.out} was begun with {key} = {begun.get(key)}, not "
                f"{value}: type the same flags, or OUT=... for another folder"
            )


def read_options() -> tuple[Options, argparse.Namespace]:
    """Return the options, and what else was typed: --only, --list and --report."""
    parser = argparse.ArgumentParser(prog="runs/paper-small.sh", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="all of it as a toy")
    parser.add_argument("--seeds", default="0", help="of training, by comma: 0,1,2")
    parser.add_argument("--trials", action="store_true", help="how the rates were chosen, too")
    parser.add_argument("--ablations", action="store_true", help="the ablations too, last")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="and its needs")
    parser.add_argument("--prompts", type=int, help="test prompts; 8400 is 400 of each family")
    parser.add_argument("--timed", type=int, help="of each family decoded alone, for clocks; 10")
    parser.add_argument("--sampled", type=int, help="prompts of a round of stage two; 2000")
    parser.add_argument("--jobs", type=int, default=1, help="steps at the same time; clocks alone")
    parser.add_argument("--base", help=f"the base model, a folder or hub id; {BASE}")
    parser.add_argument("--list", action="store_true", help="name the steps, and stop")
    parser.add_argument("--report", action="store_true", help="make the report again, and no step")
    typed = parser.parse_args()
    if not all(seed.isdigit() for seed in typed.seeds.split(",")):
        parser.error(f"--seeds {typed.seeds}: numbers by comma, as 0,1,2")
    for name, minimum in (("prompts", 1), ("timed", 0), ("sampled", 1), ("jobs", 1)):
        number = getattr(typed, name)
        if number is not None and number < minimum:
            parser.error(f"--{name} {number}: at least {minimum}")
    flags = ["--tiny"] * typed.tiny
    for name in ("prompts", "timed", "sampled", "base"):
        if getattr(typed, name) is not None:
            flags += [f"--{name}", str(getattr(typed, name))]
    usual = "build/paper-tiny" if typed.tiny else "build/paper"
    options = Options(
        out=Path(os.environ.get("OUT") or usual),
        base=typed.base or (None if typed.tiny else BASE),
        seeds=tuple(int(seed) for seed in typed.seeds.split(",")),
        num_prompts=typed.prompts or (3 if typed.tiny else 8400),
        num_timed=10 if typed.timed is None else typed.timed,
        num_sampled=typed.sampled,
        is_tiny=typed.tiny,
        has_trials=typed.trials,
        has_ablations=typed.ablations,
        jobs=typed.jobs,
        flags=shlex.join(flags),
    )
    if any(" " in str(path) for path in (options.out, options.base)):
        parser.error("make reads no folder with a space in its name")
    return options, typed


def main() -> None:
    """Carry out what was typed."""
    options, typed = read_options()
    plan = read_plan(options)
    if unknown := [name for name in typed.only if name not in plan.steps]:
        sys.exit(f"runs/paper-small.sh: no step {unknown[0]}; --list names them")
    wanted = [step for step in plan.steps.values() if step.group in options.groups]
    steps = [plan.steps[name] for name in typed.only] or wanted
    if typed.list:
        print("\n".join(f"{'done' if step.is_done else '    '}  {step.name}" for step in steps))
        return
    keep_options(options)
    done_before = {name for name, step in plan.steps.items() if step.is_done}
    is_whole = True
    if not typed.report:
        if options.base == BASE and not Path(BASE).is_dir():
            sys.exit(f"no base model at {BASE}: runs/laptop.sh trains it; --base names another")
        for step in steps:
            if step.is_done:
                say(f"{step.name}: done before")
        is_whole = make_all(plan, steps)
    report = options.out / "report.md"
    is_new = any(step.is_done for name, step in plan.steps.items() if name not in done_before)
    if is_new or not is_whole or typed.report or not report.exists():
        is_whole &= all([write_page(options, page) for page in plan.pages.values()])
        write_report(report, plan)
    print(report)
    sys.exit(0 if is_whole else 1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        sys.exit(INTERRUPTED)
