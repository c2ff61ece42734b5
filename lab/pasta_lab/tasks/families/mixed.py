"""Families of several formats, of totals, and the held-out ones, which no training sees."""

from __future__ import annotations

from enum import Enum

from pasta_lab.tasks.draw import Draw, wordings
from pasta_lab.tasks.families.sections import describe, draw_rows, facts_of
from pasta_lab.tasks.formats import draw_records, summed, write_lines
from pasta_lab.tasks.task import Dependence, Fact, Task, Unit

DETAILS = {
    "job": "job", "hobby": "hobby", "pet": "animal", "favourite food": "food", "instrument":
    "instrument", "favourite flower": "flower", "trait": "quality", "vehicle": "vehicle",
}  # fmt: skip


def two_rounds(draw: Draw) -> Task:
    """Partial dependence: free items, and as many that need the figures of two of them."""
    num = draw.choice((2, 3, 3, 4))
    names = draw.names(2 * num)
    teams, cups = names[:num], names[num:]
    results = [draw.values(3, 11, 39) for _ in teams]
    pairs = [draw.random.sample(range(num), 2) for _ in cups]
    rows: list[tuple[str | int, ...]] = [(t, *r) for t, r in zip(teams, results, strict=True)]
    rows += [
        (cup, *(teams[index] for index in pair)) for cup, pair in zip(cups, pairs, strict=True)
    ]
    units = []
    for team, points in zip(teams, results, strict=True):
        text = f"{team} has {summed(points)}. That makes {sum(points)} points."
        units.append(Unit(text, team, team, (Fact(str(sum(points)), ("makes",)),)))
    for cup, pair in zip(cups, pairs, strict=True):
        figures = [sum(results[index]) for index in pair]
        first, second = (teams[index] for index in pair)
        text = (
            f"{cup} counts {first} and {second}. {summed(figures)}. In all {sum(figures)} points."
        )
        facts = (
            Fact(first, ("counts",)),
            Fact(second, ("counts",)),
            Fact(str(sum(figures)), ("In all",)),
        )
        units.append(Unit(text, cup, cup, facts, frozenset(pair)))
    sentences = _sentences(draw, "two_rounds")
    return write_lines(draw, rows).task(draw, sentences, units, Dependence.SYNC)


def uneven(draw: Draw) -> Task:
    """Uneven lengths: one or two long sections among short ones."""
    num = draw.count(high=6)
    names = draw.names(num)
    num_long = 1 if num < 5 else 2
    lengths = [draw.choice((6, 7, 8)) for _ in range(num_long)]
    lengths += [draw.choice((1, 2, 2)) for _ in range(num - num_long)]
    draw.random.shuffle(lengths)
    words = {detail: draw.words(kind, num) for detail, kind in DETAILS.items()}
    rows, units = [], []
    for name, length in zip(names, lengths, strict=True):
        details = draw.random.sample(sorted(DETAILS), length)
        known = [(detail, words[detail].pop()) for detail in details]
        rows.append((name, *(f"{detail} {word}" for detail, word in known)))
        says = " ".join(f"The {detail} is {word}." for detail, word in known)
        facts = tuple(Fact(word, (f"{detail} is",)) for detail, word in known)
        units.append(Unit(f"About {name}: {says}", name, name, facts))
    sentences = _sentences(draw, "uneven")
    task = write_lines(draw, rows).task(draw, sentences, units, Dependence.FREE)
    return task.with_candidates(cell.split()[-1] for _, *cells in rows for cell in cells)


def short_answers(draw: Draw) -> Task:
    """A few words for each record: no fork can pay."""
    domain, rows = draw_rows(draw, draw.count(high=5))
    column = draw.random.randrange(len(domain.columns))
    units = []
    for name, *cells in rows:
        text = f"{name} has {cells[column]}."
        units.append(Unit(text, name, name, (Fact(cells[column], ("has",)),), fork=False))
    # The clause is drawn before the opening: the fixed sets depend on the order.
    clause = draw.wording(wordings("short_answers", "clauses"))
    opening = draw.wording(wordings("short_answers", "openings"))
    sentences = [
        wording.format(column=domain.columns[column], noun=domain.noun)
        for wording in (opening, clause)
    ]
    records = draw_records(draw, (domain.noun, *domain.columns), rows)
    return records.task(draw, sentences, units, Dependence.SHORT)


def code_words(draw: Draw) -> Task:
    """Each unit has a word that no other unit has; its topic carries it.

    The model chooses the words itself, so no thread can know what another chose. Main writes the
    topics one after the other and sees them all.
    """
    num = draw.count(high=7)
    crews, vehicles = draw.names(num), draw.words("vehicle", num)
    instruments = draw.words("instrument", num)
    sizes = draw.values(num)
    palette = draw.words("colour", num + draw.choice((2, 3, 4)))
    chosen = draw.random.sample(palette, num)
    rows = list(zip(crews, vehicles, instruments, sizes, strict=True))
    records = draw_records(draw, ("crew", "vehicle", "instrument", "people"), rows)
    units = []
    for (crew, vehicle, instrument, size), word in zip(rows, chosen, strict=True):
        text = (
            f"{crew} has the code word {word}. The {size} members come by {vehicle} and bring "
            f"{instrument} for the evening."
        )
        facts = (
            Fact(word, ("code word",)),
            Fact(str(size), ("members",)),
            Fact(vehicle, ("come by",)),
            Fact(instrument, ("bring",)),
        )
        units.append(Unit(text, crew, f"{crew} {word}", facts))
    opening, clause = _sentences(draw, "code_words")
    sentences = [opening.format(words=", ".join(palette)), clause]
    return records.task(draw, sentences, units, Dependence.FREE).with_palette(palette)


def _sentences(draw: Draw, file: str) -> list[str]:
    return [draw.wording(wordings(file, place)) for place in ("openings", "clauses")]


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
    for dish, main, side, flavour, price in rows:
        text = (
            f"{dish} is cooked with {main} and served with {side}. It tastes {flavour}, and guests "
            f"pay {price} coins for it."
        )
        cues = ("cooked", "served", "tastes", "pay")
        facts = tuple(map(Fact, (main, side, flavour, str(price)), ((cue,) for cue in cues)))
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
    for index, (week, first, second) in enumerate(rows):
        addends = (balance, first, second) if index else (first, second)
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
    for field, good, amounts in zip(fields, goods, sacks, strict=True):
        text = f"{field} grew {good}. {summed(amounts)}. The field gave {sum(amounts)} sacks."
        facts = (Fact(good, ("grew",)), Fact(str(sum(amounts)), ("gave",)))
        units.append(Unit(text, field, field, facts))
    sums = [sum(amounts) for amounts in sacks]
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
    for index, (box, values) in enumerate(zip(boxes, amounts, strict=True)):
        addends = (total, *values) if index else tuple(values)
        total = sum(addends)
        text = f"{box}: {summed(addends)}. The total is {total}."
        needs = frozenset({num + index - 1}) if index else frozenset[int]()
        units.append(Unit(text, box, box, (Fact(str(total), ("total",)),), needs, fork=False))
    stock: list[tuple[str | int, ...]] = [(b, *g) for b, g in zip(boxes, amounts, strict=True)]
    lines = write_lines(draw, [*rows, *stock])
    sentence = draw.wording(wordings("held_out", "profiles_then_running")).format(noun=domain.noun)
    return lines.task(draw, [sentence], units, Dependence.CHAIN)


class Closing(Enum):
    """The content of the last line."""

    MOTTO = "words of the prompt"
    LIST = "the figures of the sections"
    SUM = "the sum of these figures"


NOUNS = {"shop": "object", "stall": "food", "guest": "hobby", "room": "colour", "garden": "flower"}
"""What has the amounts, and the kind of word that it stands for."""


def tallies(draw: Draw) -> Task:
    """Sections, then a line that repeats their figures."""
    return _task(draw, Closing.LIST, "listed")


def tallies_motto(draw: Draw) -> Task:
    """The same sections, then a line that needs the prompt alone."""
    return _task(draw, Closing.MOTTO, "listed")


def bills(draw: Draw) -> Task:
    """Several sub-totals, then a grand total."""
    return _task(draw, Closing.SUM, "summed")


def bills_motto(draw: Draw) -> Task:
    """The same sub-totals, then a line that needs the prompt alone."""
    return _task(draw, Closing.MOTTO, "summed")


def _task(draw: Draw, closing: Closing, clauses: str) -> Task:
    noun, kind = draw.choice(tuple(NOUNS.items()))
    num = draw.count(high=7 if clauses == "listed" else 5)
    house, *names = draw.names(num + 1)
    motto = " and ".join(draw.words("quality", 3))
    goods = draw.words(kind, num)
    amounts = [draw.values(3, 11, 39) for _ in range(num)]
    rows: list[tuple[str | int, ...]] = [
        (n, g, *a) for n, g, a in zip(names, goods, amounts, strict=True)
    ]
    records = draw_records(draw, (noun, kind, "first", "second", "third"), rows)
    side = int(closing is not Closing.MOTTO)
    clause = draw.wording(wordings("tallies", clauses), side)
    opening, body = (draw.wording(wordings("tallies", place)) for place in ("openings", "body"))
    units = [
        _section(name, good, terms) for name, good, terms in zip(names, goods, amounts, strict=True)
    ]
    units.append(_overall(closing, house, motto, [sum(terms) for terms in amounts]))
    sentences = [
        sentence.format(noun=noun, house=house, motto=motto) for sentence in (opening, body, clause)
    ]
    dependence = Dependence.FREE if closing is Closing.MOTTO else Dependence.SYNC
    return records.task(draw, sentences, units, dependence)


def _section(name: str, good: str, amounts: list[int]) -> Unit:
    text = f"{name} stands for {good}. {summed(amounts)}. The total is {sum(amounts)}."
    facts = (Fact(good, ("stands",)), Fact(str(sum(amounts)), ("total",)))
    return Unit(text, name, name, facts)


def _overall(closing: Closing, house: str, motto: str, totals: list[int]) -> Unit:
    needs = frozenset(range(len(totals)))
    if closing is Closing.MOTTO:
        text = f"Overall, this is the house {house}, which is always {motto}."
        facts = (
            Fact(house, ("always",)),
            *(Fact(word, ("always",)) for word in motto.split(" and ")),
        )
        needs = frozenset()
    elif closing is Closing.LIST:
        text = f"Overall, the totals are {', '.join(map(str, totals))}."
        facts = tuple(Fact(str(total), ("totals are",)) for total in totals)
    else:
        text = f"Overall: {summed(totals)}. The grand total is {sum(totals)}."
        facts = (Fact(str(sum(totals)), ("grand total",)),)
    return Unit(text, "Overall", "Overall", facts, needs, fork=False, weight=len(totals) / 2)
