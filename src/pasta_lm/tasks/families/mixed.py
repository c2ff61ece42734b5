"""Other structures: two rounds, uneven lengths, short answers, and words chosen by the model."""

from __future__ import annotations

from pasta_lm.tasks.draw import Draw
from pasta_lm.tasks.families.sections import draw_rows
from pasta_lm.tasks.formats import draw_records, summed, write_lines
from pasta_lm.tasks.task import Dependence, Fact, Task, Unit
from pasta_lm.tasks.wordings import wordings

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
        one, two = (sum(results[index]) for index in pair)
        first, second = (teams[index] for index in pair)
        text = (
            f"{cup} counts {first} and {second}. {summed((one, two))}. In all {one + two} points."
        )
        facts = (
            Fact(first, ("counts",)),
            Fact(second, ("counts",)),
            Fact(str(one + two), ("In all",)),
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
