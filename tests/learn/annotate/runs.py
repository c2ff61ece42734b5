"""A small source of answers and the recipe that annotates it, for tests of whole runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from select import select

from pasta_lm.engines.servers.request_pace import RetryPolicy
from pasta_lm.learn.annotate.dataset import FAILURES, RECORDS
from pasta_lm.learn.annotate.recipe import AnnotateConfig, FilterConfig, OutputConfig, TeacherConfig
from pasta_lm.learn.annotate.sources import SourceConfig
from tests.fakes.scripted_server import ScriptedServer
from tests.fakes.scripted_teacher import asked_answer

ROOT = Path(__file__).parents[3]

AT_ONCE = RetryPolicy(max_requests=40, first_delay_s=0.001, max_delay_s=0.01)
"""Retries that wait for nothing."""


def write_source(path: Path, num_rows: int) -> Path:
    """Write answers of one to four paragraphs; every seventh has no answer."""
    with path.open("w", encoding="utf-8") as file:
        for index in range(num_rows):
            parts = [
                f"Paragraph {part} of answer {index} says that <sync/> is \u00e9crit &lt;sync/&gt;."
                for part in range(1 + index % 4)
            ]
            answer = "" if index % 7 == 6 else "\n\n".join(parts)
            row = {"id": f"r{index}", "instruction": f"Say {index}.", "output": answer}
            file.write(json.dumps(row) + "\n")
    return path


def recipe(source: Path, folder: Path, base_url: str, **teacher: object) -> AnnotateConfig:
    """Return a recipe that asks a scripted teacher."""
    keys = {"timeout_s": 60.0, "max_in_flight": 8, **teacher}
    return AnnotateConfig(
        source=SourceConfig(file=str(source)),
        output=OutputConfig(folder=str(folder)),
        teacher=TeacherConfig(base_url=base_url, model="scripted", **keys),  # type: ignore[arg-type]
        filters=FilterConfig(max_answer_characters=100_000),
    )


NURSERY = r"""
import importlib, json, os, resource, sys
from importlib.util import find_spec
from pathlib import Path
from pasta_lm.cli.app import main
from pasta_lm.learn.annotate.run import annotate
from pasta_lm.errors import PastaError
from tests.learn.annotate.runs import AT_ONCE, recipe

slow = ("openai.resources.chat", "anyio._backends._asyncio", "pyarrow.parquet")
for name in (*slow, "pasta_lab.tasks.layout", "rich.progress"):
    if find_spec(name.partition(".")[0]):
        importlib.import_module(name)

def run(source, folder, base_url, most_bytes):
    if most_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    try:
        annotate(recipe(Path(source), Path(folder), base_url), policy=AT_ONCE)
    except PastaError as error:
        return f"{error.exit_code} {error}"
    return "0"

def type_command(*words):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        return f"exit code {end.code or 0}\n"

for line in sys.stdin:
    command, arguments, ending = json.loads(line)
    child = os.fork()
    if not child:
        out = os.open(ending, os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        said = {"run": run, "type": type_command}[command](*arguments)
        os.write(out, said.encode())
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("over", flush=True)
"""
"""Forks a process for each run: modules are imported once, and a kill is still a kill."""


class Nursery:
    """Runs annotations in processes of their own, one at a time."""

    def __init__(self, folder: Path) -> None:
        """Start what forks them; ``folder`` takes what they say at their end."""
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._pipe = folder / "ending"
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # nothing is read ahead, or select would wait for what has come
        )
        self._child = 0

    def __enter__(self) -> Nursery:
        """Return the nursery itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what forks; no run is left by then."""
        self._process.kill()
        self._process.communicate()

    def start(self, source: Path, folder: Path, base_url: str, most_bytes: int = 0) -> None:
        """Begin a run whose files may have so many bytes; 0: any number."""
        self._ask("run", str(source), str(folder), base_url, most_bytes)

    def type(self, *words: str) -> None:
        """Begin what ``pasta`` does with these arguments."""
        self._ask("type", *words)

    def _ask(self, command: str, *arguments: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipe.write_bytes(b"")
        asked = json.dumps([command, arguments, str(self._pipe)])
        self._process.stdin.write(asked.encode() + b"\n")
        self._child = int(self._process.stdout.readline())

    def is_running(self) -> bool:
        """Tell whether the run has not ended by itself."""
        assert self._process.stdout is not None
        return not select([self._process.stdout], [], [], 0.001)[0]

    def said(self) -> str:
        """Return what a run has printed so far, on both streams."""
        return self._pipe.read_text("utf-8")

    def send(self, number: signal.Signals) -> None:
        """Send a run a signal."""
        with suppress(ProcessLookupError):
            os.kill(self._child, number)

    def kill(self) -> None:
        """Send a run kill -9, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self.finish()

    def finish(self) -> str:
        """Wait for a run to end; return what it printed and its exit code, or its error."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"over\n"
        return self.said()

    def run(self, source: Path, folder: Path, base_url: str, most_bytes: int = 0) -> str:
        """Run to the end."""
        self.start(source, folder, base_url, most_bytes)
        return self.finish()


def ended_rows(folder: Path) -> set[str]:
    """Return the answers of all rows that a journal acknowledges to be over."""
    journal = folder / "journal.jsonl"
    whole = journal.read_bytes().rpartition(b"\n")[0] if journal.exists() else b""
    lines = [json.loads(line) for line in whole.split(b"\n") if line]
    over = {line["index"] for line in lines if line["id"].startswith("end/")}
    return {
        line["answer"] for line in lines if line["id"].startswith("row/") and line["index"] in over
    }


def paid_for(server: ScriptedServer) -> Counter[str]:
    """Return how many replies a server gave for each answer."""
    found: Counter[str] = Counter()
    for messages, number in list(server.paid.items()):
        found[asked_answer(json.loads(messages))] += number
    return found


def kill_until_done(
    nursery: Nursery,
    source: Path,
    folder: Path,
    server: ScriptedServer,
    random: Random,
    num_kills: int,
) -> int:
    """Run with kill -9 at random moments, then to its end; return how many kills hit a run.

    After each kill, rows that were acknowledged must never be paid for again.
    """
    settled: dict[str, int] = {}
    num_hit = 0
    for _ in range(num_kills):
        nursery.start(source, folder, server.base_url)
        target = server.num_requests + random.randint(0, 6)
        is_running = True
        while is_running and server.num_requests < target:
            is_running = nursery.is_running()
        time.sleep(random.random() * 0.03)
        num_hit += nursery.is_running()
        nursery.kill()
        paid = paid_for(server)
        for answer in ended_rows(folder):
            assert settled.setdefault(answer, paid[answer]) == paid[answer], answer
    assert nursery.run(source, folder, server.base_url) == "0"
    paid = paid_for(server)
    assert all(paid[answer] == number for answer, number in settled.items())
    return num_hit


def files_of(folder: Path) -> dict[str, str]:
    """Return the data set of a run: its records and failures, byte for byte."""
    return {name: (folder / name).read_text("utf-8") for name in (RECORDS, FAILURES)}
