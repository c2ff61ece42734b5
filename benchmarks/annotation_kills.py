"""Kill annotation runs at random moments, fill their disk, and compare their results.

    python benchmarks/annotation_kills.py OUT.json [--kills 300] [--fills 20]

Runs go against the scripted server, in processes of their own. After each kill -9, rows that were
acknowledged must never be paid for again; when a run has ended, its records and failures must be
those of an untouched run, byte for byte. Disks are filled for real: a tmpfs of a random size, which
needs root; --fills 0 leaves it out. Needs the tests beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parents[1])]

from machine import describe_machine  # noqa: E402

from tests.fakes.scripted_server import Faults, ScriptedServer  # noqa: E402
from tests.fakes.scripted_teacher import teacher_by_rule  # noqa: E402
from tests.learn.annotate.runs import (  # noqa: E402
    Nursery,
    ended_rows,
    files_of,
    kill_until_done,
    paid_for,
    write_source,
)

NUM_ROWS = 60
KILLS_PER_RUN = 25
FAULTS = Faults(latency_s=0.01, server_error=0.05, too_many=0.05, truncated=0.02)
SMALLEST_KB, LARGEST_KB = 8, 400
"""Of a disk: from one that takes a few replies to one that lacks room only for the records."""


def teacher_server() -> ScriptedServer:
    """Return a teacher with wrong replies, behind a server with failures."""
    return ScriptedServer(teacher_by_rule(0.3, 0.1), FAULTS)


def kill_often(folder: Path, nursery: Nursery, random: Random, num_kills: int) -> dict[str, int]:
    """Kill runs until so many kills have hit one; each run ends as the clean one did."""
    source, clean = folder / "source.jsonl", folder / "clean"
    num_hit = num_runs = num_paid = num_replies = 0
    while num_hit < num_kills:
        run = Path(tempfile.mkdtemp(dir=folder))
        with teacher_server() as server:
            more = min(KILLS_PER_RUN, num_kills - num_hit)
            num_hit += kill_until_done(nursery, source, run, server, random, more)
            num_paid += sum(server.paid.values())
        assert files_of(run) == files_of(clean), run
        num_replies += count_replies(run)
        num_runs += 1
        print(f"{num_hit} kills, {num_runs} runs: each set equals the clean one", flush=True)
    return {"kills": num_hit, "runs": num_runs, "lost_on_their_way": num_paid - num_replies}


def fill_often(folder: Path, nursery: Nursery, random: Random, num_fills: int) -> dict[str, int]:
    """Run on disks that are too small, then make room; each run ends as the clean one did."""
    source, clean = folder / "source.jsonl", folder / "clean"
    told: Counter[str] = Counter()
    while told.total() < num_fills:
        disk = Path(tempfile.mkdtemp(dir=folder))
        with small_disk(disk, random.randint(SMALLEST_KB, LARGEST_KB)), teacher_server() as server:
            said = nursery.run(source, disk / "out", server.base_url)
            if said == "0":
                continue
            assert said.startswith("1 "), said
            assert "No space left on device" in said, said
            told["journal" if "journal" in said.partition("\n")[0] else "set"] += 1
            over = ended_rows(disk / "out")
            before = {answer: paid_for(server)[answer] for answer in over}
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            assert nursery.run(source, disk / "out", server.base_url) == "0"
            assert {answer: paid_for(server)[answer] for answer in over} == before
            assert files_of(disk / "out") == files_of(clean), disk
        print(f"{told.total()} full disks: each run went on to the clean set", flush=True)
    return {"fills": told.total(), "full_while_journalling": told["journal"]}


@contextmanager
def small_disk(folder: Path, num_kb: int) -> Iterator[None]:
    """Mount a file system in memory."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={num_kb}k", "tmpfs", str(folder)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def count_replies(folder: Path) -> int:
    """Return how many replies a journal holds."""
    lines = (folder / "journal.jsonl").read_text("utf-8").split("\n")
    return sum(line.startswith('{"id": "reply/') for line in lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--fills", type=int, default=20)
    args = parser.parse_args()
    if args.fills and os.geteuid():
        parser.error("mounting a small disk needs root; or --fills 0")
    began = time.monotonic()
    result: dict[str, object] = {"kind": "simulated", "rows": NUM_ROWS, "seed": 0}
    random = Random(0)
    with tempfile.TemporaryDirectory() as name, Nursery(Path(name)) as nursery:
        folder = Path(name)
        source = write_source(folder / "source.jsonl", NUM_ROWS)
        with teacher_server() as server:
            assert nursery.run(source, folder / "clean", server.base_url) == "0"
        result |= kill_often(folder, nursery, random, args.kills)
        result |= fill_often(folder, nursery, random, args.fills)
    result |= {"wall_s": round(time.monotonic() - began), "machine": describe_machine()}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
