"""Kill an annotation run at random moments, and compare what it leaves with an untouched run.

``python scripts/kill_annotation.py 300`` kills 300 times. Needs the tests beside it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parents[1])]

from pasta_lm.data.scripted_teacher import teacher_by_rule  # noqa: E402
from pasta_lm.remote.scripted_server import Faults, ScriptedServer  # noqa: E402
from tests.data.annotating import (  # noqa: E402
    Nursery,
    files_of,
    kill_until_done,
    write_source,
)


def main() -> None:
    """Kill as often as was asked for, in runs of 60 rows each."""
    num_kills = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    random = Random(0)
    num_hit = num_runs = 0
    faults = Faults(latency_s=0.01, server_error=0.05, too_many=0.05, truncated=0.02)
    with tempfile.TemporaryDirectory() as name, Nursery(Path(name)) as nursery:
        source = write_source(Path(name) / "source.jsonl", 60)
        with ScriptedServer(teacher_by_rule(0.3, 0.1), faults) as server:
            clean = Path(name) / "clean"
            assert nursery.run(source, clean, server.base_url) == "0"
        while num_hit < num_kills:
            folder = Path(name) / f"run{num_runs}"
            with ScriptedServer(teacher_by_rule(0.3, 0.1), faults) as server:
                more = min(25, num_kills - num_hit)
                num_hit += kill_until_done(nursery, source, folder, server, random, more)
            assert files_of(folder) == files_of(clean), folder
            num_runs += 1
            print(f"{num_hit} kills, {num_runs} runs: each set equals the clean one", flush=True)


if __name__ == "__main__":
    main()
