"""Carry the comparison out: every step that is not done, then pages and a report.

Called by ``runs/paper-small.sh``, which says what its flags mean.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from order import comparison, wanted
from plan import Plan
from report import write_report
from runner import INTERRUPTED, Processes, Run, Runner, carry_out, in_process, say
from steps import Options, Page, Step


def write_pages(plan: Plan, run: Run) -> bool:
    """Compare what was measured, a page for each comparison that has a point; tell if all went."""
    return all([_write_page(plan.options, page, run) for page in plan.pages.values()])


def _write_page(options: Options, page: Page, run: Run) -> bool:
    results = options.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    asked = results / f"{page.name}.toml"
    asked.write_text(page.toml(), encoding="utf-8")
    said = results / f"{page.name}.json"
    said.unlink(missing_ok=True)  # a page that cannot be made again must not look as if it were
    if not any(Path(point["records"]).exists() for point in page.points):
        return True
    words = ["evaluate", "frontier", str(asked), "--json"]
    words += ["--page", str(said.with_suffix(".md")), "--plot", str(said.with_suffix(".svg"))]
    step = Step(
        name=page.name, group="", command=tuple(words), makes=said, parts=(said,), prints_to=said
    )
    return carry_out(step, run) == 0


def options_of(typed: argparse.Namespace) -> Options:
    """Return what was asked for; a toy has a folder and figures of its own."""
    usual = "build/paper-tiny" if typed.tiny else "build/paper"
    flags = ["--tiny"] if typed.tiny else []
    flags += ["--prompts", str(typed.prompts)] if typed.prompts is not None else []
    flags += ["--timed", str(typed.timed)] if typed.timed is not None else []
    flags += ["--sampled", str(typed.sampled)] if typed.sampled is not None else []
    flags += ["--base", str(typed.base)] if typed.base is not None else []
    folders = {name: place for name in ("OUT", "LAPTOP") if (place := os.environ.get(name))}
    return Options(
        out=Path(os.environ.get("OUT") or usual),
        laptop=Path(os.environ.get("LAPTOP") or "build/laptop"),
        base=typed.base,
        seeds=tuple(int(seed) for seed in typed.seeds.split(",")),
        num_prompts=typed.prompts or (3 if typed.tiny else 8400),
        num_timed=10 if typed.timed is None else typed.timed,
        num_sampled=typed.sampled,
        is_tiny=typed.tiny,
        has_trials=typed.trials,
        has_ablations=typed.ablations,
        jobs=typed.jobs,
        flags=shlex.join(flags),
        folders=" ".join(f"{name}={shlex.quote(place)}" for name, place in folders.items()),
    )


def keep_options(plan: Plan) -> None:
    """Note with what a folder is begun, its base too, and refuse to go on with anything else."""
    out = plan.options.out
    asked = plan.options.asked | {"base": plan.base}
    file = out / "options.json"
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asked), encoding="utf-8")
        return
    begun = json.loads(file.read_text(encoding="utf-8"))
    for key, value in asked.items():
        if begun.get(key) != value:
            sys.exit(
                f"runs/paper-small.sh: {out} was begun with {key} = {begun.get(key)}, not "
                f"{value}: type the same flags, or OUT=... for another folder"
            )


def read_flags() -> argparse.Namespace:
    """Return what was typed."""
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
    parser.add_argument("--base", type=Path, help="the base model; else that of runs/laptop.sh")
    parser.add_argument("--list", action="store_true", help="name the steps, and stop")
    parser.add_argument("--report", action="store_true", help="make the report again, and no step")
    typed = parser.parse_args()
    if not all(seed.isdigit() for seed in typed.seeds.split(",")):
        parser.error(f"--seeds {typed.seeds}: numbers by comma, as 0,1,2")
    for name, least in (("prompts", 1), ("timed", 0), ("sampled", 1), ("jobs", 1)):
        number = getattr(typed, name)
        if number is not None and number < least:
            parser.error(f"--{name} {number}: at least {least}")
    return typed


def main() -> None:
    """Carry out what was typed."""
    typed = read_flags()
    plan = comparison(options_of(typed))
    if unknown := [name for name in typed.only if name not in plan.steps]:
        sys.exit(f"runs/paper-small.sh: no step {unknown[0]}; --list names them")
    is_here = typed.tiny and "PASTA" not in os.environ
    jobs = 1 if is_here else typed.jobs
    processes = Processes(jobs)
    run = in_process if is_here else processes
    steps = [plan.steps[name] for name in typed.only] or list(wanted(plan))
    if typed.list:
        print("\n".join(f"{'done' if step.is_done else '    '}  {step.name}" for step in steps))
        return
    keep_options(plan)
    runner = Runner(plan, run, jobs, processes.interrupt)
    if not typed.report:
        for step in steps:
            if step.is_done:
                say(f"{step.name}: done before")
        runner.make(*steps)
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
