"""A small source of answers and the recipe that annotates it, for tests of whole runs."""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from random import Random

from pasta_lm.engines.servers.client import RetryPolicy
from pasta_lm.learn.annotate.filters import FilterConfig
from pasta_lm.learn.annotate.recipe import AnnotateConfig, OutputConfig, SourceConfig, TeacherConfig
from pasta_lm.learn.annotate.run import FAILURES, RECORDS, AnnotationRun, annotate
from pasta_lm.recipe import toml_of
from tests.fakes.scripted_server import ScriptedServer
from tests.fakes.scripted_teacher import asked_answer
from tests.processes import Process

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
    keys = {"timeout_s": 60.0, "max_in_flight": 8, **teacher}
    return AnnotateConfig(
        source=SourceConfig(file=str(source)),
        output=OutputConfig(folder=str(folder)),
        teacher=TeacherConfig(base_url=base_url, model="scripted", **keys),  # type: ignore[arg-type]
        filters=FilterConfig(max_answer_characters=100_000),
    )


def by_rule(folder: Path, lines: Iterable[str], **filters: int) -> AnnotationRun:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines))
    config = AnnotateConfig(
        source=SourceConfig(file=str(path)),
        output=OutputConfig(folder=str(folder / "out")),
        annotator="markdown_rule",
        filters=FilterConfig(**filters),
    )
    return annotate(config)


def write_recipe(path: Path, config: AnnotateConfig) -> Path:
    path.write_text(toml_of(asdict(config)), encoding="utf-8")
    return path


def annotating(recipe: Path, **settings: int) -> Process:
    """Begin ``pasta annotate`` in a process of its own."""
    return Process("annotate", recipe, log=recipe.with_suffix(".log"), **settings)


def stored_replies(folder: Path) -> Counter[str]:
    journal = folder / "journal.jsonl"
    whole = journal.read_bytes().rpartition(b"\n")[0] if journal.exists() else b""
    return Counter(json.loads(line)["row"] for line in whole.split(b"\n") if line)


def paid_for(server: ScriptedServer) -> Counter[str]:
    """Return the number of replies that a server gave, by the id of the row."""
    paid: Counter[str] = Counter()
    for messages, number in list(server.paid.items()):
        answer = asked_answer(json.loads(messages))
        paid[f"r{re.search('answer ([0-9]+)', answer)[1]}"] += number
    return paid


def kill_until_done(config: AnnotateConfig, server: ScriptedServer, random: Random) -> int:
    """Run with kill -9 at random moments, then to the end; return how many kills hit a run.

    A kill loses at most the one reply of a row that was in flight. The server may still count a
    reply after the process is gone, so the losses are compared at the end.
    """
    folder = Path(config.output.folder)
    recipe = write_recipe(folder.with_suffix(".toml"), config)
    num_hit = 0
    for _ in range(5):
        target = server.num_requests + random.randint(1, 6)
        run = annotating(recipe)
        while run.is_running and server.num_requests < target:
            time.sleep(0.002)
        num_hit += run.is_running
        run.send(signal.SIGKILL)
        run.finish()
    assert annotating(recipe).finish() == 0
    lost = paid_for(server) - stored_replies(folder)
    assert all(number <= num_hit for number in lost.values())
    return num_hit


def files_of(folder: Path) -> dict[str, str]:
    """Return the data set of a run: its records and failures, byte for byte."""
    return {name: (folder / name).read_text("utf-8") for name in (RECORDS, FAILURES)}
