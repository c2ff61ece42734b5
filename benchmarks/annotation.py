"""Measure how long annotating takes when a fifth of all requests fail, against the ideal.

    python benchmarks/annotation.py OUT.json [--wall] [--rows 600] [--latency 0.2] [--in-flight 4]

Each row is one request that must succeed; the server answers after a fixed latency and fails by
chance. The ideal is what as many good answers take, without an error, at the bound on requests in
flight that the run had on average: rows * latency / bound. A request that fails after the whole
latency has cost a good answer's time, so with a fifth of such failures nothing is below 1.25.

Time is that of a clock of its own, on which all waiting counts and no computing: the same on every
machine. --wall takes this machine's time, against the scripted server over HTTP, with a clean run
beside it. Kind: simulated. Needs the tests beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parents[1])]

from pasta_lm.engines.local.timing import describe_machine  # noqa: E402
from pasta_lm.learn.annotate.run import annotate  # noqa: E402
from tests.fakes.scripted_server import Faults, ScriptedServer  # noqa: E402
from tests.fakes.scripted_teacher import teacher_by_rule  # noqa: E402
from tests.learn.annotate.runs import recipe  # noqa: E402
from tests.learn.annotate.simulated_time import (  # noqa: E402
    TIME_OUT,
    Measured,
    MeasuredPace,
    measured,
    write_rows,
)

AIM = 1.3
SOON = 0.1
"""Of the latency: when 429 and 500 come in the mixes that are called so."""
MIXES = {
    "none": Faults(),
    "500": Faults(server_error=0.2),
    "500, broken replies": Faults(server_error=0.12, truncated=0.04, broken_off=0.04),
    "500, 429": Faults(server_error=0.14, too_many=0.06),
    "500, 429, time-outs, soon": Faults(
        server_error=0.1, too_many=0.06, truncated=0.02, hang=0.02, refusal_latency_s=SOON
    ),
}
"""Shares of all requests."""


def measured_by_wall(faults: Faults, num_rows: int, in_flight: int, folder: Path) -> Measured:
    """Annotate over HTTP, by the clock on the wall."""
    source = write_rows(folder / "source.jsonl", num_rows)
    keys = {"timeout_s": TIME_OUT * faults.latency_s, "max_in_flight": in_flight}
    with ScriptedServer(teacher_by_rule(), faults) as server:
        pace = MeasuredPace(in_flight, time.perf_counter)
        began = time.perf_counter()
        run = annotate(recipe(source, folder / "out", server.base_url, **keys), pace=pace)
        wall_s, bound = time.perf_counter() - began, pace.note()
    assert run.tally.num_rows == {"ok": num_rows}
    return Measured(wall_s, bound, server.num_requests)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--seed", type=int, default=2, help="2 draws a fifth, of 600 rows")
    args = parser.parse_args()
    mixes = {}
    print("| failures | requests | failed | bound, mean | time, s | ideal, s | ratio |", flush=True)
    for name, shares in MIXES.items():
        soon_s = None if shares.refusal_latency_s is None else SOON * args.latency
        faults = replace(shares, latency_s=args.latency, refusal_latency_s=soon_s, seed=args.seed)
        with tempfile.TemporaryDirectory() as folder:
            measure = measured_by_wall if args.wall else measured
            found = measure(faults, args.rows, args.in_flight, Path(folder))
        ideal_s = args.rows * args.latency / found.mean_bound
        ratio, failed = found.wall_s / ideal_s, 1 - args.rows / found.num_requests
        mixes[name] = {**found._asdict(), "failed": failed, "ideal_s": ideal_s, "ratio": ratio}
        print(
            f"| {name} | {found.num_requests} | {failed:.3f} | {found.mean_bound:.1f} | "
            f"{found.wall_s:.1f} | {ideal_s:.1f} | {ratio:.2f} |",
            flush=True,
        )
    result = {
        "kind": "simulated",
        "clock": "wall" if args.wall else "simulated",
        "aim": AIM,
        "rows": args.rows,
        "seed": args.seed,
        "latency_s": args.latency,
        "max_in_flight": args.in_flight,
        "mixes": mixes,
        "machine": describe_machine(),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
