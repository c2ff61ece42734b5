"""Choose the requests of the next pass: admission, growth, preemption and common prompts.

Knows numbers of entries and the pool, nothing of threads or tensors. A request is admitted when its
prompt and a first stretch of its answer fit; whole requests are preempted, the youngest first and
never the oldest, when the pool runs full. So one always progresses, and none fails half-way.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from weakref import proxy

from pasta_lm.engines.passes.pool import Pool, Run
from pasta_lm.errors import RequestError

MAX_RUNNING = 256  # requests
FIRST_STRETCH = 256  # entries beyond the prompt that a run begins with


class Prefixes:
    """The pages of conversations that a pool holds, by the hash of all tokens up to their end.

    Pages that a run holds, running or kept, are copied to a new one: attention reads one run of
    consecutive pages, and a copy costs a hundredth of the computation.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._holders: defaultdict[bytes, list[Run]] = defaultdict(list)
        self.known: dict[int, Sequence[bytes]] = {}  # pages of each run, by its identity
        prefixes = proxy(self)  # else pool and prefixes would hold each other
        pool.on_evict = lambda run: prefixes._forget(run)

    def page_hashes(self, prompt: Sequence[int]) -> list[bytes]:
        """Return a hash for each full page of a prompt; its last token is always computed."""
        size, hashes, last = self._pool.page_size, list[bytes](), b""
        for end in range(size, len(prompt), size):
            page = array("q", prompt[end - size : end]).tobytes()
            last = blake2b(last + page, digest_size=16).digest()
            hashes.append(last)
        return hashes

    def find(self, hashes: Sequence[bytes]) -> tuple[Run, int] | None:
        """Return the run with the most first pages of a prompt, and their number; touch the run."""
        for num_pages in range(len(hashes), 0, -1):
            if holders := self._holders.get(hashes[num_pages - 1]):
                self._pool.touch(holders[-1])
                return holders[-1], num_pages
        return None

    def computed(self, run: Run, hashes: Sequence[bytes]) -> None:
        """Note that a run holds these pages; those that it is known to hold come first."""
        known = self.known.get(id(run), ())
        if id(run) not in self.known or len(hashes) > len(known):
            self.known[id(run)] = hashes
            for page_hash in hashes[len(known) :]:
                self._holders[page_hash].append(run)

    def release(self, run: Run) -> None:
        """Give a run back to the pool: kept, if it holds a page that no other run holds."""
        hashes = self.known.get(id(run), ())
        if any(len(self._holders[page_hash]) == 1 for page_hash in hashes):
            self._pool.keep(run, len(hashes))
        else:
            self._pool.free(run)
            self._forget(run)

    def _forget(self, run: Run) -> None:
        for page_hash in self.known.pop(id(run), ()):
            self._holders[page_hash].remove(run)
            if not self._holders[page_hash]:
                del self._holders[page_hash]


@dataclass(slots=True, eq=False)
class Ticket:
    """The scheduler's record of one request."""

    arrival: int
    num_entries: int  # entries that must be in the pool: placed so far, the coming pass included
    largest_need: int  # entries that it can come to need (``Request.max_entries``)
    run: Run | None = None
    num_computed: int = 0  # entries whose keys are in the pool; a preemption resets it
    num_preemptions: int = 0
    page_hashes: Sequence[bytes] = ()  # those of its prompt, if prompts may share pages
    num_shared: int | None = None  # entries that were copied when it was first admitted


class Scheduler:
    """Admit, grow and preempt requests of a pool; ``shares_prefixes`` copies common pages."""

    def __init__(self, pool: Pool, *, shares_prefixes: bool = False) -> None:
        self._pool, self._prefixes = pool, Prefixes(pool)
        self._shares_prefixes = shares_prefixes
        self._num_arrived = 0
        self.waiting: deque[Ticket] = deque()
        self.running: list[Ticket] = []

    def submit(self, num_entries: int, largest_need: int, prompt: Sequence[int] = ()) -> Ticket:
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

    def has_room(self, num_entries: int, largest_need: int) -> bool:
        needs = [_first_need(ticket.num_entries, ticket.largest_need) for ticket in self.waiting]
        num_pages = map(self._pool.pages_for, [*needs, _first_need(num_entries, largest_need)])
        is_idle = not self.running and not self.waiting
        return is_idle or sum(num_pages) <= self._pool.num_free_pages

    def release(self, ticket: Ticket, text: Sequence[int] = ()) -> None:
        """Take a request's pages back; the next turn may go on behind their plain ``text``."""
        if ticket.run is not None:
            if self._shares_prefixes:
                hashes = self._prefixes.page_hashes(text[: ticket.num_computed])
                self._prefixes.computed(ticket.run, hashes)
            self._prefixes.release(ticket.run)
            ticket.run = None
        for queue in (self.running, self.waiting):
            if ticket in queue:
                queue.remove(ticket)

    def schedule(self) -> Iterator[Ticket]:
        """Admit requests that fit, then yield those that may run in this pass, oldest first.

        ``reserve_pages`` may preempt ones not yet yielded.
        """
        while self.waiting and len(self.running) < MAX_RUNNING:
            ticket = self.waiting[0]
            need = _first_need(ticket.num_entries, ticket.largest_need)
            if self._pool.pages_for(need) > self._pool.num_free_pages:
                break
            self.waiting.popleft()
            ticket.run = self._allocate(ticket, need)
            self.running.append(ticket)
            self.running.sort(key=lambda other: other.arrival)
        yield from (ticket for ticket in list(self.running) if ticket.run is not None)

    def reserve_pages(self, ticket: Ticket, num_entries: int) -> bool:
        """Make room for a running request's entries; return whether it still runs.

        Preempts the youngest requests until there is room, perhaps itself, never the oldest.
        """
        assert ticket.run is not None
        while not self._pool.can_grow(ticket.run, num_entries):
            victim = self.running[-1]
            self.preempt(victim)
            if victim is ticket:
                return False
        roomy = min(2 * num_entries, ticket.largest_need)  # so that it moves rarely
        is_free = self._pool.can_grow(ticket.run, roomy)
        self._pool.grow(ticket.run, roomy if is_free else num_entries)
        ticket.num_entries = num_entries
        return True

    def preempt(self, ticket: Ticket) -> None:
        """Take a running request's pages away; it is computed anew once there is room."""
        assert ticket.run is not None
        self._prefixes.release(ticket.run)
        ticket.run, ticket.num_computed = None, 0
        ticket.num_preemptions += 1
        self.running.remove(ticket)
        self.waiting.appendleft(ticket)  # victims go youngest first, so this keeps their order

    def _allocate(self, ticket: Ticket, need: int) -> Run:
        shared = self._prefixes.find(ticket.page_hashes)
        run, num_shared = self._pool.allocate(need), 0
        # The new run may stand where the other one was kept.
        if shared is not None and id(shared[0]) in self._prefixes.known:
            self._pool.copy([(shared[0].first_page, run.first_page, shared[1])])
            num_shared = shared[1] * self._pool.page_size
        ticket.num_computed = num_shared
        if ticket.num_shared is None:
            ticket.num_shared = num_shared
        return run

    def computed(self, ticket: Ticket) -> None:
        """Note that a pass has computed what it was given to compute of a request's prompt."""
        num_pages = ticket.num_computed // self._pool.page_size
        if ticket.run is not None and num_pages >= len(ticket.page_hashes):
            self._prefixes.computed(ticket.run, ticket.page_hashes)


def _first_need(num_entries: int, largest_need: int) -> int:
    return min(largest_need, num_entries + FIRST_STRETCH)
