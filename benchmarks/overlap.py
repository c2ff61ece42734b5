"""Measure what could be gained if the host prepared a pass while the device computes the last one.

    PYTHONPATH=. python benchmarks/overlap.py OUT.json [ANSWERS.jsonl[.gz] ...] [--number 40]

Given answers are decoded by paged passes as on a GPU, with a tiny random model. Measured (kind:
replayed) are h, the processor time of a step outside the function that a CUDA graph would run, and
the events of each pass. A thread that forks, ends, waits at a sync or goes on behind one is an
event: it changes the rows of the next pass, or which of them decode. Computed (kind: simulated),
for a device that takes d for a pass, is the time of a step:

    as it is:  h + d
    again:     max(h, d) + p d      The next pass is launched before the tokens of this one are
                                    known, as if none were an event. After an event (p of all
                                    passes) the right pass follows the wrong one, which nobody
                                    can stop; the host's work is hidden behind the wrong one.
    sit out:   (1 + q) max(h, d)    Only responses with an event lose the pass (q of a response's
                                    passes); their right rows are part of the next one.

"new rows only" counts forks and joins alone: after any other event a pass with the old rows has
all that is needed, and rows too many.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

import torch

from benchmarks.host_time import Device, Step, decode, engine_on, requests_of
from pasta_lm.engines.gpu.buckets import power_of_two
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.random_model import random_model, read_architecture, train_tokenizer
from pasta_lm.engines.local.timing import describe_run
from pasta_lm.models.annotated import Record, read_annotated
from pasta_lm.strategies import pasta, sequential

ROOT = Path(__file__).parents[1]
OWN_ANSWERS = ROOT / "corpora" / "starter" / "starter.jsonl"
SHAPE = ROOT / "benchmarks" / "shapes" / "tiny.json"
LOADS = (1, 4, 16, 64)  # responses at once
BANDWIDTH = 3.35e12  # bytes a second of an H100 SXM, by its data sheet
MODELS = {"135M": 135e6, "1.5B": 1.5e9, "7B": 7e9}  # parameters, two bytes each
DEVICE_MS = {name: 2e3 * size / BANDWIDTH for name, size in MODELS.items()}  # no pass is faster
DEVICE_MS |= {f"{ms} ms": ms for ms in (0.5, 1.0, 2.0, 5.0, 10.0)}


def summary(steps: Sequence[Step]) -> dict[str, Any]:
    """Return h, and the shares of passes and of a response's passes that have an event."""
    hosts = [step.host for step in steps if step.host is not None]
    all_events = [one for step in steps for one in step.events]
    kinds = all_events[0]
    return {
        "num_passes": len(steps),
        "num_rows": round(mean(step.num_rows for step in steps), 2),
        "host_us": round(1e6 * median(one.wall_s for one in hosts), 1),
        "host_cpu_us": round(1e6 * median(one.cpu_s for one in hosts), 1),
        "p": {
            kind: round(mean(any(one[kind] for one in step.events) for step in steps), 4)
            for kind in kinds
        },
        "q": {kind: round(mean(one[kind] for one in all_events), 4) for kind in kinds},
    }


def by_rows(steps: Sequence[Step]) -> list[dict[str, float]]:
    """Return h by the number of rows, rounded up to a power of two."""
    groups = defaultdict[int, list[Step]](list)
    for step in steps:
        if step.host is not None:
            groups[power_of_two(step.num_rows)].append(step)
    return [
        {
            "rows_up_to": most,
            "num_passes": len(group),
            "num_responses": round(mean(len(step.events) for step in group), 1),
            **{name: summary(group)[name] for name in ("num_rows", "host_us", "host_cpu_us")},
        }
        for most, group in sorted(groups.items())
    ]


def step_times(host: float, device: float, load: dict[str, Any]) -> dict[str, float]:
    """Return the mean time of a step for each kind of overlap, in the unit of host and device."""
    longer, p, q = max(host, device), load["p"], load["q"]
    return {
        "again": longer + p["any"] * device,
        "again, new rows only": longer + p["new_rows"] * device,
        "sit out": longer * (1 + q["any"]),
        "sit out, new rows only": longer * (1 + q["new_rows"]),
    }


def speeds(load: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the speed with overlap over that without, by device and kind of overlap."""
    host, found = load["host_cpu_us"], {}
    for name, ms in DEVICE_MS.items():
        steps = step_times(host, 1e3 * ms, load)
        found[name] = {kind: round((host + 1e3 * ms) / step, 3) for kind, step in steps.items()}
    return found


def measure(records: Sequence[Record], loads: Sequence[int], loaded: LoadedModel) -> dict[str, Any]:
    """Return the figures of some answers under each load."""
    found, passes = list[dict[str, Any]](), list[Step]()
    for strategy in (sequential.NAME, pasta.NAME):
        requests = requests_of(loaded, records, strategy)
        num_entries = max(loads) * (max(one.max_entries for one in requests) + 16)
        devices = Device(), Device(computes=False)
        engines = [engine_on(device, loaded, num_entries) for device in devices]
        for in_flight in loads:
            wanted = list(islice(cycle(requests), max(len(requests), 2 * in_flight)))
            steps, warm = (
                decode(engine, device, wanted, in_flight)
                for engine, device in zip(engines, devices, strict=True)
            )
            passes += steps
            load = {"strategy": strategy, "in_flight": in_flight, **summary(steps)}
            load["host_warm_us"] = summary(warm)["host_cpu_us"]
            found.append({**load, "speed": speeds(load)})
    return {"num_answers": len(records), "loads": found, "host_by_rows": by_rows(passes)}


def print_tables(name: str, found: dict[str, Any]) -> None:
    """Print what was found for one file of answers."""
    print(f"\n{name}, {found['num_answers']} answers: time of a step on the host")
    print("  rows up to  responses  passes   wall us   cpu us")
    for one in found["host_by_rows"]:
        print(
            f"{one['rows_up_to']:12}{one['num_responses']:11}{one['num_passes']:8}"
            f"{one['host_us']:10}{one['host_cpu_us']:9}"
        )
    print("speed with overlap over that without, by the time of a pass on the device")
    names = "".join(f"{name:>8}" for name in DEVICE_MS)
    print(f"{'':38}{'h us':>7}{'p':>7}{'q':>7}{names}")
    for one in found["loads"]:
        figures = f"{one['host_cpu_us']:7.0f}{one['p']['any']:7.3f}{one['q']['any']:7.3f}"
        for kind in one["speed"]["7B"]:
            speeds = "".join(f"{speed[kind]:8.2f}" for speed in one["speed"].values())
            print(f"{one['strategy']:11}{one['in_flight']:3} {kind:23}{figures}{speeds}")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("answers", type=Path, nargs="*", default=[OWN_ANSWERS])
    parser.add_argument("--number", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"kinds": {"h, p and q": "replayed", "speed": "simulated"}}
    result |= {"device_ms": DEVICE_MS, "answers": {}}
    for path in args.answers:
        answers = [one for one in read_annotated(path).records if len(one.document.blocks) >= 2]
        Random(0).shuffle(answers)
        tokenizer = train_tokenizer(one.document.plain_text for one in answers)
        loaded = random_model(read_architecture(SHAPE), tokenizer, name=SHAPE.stem)
        found = measure(answers[: args.number], LOADS, loaded)
        result["answers"][path.name] = found
        result["run"] = describe_run(loaded)
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print_tables(path.name, found)


if __name__ == "__main__":
    main()
