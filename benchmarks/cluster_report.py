r"""Answer by simulation when forking pays on a cluster, what a sync costs, and how many threads.

    PYTHONPATH=. python benchmarks/cluster_report.py OUT.json OUT.png \
        [--servers benchmarks/results/stock_servers]

Answers are those of corpora/starter, by structure; ``cluster_costs.py`` has the assumptions. With
measured servers (JSON of ``stock_servers.py``) the simulation is checked against them: it gets what
a step costs there by rows, and foretells the runs under load.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.cluster_costs import (
    H100,
    LLAMA_8B,
    LLAMA_70B,
    Cost,
    Fork,
    Measured,
    Plan,
    Roofline,
    Stretch,
    starter_plans,
)
from benchmarks.cluster_simulation import Cluster, Policy, closed, simulate

SERVERS = (Roofline(LLAMA_8B, H100), Roofline(LLAMA_70B, H100, 8))
IN_FLIGHT = (1, 4, 16, 64, 128, 256, 512, 1024)
SCALES = (1.0, 4.0)  # the starter's answers, and the same structures four times as long
THREADS = (1, 2, 3, 4, 6, 8, inf)
ROUNDS = 3  # responses for each one in flight
FEWEST = 64  # responses of a run

SIDES = ("sequential", "pasta")

Pair = tuple[Plan, Plan]


@dataclass(frozen=True)
class ServerKind:
    """How the scripts start a server."""

    block: int  # tokens of a block of the prefix cache
    max_rows: int
    lends: bool  # whether others see the cache of a completion that is being decoded


KINDS = {"vllm": ServerKind(32, 128, True), "llama.cpp": ServerKind(1, 32, False)}


def mean_s(cluster: Cluster) -> float:
    """Return the mean latency of a run."""
    return statistics.mean(one.latency_s for one in cluster.outcomes)


def drawn(pairs: Sequence[Pair], number: int) -> list[Pair]:
    """Return answers drawn by chance, always the same."""
    return random.Random(0).choices(pairs, k=number)


def compare(cost: Cost, pairs: Sequence[Pair], in_flight: int, policy: Policy) -> dict[str, Any]:
    """Return how the same answers fare with forks and without at one load."""
    some = drawn(pairs, max(FEWEST, ROUNDS * in_flight))
    forked = simulate(cost, closed([one for one, _ in some], in_flight), policy=policy)
    plain = simulate(cost, closed([one for _, one in some], in_flight), policy=policy)
    theoretical = sum(one.critical_path for _, one in some) / sum(
        one.critical_path for one, _ in some
    )
    realised = mean_s(plain) / mean_s(forked)
    syncs = [one for outcome in forked.outcomes for one in outcome.sync_s]
    forks = [one for outcome in forked.outcomes for one in outcome.fork_s]
    refed = [one for outcome in forked.outcomes for one in outcome.num_refed]
    (server,) = forked.replicas
    return {
        "in_flight": in_flight,
        "theoretical": round(theoretical, 3),
        "realised": round(realised, 3),
        "efficiency": round(realised / theoretical, 3),
        "sequential_s": round(mean_s(plain), 4),
        "pasta_s": round(mean_s(forked), 4),
        "throughput": round(plain.env.now / forked.env.now, 3),  # with forks over without
        "step_ms": round(1000 * server.busy_s / server.num_steps, 3),
        "rows": round(server.num_decoded / server.num_steps, 1),
        "fork_ms": round(1000 * statistics.mean(forks), 2),
        "sync_ms": round(1000 * statistics.mean(syncs), 2) if syncs else None,
        "refed_at_sync": round(statistics.mean(refed), 1) if refed else None,
        "cached": round(server.num_cached / (server.num_cached + server.num_fed), 3),
    }


def by_load(cost: Cost, scale: float) -> list[dict[str, Any]]:
    """Return the comparison at every load, and what a sync costs without a re-read."""
    pairs = starter_plans(scale)
    found = []
    for in_flight in IN_FLIGHT:
        row = compare(cost, pairs, in_flight, Policy())
        shared = compare(cost, pairs, in_flight, Policy(rereads=False))
        found.append({**row, "sync_ms_shared": shared["sync_ms"]})
    return found


def by_threads(cost: Cost, scale: float) -> list[dict[str, Any]]:
    """Return the mean latency for every limit of threads at some loads."""
    pairs = starter_plans(scale)
    found = []
    for in_flight in (1, 64, 256, 1024):
        some = [one for one, _ in drawn(pairs, max(FEWEST, ROUNDS * in_flight))]
        seconds = {
            str(limit): round(
                mean_s(simulate(cost, closed(some, in_flight), policy=Policy(max_threads=limit))), 4
            )
            for limit in THREADS
        }
        found.append({"in_flight": in_flight, "mean_s": seconds})
    return found


def by_placement(cost: Cost, scale: float) -> list[dict[str, Any]]:
    """Return eight replicas with responses that stay on one, and with completions that do not."""
    pairs = starter_plans(scale)
    found = []
    for in_flight in (8, 128, 1024):
        some = [one for one, _ in drawn(pairs, max(2 * FEWEST, ROUNDS * in_flight))]
        row: dict[str, Any] = {"in_flight": in_flight}
        for name, policy in (("stays", Policy()), ("anywhere", Policy(is_sticky=False))):
            cluster = simulate(cost, closed(some, in_flight), num_replicas=8, policy=policy)
            cached = sum(one.num_cached for one in cluster.replicas)
            fed = sum(one.num_fed for one in cluster.replicas)
            row[name] = {
                "mean_s": round(mean_s(cluster), 4),
                "cached": round(cached / (cached + fed), 3),
            }
        found.append(row)
    return found


# --- measured servers


def plan_from(data: Sequence[Any]) -> Plan:
    """Return a plan from the lists of ``server_load.plan``."""
    num_prompt, stretches = data
    return Plan(
        num_prompt,
        tuple(
            Stretch(num_tokens, tuple(Fork(at, size) for at, size in forks))
            for num_tokens, forks in stretches
        ),
    )


def measured_cost(measured: dict[str, Any]) -> Measured:
    """Return the costs of a server as it was probed, without forks."""
    costs = measured["costs_ms"]
    steps = tuple((rows, step_ms / 1000) for rows, step_ms in costs["steps"])
    return Measured(steps, costs["prefill_token"] / 1000)


def check(measured: dict[str, Any], server: ServerKind) -> dict[str, Any]:
    """Foretell the measured runs, of which none was used for the costs."""
    cost = measured_cost(measured)
    policy = Policy(round_trip_s=measured["costs_ms"]["request"] / 1000)
    rows = []
    for load in measured["loads"]:
        row: dict[str, Any] = {"in_flight": load["in_flight"]}
        for name in SIDES:
            runs = [
                simulate(
                    cost,
                    closed([plan_from(one) for one in plans], load["in_flight"]),
                    policy=policy,
                    block=server.block,
                    max_rows=server.max_rows,
                    lends=server.lends,
                )
                for plans in load[name]["plans"]
            ]
            latencies = [one.latency_s for run in runs for one in run.outcomes]
            (fed, cached) = (
                sum(getattr(replica, key) for run in runs for replica in run.replicas)
                for key in ("num_fed", "num_cached")
            )
            row[name] = {
                "measured_s": round(load[name]["response_s"] / len(latencies), 3),
                "simulated_s": round(statistics.mean(latencies), 3),
                "measured_busy_s": load[name]["busy_s"],
                "simulated_busy_s": round(sum(run.env.now for run in runs), 3),
                "measured_cached": round(
                    load[name]["cached_tokens"] / load[name]["prompt_tokens"], 3
                ),
                "simulated_cached": round(cached / (fed + cached), 3),
            }
        sides = [row[name] for name in SIDES]
        for key, of in (("speedup", "s"), ("throughput", "busy_s")):
            for kind in ("measured", "simulated"):
                before, after = (one[f"{kind}_{of}"] for one in sides)
                row[f"{kind}_{key}"] = round(before / after, 3)
            row[f"error_{key}"] = round(row[f"simulated_{key}"] / row[f"measured_{key}"] - 1, 3)
        rows.append(row)
    return {"server": measured["server"], "costs_ms": measured["costs_ms"], "loads": rows}


# --- all


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw realised over theoretical and the speedup by load, a line for each server."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for one in found["servers"]:
        label = f"{one['server']}, answers x {one['scale']:g}"
        loads = [row["in_flight"] for row in one["by_load"]]
        left.plot(loads, [row["realised"] for row in one["by_load"]], marker="o", label=label)
        right.plot(loads, [row["throughput"] for row in one["by_load"]], marker="o", label=label)
    for axes, title in (
        (left, "realised speedup of a response"),
        (right, "throughput with forks / without"),
    ):
        axes.axhline(1.0, color="gray", linewidth=0.8)
        axes.set(xscale="log", xlabel="responses in flight on one server", title=title)
    left.legend(fontsize=8)
    figure.suptitle("simulated; corpora/starter, positions continue, join recompute")
    figure.savefig(path, dpi=110)


def simulated() -> dict[str, Any]:
    """Simulate everything."""
    found: dict[str, Any] = {"kind": "simulated", "servers": [], "placement": []}
    for cost in SERVERS:
        for scale in SCALES:
            row = {"server": cost.name, "scale": scale}
            found["servers"].append(
                {**row, "by_load": by_load(cost, scale), "by_threads": by_threads(cost, scale)}
            )
            print(json.dumps(row), flush=True)
    found["placement"] = by_placement(replace(SERVERS[0]), SCALES[1])
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--servers", type=Path, help="a folder of measured servers")
    parser.add_argument("--only-checks", action="store_true", help="keep what OUT.json simulated")
    args = parser.parse_args()
    found = json.loads(args.out.read_text()) if args.only_checks else simulated()
    found["checks"] = []
    for file in sorted(args.servers.glob("*.json")) if args.servers else ():
        measured = json.loads(file.read_text())
        if measured.get("costs_ms") and measured["loads"]:
            found["checks"].append(check(measured, KINDS[measured["dialect"]]))
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    plot(found, args.picture)


if __name__ == "__main__":
    main()
