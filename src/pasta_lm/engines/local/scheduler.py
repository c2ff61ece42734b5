"""Choose the requests of the next pass: admission, growth and preemption.

Knows numbers of entries and the pool, nothing of threads, tokens or tensors. Two policies:
*reserve* (the default) admits a request when everything that it can ever need is free; *overcommit*
admits it when its prompt fits, and preempts whole requests, the youngest first and never the
oldest, when the pool runs full. Either way one request always progresses, and none fails half-way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pasta_lm.engines.local.pool import Pool, Run
from pasta_lm.engines.local.prefix import Prefixes
from pasta_lm.errors import RequestError

FIRST_STRETCH = 64  # entries beyond the prompt that an overcommitted run begins with


@dataclass(slots=True, eq=False)
class Ticket:
    """The scheduler's record of one request."""

    arrival: int
    num_entries: int  # entries that must be in the pool: placed so far, the coming pass included
    largest_need: int  # entries that it can come to need (``Request.max_entries``)
    run: Run | None = None
    num_computed: int = 0  # entries whose keys are in the pool; a preemption resets it
    num_preemptions: int = 0
    page_hashes: Sequence[bytes] = ()  # of its prompt, if prompts may share pages
    num_shared: int | None = None  # entries that were copied when it was first admitted


class Scheduler:
    """Admit, grow and preempt requests of one pool."""

    def __init__(
        self,
        pool: Pool,
        *,
        overcommit: bool = False,
        shares_prefixes: bool = False,
        max_running: int = 256,
    ) -> None:
        """Begin empty; ``overcommit`` admits by present instead of largest possible need.

        ``shares_prefixes`` copies the pages of prompts that begin alike; ``max_running`` bounds
        the requests in the pool.
        """
        self._pool = pool
        self._prefixes = Prefixes(pool)
        self._shares_prefixes = shares_prefixes
        self._overcommit = overcommit
        self._max_running = max_running
        self._num_arrived = 0
        self.waiting: deque[Ticket] = deque()
        self._running: list[Ticket] = []

    def submit(self, num_entries: int, largest_need: int, prompt: Sequence[int] = ()) -> Ticket:
        """Queue a request; its prompt is read where prompts share pages.

        Raises:
            RequestError: it could never fit, whoever else is gone.
        """
        if largest_need > self._pool.num_slots:
            raise RequestError(
                f"the request can need {largest_need} cache entries (prompt + n * max_tokens, the "
                f"latter twice with join 'recompute'), but the pool holds {self._pool.num_slots}",
                hint="lower max_tokens or n, or give the engine a larger pool",
            )
        hashes = self._prefixes.page_hashes(prompt) if self._shares_prefixes else ()
        ticket = Ticket(self._num_arrived, num_entries, largest_need, page_hashes=hashes)
        self._num_arrived += 1
        self.waiting.append(ticket)
        return ticket

    def release(self, ticket: Ticket) -> None:
        """Take a request's pages back and forget it."""
        if ticket.run is not None:
            self._prefixes.release(ticket.run)
            ticket.run = None
        if ticket in self._running:
            self._running.remove(ticket)
        elif ticket in self.waiting:
            self.waiting.remove(ticket)

    def schedule(self) -> Iterator[Ticket]:
        """Admit requests that fit, then yield the requests that may run in this pass, oldest first.

        A request that the caller lets grow with ``reserve_pages`` may preempt ones not yet yielded.
        """
        self._admit()
        for ticket in list(self._running):
            if ticket.run is not None:
                yield ticket

    def reserve_pages(self, ticket: Ticket, num_entries: int) -> bool:
        """Make room for a running request's entries; return whether it still runs.

        Preempts the youngest requests until there is room; the request itself if it is the
        youngest that is left and not the oldest of all.
        """
        assert ticket.run is not None
        while not self._pool.can_grow(ticket.run, num_entries):
            victim = self._running[-1]
            self.preempt(victim)
            if victim is ticket:
                return False
        self._pool.grow(ticket.run, self._stretch(ticket, num_entries))
        ticket.num_entries = num_entries
        return True

    def _stretch(self, ticket: Ticket, num_entries: int) -> int:
        """Return the new size of a run: twice its need if free, so that it moves rarely."""
        assert ticket.run is not None
        roomy = min(2 * num_entries, ticket.largest_need)
        return roomy if self._pool.can_grow(ticket.run, roomy) else num_entries

    @property
    def running(self) -> tuple[Ticket, ...]:
        """Return the requests in the pool, oldest first."""
        return tuple(self._running)

    def preempt(self, ticket: Ticket) -> None:
        """Take a running request's pages away; it is computed anew once there is room."""
        assert ticket.run is not None
        self._prefixes.release(ticket.run)
        ticket.run = None
        ticket.num_computed = 0
        ticket.num_preemptions += 1
        self._running.remove(ticket)
        self.waiting.appendleft(ticket)  # victims go youngest first, so this keeps their order

    def _admit(self) -> None:
        while self.waiting and len(self._running) < self._max_running:
            ticket = self.waiting[0]
            need = ticket.largest_need
            if self._overcommit:
                need = min(need, ticket.num_entries + FIRST_STRETCH)
            if not self._pool.can_allocate(need):
                return
            self.waiting.popleft()
            ticket.run = self._allocate(ticket, need)
            self._running.append(ticket)
            self._running.sort(key=lambda other: other.arrival)

    def _allocate(self, ticket: Ticket, need: int) -> Run:
        """Return a new run, with the first pages of the prompt if another run has them."""
        holder = self._prefixes.find(ticket.page_hashes)
        run, num_shared = self._pool.allocate(need), 0
        if holder is not None and self._prefixes.holds(
            holder.run
        ):  # the new run may be in its place
            self._pool.copy_pages(holder.run, run, holder.num_pages)
            num_shared = holder.num_pages * self._pool.page_size
        ticket.num_computed = num_shared
        if ticket.num_shared is None:
            ticket.num_shared = num_shared
        return run

    def computed(self, ticket: Ticket) -> None:
        """Note that a pass has computed what it was given to compute of a request's prompt."""
        num_pages = ticket.num_computed // self._pool.page_size
        if ticket.run is not None and num_pages >= len(ticket.page_hashes):
            self._prefixes.computed(ticket.run, ticket.page_hashes)
