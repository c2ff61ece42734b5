"""Five lists as minimal pairs: one clause decides whether items stand alone or build on the last.

Both families of a pair draw the same records and the same layout. Each answer begins with a label
that says on which side of the clause it is (``formats.FREE_LABEL``, ``formats.CHAIN_LABEL``).
"""

from __future__ import annotations

from typing import NamedTuple

from pasta_lab.tasks.draw import Draw, wordings
from pasta_lab.tasks.formats import (
    CHAIN_LABEL,
    FREE_LABEL,
    Format,
    Records,
    added,
    draw_format,
    draw_records,
    item,
    separator,
    summed,
    write_lines,
)
from pasta_lab.tasks.task import Dependence, Fact, Task, Unit


def takings(draw: Draw) -> Task:
    """Independent computations: each shop's own total."""
    return _takings(draw, is_chain=False)


def running_takings(draw: Draw) -> Task:
    """A dependent list: each total includes all shops above."""
    return _takings(draw, is_chain=True)


def legs(draw: Draw) -> Task:
    """Independent computations: the length of each stage."""
    return _journey(draw, is_chain=False)


def route(draw: Draw) -> Task:
    """A dependent list: the distance from the start after each stage."""
    return _journey(draw, is_chain=True)


def as_given(draw: Draw) -> Task:
    """Independent computations: each price is the base and a surcharge."""
    return _prices(draw, is_chain=False)


def as_above(draw: Draw) -> Task:
    """A dependent list: each price is the one above and a surcharge."""
    return _prices(draw, is_chain=True)


def numbered_apart(draw: Draw) -> Task:
    """Independent notes: every record counts its notes from one."""
    return _notes(draw, is_chain=False)


def numbered_on(draw: Draw) -> Task:
    """Notes numbered through: each record needs the last number above."""
    return _notes(draw, is_chain=True)


def lookups(draw: Draw) -> Task:
    """Independent look-ups: each thing of the list is exchanged."""
    return _exchanges(draw, is_chain=False)


def substitutions(draw: Draw) -> Task:
    """Chained substitutions: each step starts from what the last one gave."""
    return _exchanges(draw, is_chain=True)


def _takings(draw: Draw, *, is_chain: bool) -> Task:
    shops = draw.names(draw.count(high=7))
    mornings, afternoons = draw.values(len(shops), 11, 59), draw.values(len(shops), 11, 59)
    rows = list(zip(shops, mornings, afternoons, strict=True))
    records = draw_records(draw, ("shop", "morning", "afternoon"), rows)
    answer = _Answer(draw, is_chain=is_chain)
    prompt = answer.prompt("takings")
    total = 0
    for index, (shop, *amounts) in enumerate(rows):
        addends = (total, *amounts) if is_chain and index else tuple(amounts)
        total = sum(addends)
        body = f"{summed(addends)}. The takings are {total}."
        answer.add(shop, body, Fact(str(total), ("takings",)))
    return answer.task(records, prompt)


def _journey(draw: Draw, *, is_chain: bool) -> Task:
    num = draw.count(high=7)
    places, vehicles = draw.names(num), draw.words("vehicle", num)
    lands, waters = draw.values(num, 11, 59), draw.values(num, 11, 59)
    rows = list(zip(places, vehicles, lands, waters, strict=True))
    records = draw_records(draw, ("stage", "vehicle", "land", "water"), rows)
    answer = _Answer(draw, is_chain=is_chain)
    prompt = answer.prompt("journeys")
    total = 0
    for index, (place, vehicle, land, water) in enumerate(rows):
        addends = (total, land, water) if is_chain and index else (land, water)
        total = sum(addends)
        body = f"by {vehicle}, {summed(addends)}. The distance is {total} miles."
        answer.add(place, body, Fact(vehicle, ("by",)), Fact(str(total), ("distance",)))
    return answer.task(records, prompt)


def _prices(draw: Draw, *, is_chain: bool) -> Task:
    num = draw.count(low=3, high=7)
    sellers, foods = draw.names(num), draw.words("food", 2 * num)
    base, *steps = draw.values(num + 1, 11, 59)
    rows = [(s, foods.pop(), foods.pop(), step) for s, step in zip(sellers, steps, strict=True)]
    records = draw_records(draw, ("seller", "one", "two", "surcharge"), rows)
    answer = _Answer(draw, is_chain=is_chain)
    prompt = answer.prompt("prices", base=str(base))
    price = base
    for seller, first, second, step in rows:
        start = price if is_chain else base
        price = start + step
        body = f"{first} and {second} are on offer. {added(start, step)}. The price is {price}."
        facts = (Fact(first, ("offer",)), Fact(second, ("offer",)), Fact(str(price), ("price",)))
        answer.add(seller, body, *facts)
    return answer.task(records, prompt)


def _notes(draw: Draw, *, is_chain: bool) -> Task:
    num = draw.count(low=3, high=6)
    rooms = draw.names(num)
    counts = [draw.choice((2, 3, 3, 4, 5)) for _ in rooms]
    things = draw.words("object", sum(counts))
    answer = _Answer(draw, is_chain=is_chain, has_format=False)
    rows = []
    start = 1
    for room, count in zip(rooms, counts, strict=True):
        own, things = things[:count], things[count:]
        rows.append((room, *own))
        notes = [f"note {number} is {thing}" for number, thing in enumerate(own, start)]
        answer.add(room, f"{', '.join(notes)}.", *map(Fact, notes))
        start += count if is_chain else 0
    prompt = answer.prompt("notes")
    return answer.task(write_lines(draw, rows), prompt)


class _Trade(NamedTuple):
    wants: str
    trader: str
    place: str
    fee: int
    gives: str


def _exchanges(draw: Draw, *, is_chain: bool) -> Task:
    num = draw.count(low=3, high=7)
    chain = draw.words("object", num + 1)
    traders, places = draw.names(num), draw.words("colour", num)
    fees = draw.values(num)
    pairs = zip(chain, traders, places, fees, chain[1:], strict=False)
    trades = [_Trade(*cells) for cells in pairs]
    listed = [chain[0], *_out_of_chain(draw, chain[1:-1])]
    by_thing = {trade.wants: trade for trade in trades}
    draw.random.shuffle(trades)
    records = draw_records(draw, ("thing", "trader", "stall", "fee", "gives"), trades)
    answer = _Answer(draw, is_chain=is_chain)
    things = ", ".join(f"{index} {thing}" for index, thing in enumerate(listed, 1))
    prompt = answer.prompt("exchanges", things=things)
    for index, thing in enumerate(chain[:-1] if is_chain else listed):
        trade = by_thing[thing]
        # Steps are named by number, so that no topic reveals the result of a chain.
        answer.add(f"Step {index + 1}", _exchanged(trade), *_facts_of(trade))
    return answer.task(records, prompt).with_candidates(chain)


def _exchanged(trade: _Trade) -> str:
    return (
        f"{trade.wants} goes to {trade.trader} at the {trade.place} stall for {trade.fee} coins, "
        f"and we get {trade.gives}."
    )


def _facts_of(trade: _Trade) -> tuple[Fact, ...]:
    return (
        Fact(trade.wants, ("goes",)),
        Fact(trade.trader, ("goes",)),
        Fact(trade.place, ("at the",)),
        Fact(str(trade.fee), ("coins",)),
        Fact(trade.gives, ("get",)),
    )


def _out_of_chain(draw: Draw, things: list[str]) -> list[str]:
    """Return the things in an order in which none has the place that it has in the chain."""
    shift = draw.random.randrange(1, len(things)) if len(things) > 1 else 0
    return things[shift:] + things[:shift]


class _Answer:
    """The prompt sentences and the units of one side of a pair."""

    def __init__(self, draw: Draw, *, is_chain: bool, has_format: bool = True) -> None:
        self._draw = draw
        self._is_chain = is_chain
        self._format: Format | None = None
        self._request = ""
        if has_format:
            self._format, self._request = draw_format(draw)
        self._units: list[Unit] = []

    @property
    def _separator(self) -> str:
        return "\n" if self._format is None else separator(self._format)

    def prompt(self, file: str, **values: str) -> list[str]:
        """Return the sentences of the prompt: the opening, the deciding clause, the format."""
        clause = self._draw.wording(wordings(file, "clauses"), side=int(self._is_chain))
        opening = self._draw.wording(wordings(file, "openings")).format(**values)
        return [opening, clause, *filter(None, [self._request])]

    def add(self, name: str, body: str, *facts: Fact) -> None:
        index = len(self._units)
        text = f"{name}: {body}" if self._format is None else item(self._format, index, name, body)
        needs = frozenset({index - 1}) if self._is_chain and index else frozenset[int]()
        self._units.append(
            Unit(text, name, name, facts, needs, not self._is_chain, self._separator)
        )

    def task(self, records: Records, prompt: list[str]) -> Task:
        label = CHAIN_LABEL if self._is_chain else FREE_LABEL
        return records.task(
            self._draw,
            prompt,
            self._units,
            Dependence.CHAIN if self._is_chain else Dependence.FREE,
            preface=label + self._separator,
            ordered=self._is_chain,
        )
