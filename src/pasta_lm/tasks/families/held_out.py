"""Families that no training stage sees, one of them a composition; they are reported apart."""

from __future__ import annotations

from pasta_lm.tasks.draw import Draw
from pasta_lm.tasks.families.sections import describe, draw_rows, facts_of
from pasta_lm.tasks.formats import draw_records, summed, write_lines
from pasta_lm.tasks.task import Dependence, Fact, Task, Unit
from pasta_lm.tasks.wordings import wordings


def menus(draw: Draw) -> Task:
    """Independent sections of a domain that training lacks."""
    num = draw.count()
    dishes, foods = draw.names(num), draw.words("food", 2 * num)
    flavours, prices = draw.words("quality", num), draw.values(num)
    rows = [
        (dish, foods.pop(), foods.pop(), flavour, price)
        for dish, flavour, price in zip(dishes, flavours, prices, strict=True)
    ]
    units = []
    for dish, one, two, flavour, price in rows:
        text = (
            f"{dish} is cooked with {one} and served with {two}. It tastes {flavour}, and guests "
            f"pay {price} coins for it."
        )
        cues = ("cooked", "served", "tastes", "pay")
        facts = tuple(map(Fact, (one, two, flavour, str(price)), ((cue,) for cue in cues)))
        units.append(Unit(text, dish, dish, facts))
    records = draw_records(draw, ("dish", "main", "side", "flavour", "price"), rows)
    return records.task(draw, [draw.wording(wordings("held_out", "menus"))], units, Dependence.FREE)


def savings(draw: Draw) -> Task:
    """A balance carried from week to week."""
    num = draw.count(high=7)
    weeks, ones, twos = draw.names(num), draw.values(num, 11, 49), draw.values(num, 11, 49)
    rows = list(zip(weeks, ones, twos, strict=True))
    units: list[Unit] = []
    balance = 0
    for index, (week, one, two) in enumerate(rows):
        addends = (balance, one, two) if index else (one, two)
        balance = sum(addends)
        text = f"{week}: {summed(addends)}. The balance is {balance}."
        needs = frozenset({index - 1}) if index else frozenset[int]()
        facts = (Fact(str(balance), ("balance",)),)
        units.append(Unit(text, week, week, facts, needs, fork=False))
    records = draw_records(draw, ("week", "first", "second"), rows)
    sentences = [draw.wording(wordings("held_out", "savings"))]
    return records.task(draw, sentences, units, Dependence.CHAIN, ordered=True)


def harvest(draw: Draw) -> Task:
    """Sub-totals by field, then a figure that needs them."""
    num = draw.count(high=5)
    fields, goods = draw.names(num), draw.words("food", num)
    sacks = [draw.values(3, 11, 39) for _ in fields]
    units = []
    for field, good, given in zip(fields, goods, sacks, strict=True):
        text = f"{field} grew {good}. {summed(given)}. The field gave {sum(given)} sacks."
        facts = (Fact(good, ("grew",)), Fact(str(sum(given)), ("gave",)))
        units.append(Unit(text, field, field, facts))
    sums = [sum(given) for given in sacks]
    text = f"Overall: {summed(sums)}. The harvest was {sum(sums)} sacks."
    total = Fact(str(sum(sums)), ("harvest was",))
    everything = frozenset(range(num))
    units.append(Unit(text, "Overall", "Overall", (total,), everything, fork=False, weight=num / 2))
    rows: list[tuple[str | int, ...]] = [
        (f, g, *s) for f, g, s in zip(fields, goods, sacks, strict=True)
    ]
    records = draw_records(draw, ("field", "crop", "first", "second", "third"), rows)
    return records.task(
        draw, [draw.wording(wordings("held_out", "harvest"))], units, Dependence.SYNC
    )


def profiles_then_running(draw: Draw) -> Task:
    """A composition of two: free sections, then a list whose items depend on the one before."""
    num = draw.choice((2, 3, 4))
    domain, rows = draw_rows(draw, num)
    boxes = [name + "box" for name in draw.names(num)]
    amounts = [draw.values(2, 11, 49) for _ in boxes]
    units = [Unit(describe(domain, row), row[0], row[0], facts_of(domain, row)) for row in rows]
    total = 0
    for index, (box, given) in enumerate(zip(boxes, amounts, strict=True)):
        addends = (total, *given) if index else tuple(given)
        total = sum(addends)
        text = f"{box}: {summed(addends)}. The total is {total}."
        needs = frozenset({num + index - 1}) if index else frozenset[int]()
        units.append(Unit(text, box, box, (Fact(str(total), ("total",)),), needs, fork=False))
    stock: list[tuple[str | int, ...]] = [(b, *g) for b, g in zip(boxes, amounts, strict=True)]
    lines = write_lines(draw, [*rows, *stock])
    asked = draw.wording(wordings("held_out", "profiles_then_running")).format(noun=domain.noun)
    return lines.task(draw, [asked], units, Dependence.CHAIN)
