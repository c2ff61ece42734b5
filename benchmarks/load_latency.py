"""Measure latency against load as ``pasta bench load`` does, by the processor's clock, and draw it.

    python benchmarks/load_latency.py ANSWERS.jsonl OUT.json [--svg OUT.svg] [--requests 1,2,4,8]

All requests arrive at once and one thread decodes, so seconds of the processor are what the clock
would say on a machine that does nothing else (kind: replayed). The shortest answers of three blocks
or more are used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pasta_lm.engines.local.loading import load
from pasta_lm.measure.engine_load import STRATEGIES, LoadBenchmark, measure_load
from pasta_lm.models.annotated import read_records
from pasta_lm.strategies.model import BUILTIN

COLOURS = ("#888888", "#2f6db5", "#c0562f")
WIDTH, HEIGHT, MARGIN = 640, 360, 56


def draw(found: Mapping[str, Any]) -> str:
    """Return the medians of all strategies over the number of requests as an SVG."""
    loads = found["loads"]
    most = max(one[name]["latency_s"]["p50"] for one in loads for name in STRATEGIES)
    step = (WIDTH - 2 * MARGIN) / max(1, len(loads) - 1)

    def place(index: int, seconds: float) -> tuple[float, float]:
        return MARGIN + index * step, HEIGHT - MARGIN - seconds / most * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    for index, one in enumerate(loads):
        x, y = place(index, 0.0)
        parts.append(f'<text x="{x}" y="{y + 20}" text-anchor="middle">{one["requests"]}</text>')
    for share in (0.0, 0.5, 1.0):
        x, y = place(0, share * most)
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{share * most:.1f}</text>')
        parts.append(f'<path d="M{x} {y}H{WIDTH - MARGIN}" stroke="#dddddd"/>')
    for number, (name, colour) in enumerate(zip(STRATEGIES, COLOURS, strict=True)):
        line = [place(i, one[name]["latency_s"]["p50"]) for i, one in enumerate(loads)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{MARGIN + 12}" y="{MARGIN + 18 * number}" fill="{colour}">{name}</text>'
        )
    parts.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">requests at once</text>'
        f'<text x="8" y="20">median latency, seconds of the processor</text></svg>\n'
    )
    return "\n".join(parts)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--model", default=BUILTIN)
    parser.add_argument("--requests", default="1,2,4,8,16,32")
    args = parser.parse_args()
    time.perf_counter = time.process_time
    torch.set_num_threads(1)
    requests = tuple(map(int, args.requests.split(",")))
    records = [one for one in read_records(args.answers) if len(one.document.blocks) > 2]
    records.sort(key=lambda one: len(one.document.plain_text))
    settings = LoadBenchmark(requests=requests, pool_tokens=16_384)
    found = measure_load(
        load(args.model),
        records[: max(requests)],
        settings,
        lambda done, total: print(f"{done} of {total}", file=sys.stderr, flush=True),
    )
    found["clock"] = "processor"
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.svg is not None:
        args.svg.write_text(draw(found), encoding="utf-8")


if __name__ == "__main__":
    main()
