"""Answers of mixed make: two rounds of blocks, uneven lengths, and answers too short to fork."""

from __future__ import annotations

from pasta_lm.tasks.arithmetic import summed
from pasta_lm.tasks.draw import Draw, Wordings
from pasta_lm.tasks.families.sections import draw_rows
from pasta_lm.tasks.more_wordings import more_sentences
from pasta_lm.tasks.records import draw_records, write_lines
from pasta_lm.tasks.task import Dependence, Fact, Task, Unit

ROUNDS = Wordings(
    train=(
        "Add up each team. Then give every cup its sum of two teams.",
        "First work out the teams, then the cups, each from its two teams.",
        "Work out the points of every team and after that of every cup.",
        "Each team gets a line with its points, each cup a line with those of its teams.",
        "Start with the teams; then add two teams for every cup.",
        "For every team add the points, and for every cup add its two teams.",
        "Give the points of the teams first and of the cups after them.",
        "The teams come first, then the cups, each with its points.",
        *more_sentences("rounds"),
    ),
    grammar="rounds",
    dev=("Work out every team first, then every cup from its two teams.",),
    test=(
        "First add up every team, then every cup from its teams.",
        "Give each team a line with its points, then each cup a line with its sum.",
        "Work out the teams, and after that add two teams for each cup.",
    ),
)

ROUND_OPENINGS = Wordings(
    train=(
        "Teams have three results each, and every cup counts two teams.",
        "Below are teams with three results and cups with two teams.",
        "Here are the results of some teams. Each cup is shared by two of them.",
        "Three results are known of each team. Two teams share a cup.",
        "The list has teams with results, then cups with their teams.",
        "Every team has three results; every cup belongs to two teams.",
        *more_sentences("round openings"),
    ),
    grammar="round openings",
    dev=("Here are teams with three results and cups of two teams each.",),
    test=(
        "The teams below have three results each, the cups two teams each.",
        "Each team has three results. Each cup counts two of the teams.",
        "Here are teams with their results, then cups with their teams.",
    ),
)

UNEVEN_OPENINGS = Wordings(
    train=(
        "Some people are known well, others hardly at all.",
        "Here is what is known of some people.",
        "The list says a lot about some people and little about others.",
        "Below are some people with what is known of them.",
        "Of these people we know more or less.",
        "What we know of each person is listed here.",
        *more_sentences("uneven openings"),
    ),
    grammar="uneven openings",
    dev=("Here are some people with all that is known of them.",),
    test=(
        "Below is what we know of some people.",
        "The list says what is known of each person.",
        "Here are people of whom we know a lot or little.",
    ),
)

UNEVEN = Wordings(
    train=(
        "Write all that is known about each person.",
        "Tell everything about every person.",
        "For each person, say all that the list has.",
        "Write about every person as much as is known.",
        "Each person gets a line with everything we know.",
        "Say everything that is known of each person.",
        "Leave nothing out: write a line about every person.",
        "Turn every entry into a line of sentences.",
        *more_sentences("uneven"),
    ),
    grammar="uneven",
    dev=("Say all we know about every person.",),
    test=(
        "Tell all that is known about every person.",
        "Write a line about each person with all that the list has.",
        "Say everything we know of every person.",
    ),
)

SHORT = Wordings(
    train=(
        "Name the {column} of each {noun}, nothing else.",
        "Only the {column} of every {noun}, please.",
        "What is the {column} of each {noun}? Be short.",
        "List just the {column} for every {noun}.",
        "In a few words: which {column} has each {noun}?",
        "Give only the {column} of each {noun}.",
        "Answer briefly: the {column} of every {noun}.",
        "Just say which {column} each {noun} has.",
        *more_sentences("short"),
    ),
    grammar="short",
    dev=("Just name the {column} of every {noun}.",),
    test=(
        "Be short: only the {column} of each {noun}.",
        "Give just the {column} for each {noun}, nothing else.",
        "Answer in a few words: what is the {column} of every {noun}?",
    ),
)

SHORT_OPENINGS = Wordings(
    train=(
        "Here are some records, one {noun} a line.",
        "These are the data of each {noun}.",
        "Look at the list, one {noun} a line.",
        "Each {noun} has a line of data.",
        "The records describe one {noun} a line.",
        "You see one {noun} a line.",
        *more_sentences("short openings"),
    ),
    grammar="short openings",
    dev=("Below, each {noun} has a line.",),
    test=(
        "Here are the records of each {noun}.",
        "The list has one {noun} a line.",
        "Below are data, a line for each {noun}.",
    ),
)

DETAILS = {
    "job": "job", "hobby": "hobby", "pet": "animal", "favourite food": "food", "instrument":
    "instrument", "favourite flower": "flower", "trait": "quality", "vehicle": "vehicle",
}  # fmt: skip


def two_rounds(draw: Draw) -> Task:
    """Partial dependence: three free items, and three that need the figures of the first."""
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
    sentences = [draw.wording(ROUND_OPENINGS), draw.wording(ROUNDS)]
    return write_lines(draw, rows).task(draw, sentences, units, Dependence.SYNC)


def uneven(draw: Draw) -> Task:
    """Very uneven lengths: one or two long sections among short ones."""
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
    sentences = [draw.wording(UNEVEN_OPENINGS), draw.wording(UNEVEN)]
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
    wording = draw.wording(SHORT).format(column=domain.columns[column], noun=domain.noun)
    opening = draw.wording(SHORT_OPENINGS).format(noun=domain.noun)
    records = draw_records(draw, (domain.noun, *domain.columns), rows)
    return records.task(draw, [opening, wording], units, Dependence.SHORT)
