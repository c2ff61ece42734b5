"""Carry steps out, each after those that it needs, several at the same time if that is asked."""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from pathlib import Path
from typing import IO, Any

from plan import Plan
from steps import Step, part_of

INTERRUPTED = 130
Run = Callable[[Sequence[str], IO[str]], int]
"""Words of a command and where its standard output goes, to its exit code."""


def say(line: str) -> None:
    """Write a line for whoever watches."""
    print(f"[{time.strftime('%T')}] {line}", file=sys.stderr, flush=True)


class Processes:
    """Runs each command in a process of its own; ``PASTA`` names another one than this pasta."""

    def __init__(self, jobs: int) -> None:
        """Share the cores among as many commands as run at the same time."""
        self._running: set[subprocess.Popen[bytes]] = set()
        threads = max(1, (os.cpu_count() or 1) // jobs)
        own = {} if jobs == 1 else {"OMP_NUM_THREADS": str(threads)}
        self._environment = {**os.environ, **own}

    def __call__(self, words: Sequence[str], out: IO[str]) -> int:
        """Run a command to its end."""
        pasta = os.environ.get("PASTA") or f"{shlex.quote(sys.executable)} -m pasta_lm"
        start = [sys.executable] if words[0].endswith(".py") else shlex.split(pasta)
        with subprocess.Popen([*start, *words], stdout=out, env=self._environment) as process:
            self._running.add(process)
            try:
                return process.wait()
            finally:
                self._running.discard(process)

    def interrupt(self) -> None:
        """Ask all of them to stop; what they have kept is there when they are run again."""
        for process in list(self._running):
            process.send_signal(signal.SIGINT)


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


class Here(Executor):
    """Runs what it is handed at once, in this thread: what Ctrl-C and a toy's commands expect."""

    def submit(self, fn: Callable[..., int], /, *args: Any, **kwargs: Any) -> Future[int]:
        """Return a future that is done."""
        done: Future[int] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class Runner:
    """Makes steps and what they need; one that fails is said and left, the others go on."""

    def __init__(
        self, plan: Plan, run: Run, jobs: int = 1, interrupt: Callable[[], None] = lambda: None
    ) -> None:
        """Keep what is to be made and how.

        Args:
            plan: The steps.
            run: Runs a command.
            jobs: How many at the same time.
            interrupt: Ends those that run.
        """
        self._plan, self._run, self._jobs, self._interrupt = plan, run, jobs, interrupt
        self._order = {name: place for place, name in enumerate(plan.steps)}
        self.failed: set[str] = set()
        self.num_made = 0

    def make(self, *steps: Step) -> bool:
        """Make steps unless they are done, the first in the plan first; tell if all are now."""
        sorter = TopologicalSorter(self._needs(steps))
        sorter.prepare()
        ready: list[str] = []
        running: dict[Future[int], Step] = {}
        with ThreadPoolExecutor(self._jobs) if self._jobs > 1 else Here() as pool:
            try:
                while sorter.is_active():
                    ready = sorted((*ready, *sorter.get_ready()), key=self._order.__getitem__)
                    left = [name for name in ready if self._is_left(self._plan.steps[name])]
                    if left:
                        sorter.done(*left)
                        ready = [name for name in ready if name not in left]
                        continue
                    while step := self._next(ready, running.values()):
                        ready.remove(step.name)
                        say(f"{step.name}: begins")
                        running[pool.submit(carry_out, step, self._run)] = step
                    for ended in wait(running, return_when=FIRST_COMPLETED).done:
                        step = running.pop(ended)
                        self._keep(step, ended.result())
                        sorter.done(step.name)
            except BaseException:
                self._interrupt()
                raise
        return not any(step.name in self.failed for step in steps)

    def _next(self, ready: Sequence[str], running: Collection[Step]) -> Step | None:
        """Return the first one if it may begin now; what has clocks waits until nothing runs."""
        if not ready or len(running) == self._jobs or any(one.is_alone for one in running):
            return None
        first = self._plan.steps[ready[0]]
        return None if first.is_alone and running else first

    def _needs(self, steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
        """Return what is to be made, each step with those before it; what is done needs nothing."""
        found: dict[str, tuple[str, ...]] = {}
        open_steps = list(steps)
        while open_steps:
            step = open_steps.pop()
            if step.name not in found:
                found[step.name] = () if step.is_done else step.needs
                open_steps += [self._plan.steps[need] for need in found[step.name]]
        return found

    def _is_left(self, step: Step) -> bool:
        """Tell whether nothing is run for a step: it is done, or lacks what has failed."""
        if step.is_done:
            return True
        if self.failed & {step.name, *step.needs}:
            self.failed.add(step.name)
            return True
        return False

    def _keep(self, step: Step, code: int) -> None:
        """Note how a step ended."""
        if code == INTERRUPTED:
            sys.exit(code)
        self.num_made += 1
        if code or not step.is_done:
            say(f"{step.name}: failed; again: {self._plan.command_of(step.name)}")
            self.failed.add(step.name)
        else:
            say(f"{step.name}: done")


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
