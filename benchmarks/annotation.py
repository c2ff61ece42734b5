"""Measure how long annotating takes when a fifth of all requests fail, against the ideal.

    python benchmarks/annotation.py OUT.json [--rows 600] [--latency 1.0] [--in-flight 8]

A scripted server answers after a fixed latency and fails by chance; each row is one request that
must succeed. The ideal is what as many good answers take, without an error, at the bound on
requests in flight that the run had on average: rows * latency / bound. A request that fails after
the whole latency has cost a good answer's time, so with a fifth of such failures nothing is below
1.25. A clean run, by the same code on the same machine, stands beside it. Kind: simulated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from machine import describe_machine

from pasta_lm.data.annotate import annotate
from pasta_lm.data.annotate_config import AnnotateConfig, OutputConfig, TeacherConfig
from pasta_lm.data.scripted_teacher import teacher_by_rule
from pasta_lm.data.sources import SourceConfig
from pasta_lm.remote.pace import Pace
from pasta_lm.remote.scripted_server import Faults, ScriptedServer

AIM = 1.3
TIME_OUT = 2.0
"""Of a request, in latencies."""

MIXES = {
    "none": Faults(),
    "500": Faults(server_error=0.2),
    "500, broken replies": Faults(server_error=0.12, truncated=0.04, broken_off=0.04),
    "500, 429": Faults(server_error=0.14, too_many=0.06),
    "500, 429, time-outs, soon": Faults(
        server_error=0.1, too_many=0.06, truncated=0.02, hang=0.02, refusal_latency_s=0.1
    ),
}
"""Shares of all requests; "soon": 429 and 500 come after a tenth of the latency."""


class MeasuredPace(Pace):
    """A pace that knows what its bound was on average."""

    def __init__(self, max_in_flight: int) -> None:
        """Begin to measure."""
        super().__init__(max_in_flight)
        self._began = self._changed_at = time.perf_counter()
        self._area = 0.0

    def grow(self, era: int) -> None:
        """Allow more."""
        self._note()
        super().grow(era)

    def shrink(self, era: int) -> None:
        """Halve the bound."""
        self._note()
        super().shrink(era)

    def mean_limit(self) -> float:
        """Return the bound so far, a whole number at each moment, averaged over time."""
        self._note()
        return self._area / (self._changed_at - self._began)

    def _note(self) -> None:
        now = time.perf_counter()
        self._area += int(self.limit) * (now - self._changed_at)
        self._changed_at = now


def measure(faults: Faults, num_rows: int, latency_s: float, in_flight: int) -> dict[str, float]:
    """Annotate against one mix of failures."""
    soon_s = faults.refusal_latency_s
    faults = replace(
        faults,
        latency_s=latency_s,
        refusal_latency_s=None if soon_s is None else soon_s * latency_s,
    )
    with tempfile.TemporaryDirectory() as name, ScriptedServer(teacher_by_rule(), faults) as server:
        source = write_rows(Path(name) / "rows.jsonl", num_rows)
        config = AnnotateConfig(
            source=SourceConfig(file=str(source)),
            output=OutputConfig(folder=str(Path(name) / "out")),
            teacher=TeacherConfig(
                base_url=server.base_url,
                model="scripted",
                timeout_s=TIME_OUT * latency_s,
                max_in_flight=in_flight,
            ),
        )
        began = time.perf_counter()
        pace = MeasuredPace(in_flight)
        run = annotate(config, pace=pace)
        wall_s, limit = time.perf_counter() - began, pace.mean_limit()
        assert run.is_complete
        assert run.tally.num_rows == {"ok": num_rows}
        ideal_s = num_rows * latency_s / limit
        return {
            "requests": server.num_requests,
            "failed": 1 - num_rows / server.num_requests,
            "mean_limit": limit,
            "wall_s": wall_s,
            "ideal_s": ideal_s,
            "ratio": wall_s / ideal_s,
        }


def write_rows(path: Path, num_rows: int) -> Path:
    """Write short answers of one paragraph."""
    rows = ({"prompt": f"Say {n}.", "answer": f"This is answer {n}."} for n in range(num_rows))
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--latency", type=float, default=1.0)
    parser.add_argument("--in-flight", type=int, default=8)
    args = parser.parse_args()
    mixes: dict[str, dict[str, float]] = {}
    print("| failures | requests | failed | bound, mean | wall, s | ideal, s | ratio |")
    for name, faults in MIXES.items():
        found = mixes[name] = measure(faults, args.rows, args.latency, args.in_flight)
        print(
            f"| {name} | {found['requests']} | {found['failed']:.3f} | {found['mean_limit']:.1f} | "
            f"{found['wall_s']:.1f} | {found['ideal_s']:.1f} | {found['ratio']:.2f} |",
            flush=True,
        )
    result = {
        "kind": "simulated",
        "aim": AIM,
        "rows": args.rows,
        "latency_s": args.latency,
        "max_in_flight": args.in_flight,
        "mixes": mixes,
        "machine": describe_machine(),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
