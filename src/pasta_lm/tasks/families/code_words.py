"""Teams that get different code words: a dependence through text that the model itself makes up.

Which word a team gets is the model's own choice, so no thread can know what another chose. A topic
can carry the choice: main writes the topics one after the other and sees them all.
"""

from __future__ import annotations

from pasta_lm.tasks.draw import Draw, Wordings
from pasta_lm.tasks.more_wordings import more_sentences
from pasta_lm.tasks.records import draw_records
from pasta_lm.tasks.task import Dependence, Fact, Task, Unit

OPENINGS = Wordings(
    train=(
        "Every crew needs a code word from this list: {words}.",
        "The code words are {words}.",
        "Here are code words: {words}. And here are the crews.",
        "We have some crews and the code words {words}.",
        "Code words to choose from: {words}.",
        "These words are free as code words: {words}.",
        *more_sentences("code_words openings"),
    ),
    grammar="code_words openings",
    dev=("The crews choose code words from {words}.",),
    test=(
        "Here are the code words to choose from: {words}.",
        "Every crew needs one of these code words: {words}.",
        "We have these code words for the crews: {words}.",
    ),
)

CLAUSES = Wordings(
    train=(
        "Give each crew a code word that no other crew has.",
        "Choose a different code word for every crew.",
        "Every crew gets its own code word, never the same twice.",
        "Hand out the code words so that no two crews share one.",
        "Write about each crew and its code word; all code words differ.",
        "No code word may be used twice. Describe each crew with its word.",
        "Describe the crews, each with a code word of its own.",
        "Each crew takes one code word that is not taken yet.",
        "Two crews never share a code word. Present every crew with one.",
        "Choose code words, one for each crew and none used twice.",
        *more_sentences("code_words"),
    ),
    grammar="code_words",
    dev=("Every crew gets a different code word that no other has.",),
    test=(
        "Choose a code word for every crew that no other crew has.",
        "Describe each crew with a code word, none used twice.",
        "Give every crew its own code word, all of them different.",
    ),
)


def code_words(draw: Draw) -> Task:
    """Each unit has a word that no other unit has; its topic carries it."""
    num = draw.count(high=7)
    crews, vehicles, instruments = (
        draw.names(num),
        draw.words("vehicle", num),
        draw.words("instrument", num),
    )
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
    opening = draw.wording(OPENINGS).format(words=", ".join(palette))
    sentences = [opening, draw.wording(CLAUSES)]
    task = records.task(draw, sentences, units, Dependence.FREE)
    return task.with_palette(palette)
