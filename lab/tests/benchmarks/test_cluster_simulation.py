"""Laws of the cluster simulation: what must hold whatever the costs are."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from benchmarks.cluster_costs import (
    H100,
    H200,
    LLAMA_8B,
    LLAMA_70B,
    Fork,
    Linear,
    Measured,
    Plan,
    Roofline,
    Stretch,
    plan_of,
)
from benchmarks.cluster_report import KINDS, ServerKind, check, plan_from
from benchmarks.cluster_simulation import Cluster, Policy, closed, poisson, simulate
from pasta_lm.language.document import parse

STEP_S = 0.01
CONSTANT = Linear(STEP_S, 0.0, 0.0)
AT_ONCE = Policy(round_trip_s=0.0)
FORKED = Plan(20, (Stretch(30, (Fork(5, 40), Fork(9, 12))), Stretch(8, (Fork(3, 2),)), Stretch(4)))


def random_plan(rng: random.Random) -> Plan:
    stretches = []
    for _ in range(rng.randint(1, 3)):
        num_tokens = rng.randint(1, 30)
        places = sorted(rng.sample(range(num_tokens), rng.randint(0, min(4, num_tokens - 1))))
        forks = tuple(Fork(at, rng.randint(1, 25)) for at in places if at)
        stretches.append(Stretch(num_tokens, forks))
    return Plan(rng.randint(1, 60), tuple(stretches))


def some_plans(number: int = 40) -> list[Plan]:
    rng = random.Random(1)
    return [random_plan(rng) for _ in range(number)]


def latencies(cluster: Cluster) -> list[float]:
    return [one.latency_s for one in cluster.outcomes]


def test_a_sequential_answer_takes_the_sum_of_its_steps() -> None:
    cost, plan = Linear(0.01, 0.002, 0.0005), Plan(50, (Stretch(10),))
    (latency,) = latencies(simulate(cost, closed([plan], 1), policy=AT_ONCE))
    feeding_s, decoding_s = cost.step_s(0, 0, 50), cost.step_s(1, 50, 0)
    assert latency == pytest.approx(feeding_s + 9 * decoding_s)


@pytest.mark.parametrize("plan", [FORKED, *some_plans(10)])
def test_with_steps_of_one_cost_an_answer_takes_its_critical_path(plan: Plan) -> None:
    (latency,) = latencies(simulate(CONSTANT, closed([plan], 1), policy=AT_ONCE))
    assert latency == pytest.approx(STEP_S * plan.critical_path)


def test_with_one_thread_an_answer_takes_all_its_tokens() -> None:
    policy = replace(AT_ONCE, max_threads=1)
    (latency,) = latencies(simulate(CONSTANT, closed([FORKED], 1), policy=policy))
    assert latency == pytest.approx(STEP_S * FORKED.num_tokens)


def test_more_threads_never_take_longer_if_a_step_costs_the_same() -> None:
    found = []
    for max_threads in (1, 2, 3, inf):
        policy = replace(AT_ONCE, max_threads=max_threads)
        found += latencies(simulate(CONSTANT, closed([FORKED], 1), policy=policy))
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


def run_of(name: str) -> Cluster:
    gpu = Roofline(LLAMA_8B, replace(H100, memory=16.06e9 / 0.9 + 131_072 * 4_000))
    arrivals = poisson(some_plans(), 30.0) if name.startswith("open") else closed(some_plans(), 7)
    policy = {
        "open": Policy(),
        "open, two threads": Policy(max_threads=2),
        "closed, anywhere": Policy(is_sticky=False),
        "closed, shared": Policy(rereads=False),
    }[name]
    num_replicas = 3 if "anywhere" in name else 1
    return simulate(gpu, arrivals, num_replicas=num_replicas, policy=policy, max_rows=9)


RUNS = ["open", "open, two threads", "closed, anywhere", "closed, shared"]


@pytest.mark.parametrize("name", RUNS)
def test_no_response_and_no_token_is_lost_and_memory_comes_back(name: str) -> None:
    cluster, plans = run_of(name), some_plans()
    assert cluster.num_arrived == len(cluster.outcomes) == len(plans)
    decoded = sum(replica.num_decoded for replica in cluster.replicas)
    assert decoded == sum(plan.num_tokens for plan in plans)
    for replica in cluster.replicas:
        assert (replica.running, [*replica.waiting]) == ([], [])
        assert replica.memory.in_use == 0
        assert replica.memory.num_kept <= replica.memory.capacity


@pytest.mark.parametrize("name", RUNS)
def test_littles_law_holds(name: str) -> None:
    cluster = run_of(name)
    assert cluster.response_seconds == pytest.approx(sum(latencies(cluster)))


def test_prompts_are_fed_or_cached_and_nothing_else() -> None:
    cluster = simulate(CONSTANT, closed([FORKED], 1), policy=AT_ONCE, block=1)
    (replica,), (outcome,) = cluster.replicas, cluster.outcomes
    # The two stretches behind a sync, and what a fork feeds: <async> alone, or the whole prompt
    # minus what is cached.
    first = 20 + 30 + 41 + 13  # the prompt, the first stretch with its sync, both blocks
    second = first + 8 + 3
    # Cached is what stands up to the end of the first block: its own completion was that text.
    assert outcome.num_refed == [first - (20 + 5 + 41), second - (first + 3 + 3)]
    assert replica.num_fed == 20 + 3 + sum(outcome.num_refed)


def test_a_fork_on_another_replica_feeds_what_main_has_decoded() -> None:
    plan = Plan(200, (Stretch(40, (Fork(20, 30),)),))
    policy = replace(AT_ONCE, is_sticky=False)
    cluster = simulate(CONSTANT, closed([plan], 1), num_replicas=2, policy=policy, block=1)
    assert sum(replica.num_fed for replica in cluster.replicas) == 200 + 221
    assert sum(replica.num_cached for replica in cluster.replicas) == 0


def test_a_cache_without_room_forgets_the_oldest() -> None:
    plans = [Plan(100, (Stretch(10, (Fork(2, 60),)), Stretch(10)))] * 2
    small = replace(CONSTANT, capacity=300)
    few = simulate(small, closed(plans, 2), policy=AT_ONCE, block=1)
    many = simulate(CONSTANT, closed(plans, 2), policy=AT_ONCE, block=1)
    assert few.replicas[0].num_cached < many.replicas[0].num_cached
    assert few.replicas[0].num_decoded == many.replicas[0].num_decoded


@pytest.mark.parametrize(
    ("model", "num_gpus", "published_s"), [(LLAMA_8B, 1, 0.833), (LLAMA_70B, 4, 2.077)]
)
def test_the_published_latencies_are_met(model: object, num_gpus: int, published_s: float) -> None:
    cost = Roofline(model, H200, num_gpus)  # type: ignore[arg-type]
    plans = [Plan(32, (Stretch(128),))] * 8
    cluster = simulate(cost, closed(plans, 8), policy=AT_ONCE)
    assert max(latencies(cluster)) == pytest.approx(published_s, rel=0.05)


def a_measured_server(cost: Linear, server: ServerKind) -> dict[str, Any]:
    """Return what a server with these costs would measure, in the form of ``server_load.py``."""
    data = [200, [[30, [[5, 20], [9, 12]]], [8, []]]]
    plain = [200, [[60, []]]]
    loads = []
    for in_flight in (1, 4, 16):
        row: dict[str, Any] = {"in_flight": in_flight}
        for name, plan in (("sequential", plain), ("pasta", data)):
            plans = [plan] * in_flight
            runs = [
                simulate(
                    cost,
                    closed([plan_from(one) for one in plans], in_flight),
                    block=server.block,
                    max_rows=server.max_rows,
                    lends=server.lends,
                )
                for _ in range(2)
            ]
            replicas = [run.replicas[0] for run in runs]
            cached = sum(one.num_cached for one in replicas)
            row[name] = {
                "plans": [plans, plans],
                "response_s": sum(sum(latencies(run)) for run in runs),
                "busy_s": sum(run.env.now for run in runs),
                "cached_tokens": cached,
                "prompt_tokens": cached + sum(one.num_fed for one in replicas),
            }
        loads.append(row)
    steps = [[rows, 1000 * cost.step_s(rows, 0, 0)] for rows in (1, 4, 16)]
    costs = {"steps": steps, "prefill_token": 1000 * cost.prefill_s, "request": 1.0}
    return {"server": "mine", "costs_ms": costs, "loads": loads}


@pytest.mark.parametrize("server", KINDS.values(), ids=KINDS)
def test_a_server_with_linear_costs_is_foretold(server: ServerKind) -> None:
    measured = a_measured_server(Linear(0.02, 0.003, 0.0002), server)
    for row in check(measured, server)["loads"]:
        assert (row["error_speedup"], row["error_throughput"]) == (
            pytest.approx(0, abs=0.02),
            pytest.approx(0, abs=0.02),
        )
        assert row["pasta"]["simulated_cached"] == row["pasta"]["measured_cached"]


def test_a_measured_step_lies_between_those_of_fewer_and_of_more_rows() -> None:
    cost = Measured(((1, 0.01), (4, 0.04), (8, 0.05)), 0.001)
    found = [cost.step_s(rows, 0, 0) for rows in (0, 1, 2, 4, 6, 8, 16)]
    assert found == pytest.approx([0.01, 0.01, 0.02, 0.04, 0.045, 0.05, 0.07])
    assert cost.step_s(8, 500, 10) == pytest.approx(0.06)


def test_a_server_that_lends_no_cache_feeds_a_forks_prompt_again() -> None:
    plan = Plan(200, (Stretch(40, (Fork(20, 30),)), Stretch(5)))
    lending, keeping = (
        simulate(CONSTANT, closed([plan], 1), policy=AT_ONCE, block=1, lends=lends).replicas[0]
        for lends in (True, False)
    )
    # The fork's 220 tokens; the sync reads what has ended then.
    assert keeping.num_fed == lending.num_fed + 220


def test_a_document_is_counted_as_it_is_decoded() -> None:
    written = (
        'One two.<promise topic="a b" tokens="1"/><async>one two three</async> And'
        '<promise topic="c" tokens="1"/><async>one</async><sync/>End.'
    )
    plan = plan_of(parse(written), "a prompt")
    first, second = plan.stretches
    # 1.3 tokens a word, rounded: two words are 3, three are 4; two pieces around a topic.
    assert first.forks == (Fork(3 + 2 + 3, 4 + 1), Fork(8 + 1 + 2 + 1, 1 + 1))
    assert (first.num_tokens, second) == (12 + 1, Stretch(1 + 1))
    assert plan.critical_path == max(13, 8 + 5, 12 + 2) + 2
