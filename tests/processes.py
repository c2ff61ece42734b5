"""``pasta`` in processes of its own that begin at once: forks of one that has imported everything.

``tests/test_readme.py`` and ``tests/cli/test_app.py`` begin it as a shell does.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pasta_lm.cli import main

LIMIT_S = 240
"""Longest wait for the end of a process."""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pasta_lm.learn.annotate.own_answers", "pasta_lm.serve.app"])


def _run(
    log: Path, command: Callable[[], object], arguments: list[str], max_bytes: int,
    environment: Mapping[str, str],
) -> None:  # fmt: skip
    """Run a command line in this process, which prints into a file."""
    os.environ.clear()
    os.environ.update(environment)
    with log.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    sys.argv = ["pasta", *arguments]
    command()


class Process:
    """A command line in a process of its own, which prints into a file."""

    def __init__(
        self, *arguments: object, log: Path, command: Callable[[], object] = main,
        max_bytes: int = resource.RLIM_INFINITY,
    ) -> None:  # fmt: skip
        """Begin it; none of its files may have more bytes than the maximum."""
        self.log = log
        what = (log, command, [*map(str, arguments)], max_bytes, {**os.environ})
        self._process = _FORKS.Process(target=_run, args=what)
        self._process.start()

    @property
    def is_running(self) -> bool:
        return self._process.exitcode is None

    @property
    def output(self) -> str:
        return self.log.read_text("utf-8") if self.log.exists() else ""

    def wait_for(self, pattern: str) -> str:
        """Wait until it has printed something, and return the first group of the pattern."""
        has_ended = False
        while not (match := re.search(pattern, self.output, re.MULTILINE)):
            assert not has_ended, self.output
            has_ended = not self.is_running
            time.sleep(0.005)
        return match[1]

    def send(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def finish(self) -> int:
        """Wait for the end and return the exit code."""
        self._process.join(LIMIT_S)
        assert self._process.exitcode is not None
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
