"""Simulate servers of completions that decode annotated answers, one completion a thread.

Discrete events, with simpy. A replica runs one step after another: every running sequence decodes
a token, prompts are fed in what room a step has left (continuous batching, prompts in parts). Keys
and values of what two sequences begin with are kept once, and after a sequence's end as long as
there is room (prefix cache, in blocks, least recently used out first).

Simplified: memory is reserved for all that a sequence will decode, so none is preempted; lengths
are known; a response's requests take the same time to arrive.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import simpy

from benchmarks.cluster_costs import Cost, Fork, Plan

BLOCK = 16  # tokens; vLLM's default on GPUs
MAX_ROWS = 1024  # vLLM's default max_num_seqs on an H100
MAX_BATCHED = 8192  # tokens of a step; vLLM's default max_num_batched_tokens on an H100
SAME_MOMENT_S = 1e-9  # what arrives when a step ends takes part in the next one
ROUND_TRIP_S = 1e-3  # from an engine to a server in the same room; assumed

Process = Generator[simpy.Event, Any, None]


@dataclass(eq=False)
class Entry:
    """The keys and values that one sequence computed."""

    num_tokens: int
    home: Memory | None = None  # None: everywhere
    num_pins: int = 0
    is_there: bool = True


Chain = tuple[tuple[Entry, int], ...]
"""The entries that a text is made of, in order, with how many tokens each gives."""


def head(chain: Chain, num_tokens: int) -> Chain:
    """Return the first tokens of a text."""
    found = []
    for entry, size in chain:
        if num_tokens <= 0:
            break
        found.append((entry, min(size, num_tokens)))
        num_tokens -= size
    return tuple(found)


class Memory:
    """The keys and values of a replica: those in use, and those that are kept.

    Attributes:
        in_use: Tokens of completions that run.
        num_kept: Tokens that are kept beside them.
    """

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.in_use = 0
        self.num_kept = 0
        self._kept: dict[Entry, None] = {}  # unpinned, the oldest first

    def take(self, entry: Entry) -> None:
        """Use an entry that is there."""
        assert entry.is_there
        entry.num_pins += 1
        if entry.num_pins == 1:
            if entry in self._kept:
                del self._kept[entry]
                self.num_kept -= entry.num_tokens
            self.in_use += entry.num_tokens
            self._make_room()

    def give_back(self, entry: Entry) -> None:
        """Use an entry no more; it stays as long as there is room."""
        entry.num_pins -= 1
        if not entry.num_pins:
            self.in_use -= entry.num_tokens
            self.num_kept += entry.num_tokens
            self._kept[entry] = None

    def has_room(self, num_tokens: int) -> bool:
        """Return whether so many tokens more can be used."""
        return self.in_use + num_tokens <= self.capacity

    def _make_room(self) -> None:
        while self._kept and self.in_use + self.num_kept > self.capacity:
            oldest = next(iter(self._kept))
            oldest.is_there = False
            self.num_kept -= oldest.num_tokens
            del self._kept[oldest]


@dataclass(eq=False)
class Completion:
    """One completion."""

    prefix: Chain  # what may be cached, from the beginning
    num_prompt: int  # all tokens of the prompt
    num_new: int  # tokens to decode
    done: simpy.Event
    marks: deque[tuple[int, simpy.Event]] = field(default_factory=deque)
    first: simpy.Event | None = None
    entry: Entry = field(default_factory=lambda: Entry(0))
    num_cached: int = 0
    num_to_feed: int = 0
    num_decoded: int = 0

    @property
    def chain(self) -> Chain:
        """Return its whole text: the cached part, and what it computed."""
        return (*head(self.prefix, self.num_cached), (self.entry, self.entry.num_tokens))

    def take_token(self, now: float) -> None:
        """Count one decoded token and tell who waits for it."""
        self.num_decoded += 1
        if self.first is not None and self.num_decoded == 1:
            self.first.succeed(now)
        while self.marks and self.marks[0][0] <= self.num_decoded:
            self.marks.popleft()[1].succeed(now)


class Replica:
    """One server."""

    def __init__(
        self,
        env: simpy.Environment,
        cost: Cost,
        *,
        max_rows: int = MAX_ROWS,
        block: int = BLOCK,
        lends: bool = True,
    ) -> None:
        self.env, self.cost, self.block, self.lends = env, cost, block, lends
        self.max_rows = max_rows
        self.memory = Memory(cost.capacity)
        self.running: list[Completion] = []
        self.waiting: deque[Completion] = deque()
        self.num_responses = 0
        self.num_steps = self.num_fed = self.num_cached = self.num_decoded = 0
        self.busy_s = 0.0
        self._wake = env.event()
        env.process(self._run())

    def submit(self, sequence: Completion) -> None:
        """Queue a completion."""
        self.waiting.append(sequence)
        if not self._wake.triggered:
            self._wake.succeed()

    def _run(self) -> Process:
        while True:
            self._admit()
            if not self.running:
                self._wake = self.env.event()
                yield self._wake
                continue
            rows = [one for one in self.running if not one.num_to_feed]
            feeding = self._feed(MAX_BATCHED - len(rows))
            fed = sum(amount for _, amount in feeding)
            context = sum(one.num_prompt + one.num_decoded for one in rows)
            step_s = self.cost.step_s(len(rows), context, fed)
            yield self.env.timeout(step_s)
            self.num_steps, self.busy_s = self.num_steps + 1, self.busy_s + step_s
            self.num_fed += fed
            for one, amount in feeding:
                one.num_to_feed -= amount
            # The pass that feeds the last token of a prompt gives the first new one.
            for one in [*rows, *(one for one, _ in feeding if not one.num_to_feed)]:
                self._decode(one)
            yield self.env.timeout(SAME_MOMENT_S)

    def _feed(self, room: int) -> list[tuple[Completion, int]]:
        feeding = []
        for one in self.running:
            if one.num_to_feed and room > 0:
                amount = min(one.num_to_feed, room)
                feeding.append((one, amount))
                room -= amount
        return feeding

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_rows:
            one = self.waiting[0]
            cached = self._cached(one)
            needed = one.num_prompt - cached + one.num_new
            pinned = head(one.prefix, cached)
            resting = sum(entry.num_tokens for entry, _ in pinned if not entry.num_pins)
            if self.running and not self.memory.has_room(needed + resting):
                return
            self.waiting.popleft()
            one.num_cached, one.num_to_feed = cached, one.num_prompt - cached
            one.entry.num_tokens, one.entry.home = needed, self.memory
            for entry, _ in pinned:
                self.memory.take(entry)
            self.memory.take(one.entry)
            self.num_cached += cached
            self.running.append(one)

    def _cached(self, one: Completion) -> int:
        """Return the tokens of a prompt that are in the cache: whole blocks, never the last one."""
        found = 0
        for entry, size in one.prefix:
            if not entry.is_there or entry.home not in (None, self.memory):
                break
            if entry.num_pins and not self.lends:  # llama.cpp: of a slot that decodes
                break
            found += size
        return min(found, one.num_prompt - 1) // self.block * self.block

    def _decode(self, one: Completion) -> None:
        one.take_token(self.env.now)
        self.num_decoded += 1
        if one.num_decoded == one.num_new:
            self.running.remove(one)
            for entry, _ in head(one.prefix, one.num_cached):
                self.memory.give_back(entry)
            self.memory.give_back(one.entry)
            one.done.succeed(self.env.now)


@dataclass
class Outcome:
    """One response."""

    plan: Plan
    arrived_s: float
    ended_s: float = 0.0
    fork_s: list[float] = field(default_factory=list)  # from a promise to its block's first token
    sync_s: list[float] = field(default_factory=list)  # from the last block's end to main's token
    num_refed: list[int] = field(default_factory=list)  # tokens that each sync feeds again

    @property
    def latency_s(self) -> float:
        """Return the seconds from arrival to end."""
        return self.ended_s - self.arrived_s


@dataclass(frozen=True)
class Policy:
    """How responses are decoded."""

    max_threads: float = inf
    rereads: bool = True  # False: join ``shared``, as an engine that is made for it
    is_sticky: bool = True  # False: each completion goes to the replica with the fewest rows
    round_trip_s: float = ROUND_TRIP_S


class Cluster:
    """Replicas of one model, and the responses that they decode."""

    def __init__(
        self,
        env: simpy.Environment,
        replicas: Sequence[Replica],
        policy: Policy = Policy(),
    ) -> None:
        self.env, self.replicas, self.policy = env, replicas, policy
        self.outcomes: list[Outcome] = []
        self.num_arrived = 0
        self.response_seconds = 0.0  # the integral of the responses inside, for Little's law
        self._num_inside, self._changed_s = 0, 0.0

    def _count(self, change: int) -> None:
        self.response_seconds += self._num_inside * (self.env.now - self._changed_s)
        self._num_inside, self._changed_s = self._num_inside + change, self.env.now

    def respond(self, plan: Plan) -> Process:
        """Decode one answer; a process of simpy."""
        self._count(1)
        self.num_arrived += 1
        outcome = Outcome(plan, self.env.now)
        home = min(self.replicas, key=lambda one: one.num_responses)
        home.num_responses += 1
        threads = simpy.Resource(self.env, min(self.policy.max_threads, 10**6))
        text: Chain = ()
        num_text, waited_since = plan.num_prompt, None
        for stretch in plan.stretches:
            with threads.request() as thread:
                yield thread
                main = self._sequence(text, num_text, stretch.num_tokens)
                blocks = []
                for fork in stretch.forks:
                    mark = self.env.event()
                    main.marks.append((fork.at, mark))
                    blocks.append(
                        self.env.process(self._block(mark, main, fork, threads, outcome, home))
                    )
                if waited_since is not None:
                    main.first = self.env.event()
                yield self.env.timeout(self.policy.round_trip_s)
                self._place(home).submit(main)
                if main.first is not None:
                    yield main.first
                    outcome.sync_s.append(self.env.now - waited_since)
                    outcome.num_refed.append(num_text - main.num_cached)
                yield main.done
            found = yield self.env.all_of(blocks)
            waited_since = self.env.now
            sequences = [found[block] for block in blocks]
            text, num_text = self._written(main, stretch.forks, sequences)
        outcome.ended_s = self.env.now
        home.num_responses -= 1
        self.outcomes.append(outcome)
        self._count(-1)

    def _block(
        self,
        mark: simpy.Event,
        main: Completion,
        fork: Fork,
        threads: simpy.Resource,
        outcome: Outcome,
        home: Replica,
    ) -> Generator[simpy.Event, Any, Completion]:
        promised_s = yield mark
        with threads.request() as thread:
            yield thread
            behind = main.num_prompt + fork.at
            block = self._sequence(head(main.chain, behind), behind + 1, fork.num_tokens)
            block.first = self.env.event()
            yield self.env.timeout(self.policy.round_trip_s)
            self._place(home).submit(block)
            outcome.fork_s.append((yield block.first) - promised_s)
            yield block.done
        return block

    def _sequence(self, prefix: Chain, num_prompt: int, num_new: int) -> Completion:
        return Completion(prefix, num_prompt, num_new, self.env.event())

    def _place(self, home: Replica) -> Replica:
        if self.policy.is_sticky:
            return home
        return min(self.replicas, key=lambda one: len(one.running) + len(one.waiting))

    def _written(
        self, main: Completion, forks: tuple[Fork, ...], blocks: list[Completion]
    ) -> tuple[Chain, int]:
        """Return the written form behind a sync: what of it may be cached, and its length."""
        inside = sum(1 + fork.num_tokens for fork in forks)
        num_text = main.num_prompt + main.num_new + inside
        if not self.policy.rereads:
            return ((Entry(num_text, num_pins=1), num_text),), num_text  # nothing is fed
        if not forks:
            return main.chain, num_text
        # The first block stands where it was decoded; all behind it stands elsewhere now.
        first = blocks[0]
        return head(first.chain, first.num_prompt + first.num_new), num_text


def simulate(
    cost: Cost,
    arrivals: Callable[[Cluster], Iterable[simpy.Event] | Process],
    *,
    num_replicas: int = 1,
    policy: Policy = Policy(),
    max_rows: int = MAX_ROWS,
    block: int = BLOCK,
    lends: bool = True,
) -> Cluster:
    """Run until every response has ended."""
    env = simpy.Environment()
    replicas = [
        Replica(env, cost, max_rows=max_rows, block=block, lends=lends) for _ in range(num_replicas)
    ]
    cluster = Cluster(env, replicas, policy)
    env.process(arrivals(cluster))  # type: ignore[arg-type]
    env.run()
    return cluster


def closed(plans: Sequence[Plan], in_flight: int) -> Callable[[Cluster], Process]:
    """Return arrivals that keep so many responses in flight until the plans are used up."""

    def user(cluster: Cluster, queue: deque[Plan]) -> Process:
        while queue:
            yield cluster.env.process(cluster.respond(queue.popleft()))

    def arrivals(cluster: Cluster) -> Process:
        queue = deque(plans)
        yield cluster.env.all_of(
            [cluster.env.process(user(cluster, queue)) for _ in range(in_flight)]
        )

    return arrivals


def poisson(plans: Sequence[Plan], rate: float, seed: int = 0) -> Callable[[Cluster], Process]:
    """Return arrivals at random, so many a second."""
    rng = random.Random(seed)

    def arrivals(cluster: Cluster) -> Process:
        for plan in plans:
            yield cluster.env.timeout(rng.expovariate(rate))
            cluster.env.process(cluster.respond(plan))

    return arrivals
