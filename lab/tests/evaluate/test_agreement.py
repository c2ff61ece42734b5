"""Agreement is full of an annotation with itself, the same both ways, and lost by moved tags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lab.evaluate.agreement import agreement, marks, paired
from pasta_lm.errors import InputError
from pasta_lm.language.document import Block, Document, Text, parse
from pasta_lm.language.events import Sync
from pasta_lm.learn.data.annotated import Record

PLAIN = "One fish swims here. Two birds sing there. Both are fed at noon."
SPLIT = (
    '<async topic="fish">One fish swims here.</async> <async topic="birds">Two birds sing there.'
    "</async> <sync/>Both are fed at noon."
)
NO_SYNC = SPLIT.replace("<sync/>", "")
EARLY_SYNC = SPLIT.replace(" <sync/>", "<sync/> ")
OTHER_TOPICS = SPLIT.replace('"fish"', '"water"').replace('"birds"', '"air"')
ONE_BLOCK = SPLIT.replace('</async> <async topic="birds">', " ")
NO_LABELS = (
    'One fish <async topic="fish">swims here.</async> Two <async topic="birds">birds sing there.'
    "</async> <sync/>Both are fed at noon."
)

words = st.lists(
    st.tuples(st.sampled_from(["text", "block"]), st.booleans()), min_size=1, max_size=8
)


def annotated(*texts: str) -> list[Document]:
    return [parse(text, "annotator") for text in texts]


def compared(one: str, other: str) -> dict[str, Any]:
    """Return what agreement finds of one answer: the figures alone, without their intervals."""
    found = agreement(annotated(one), annotated(other))
    blocks, syncs = found["blocks"], found["syncs"]
    named = {
        "exact": blocks["exact_f1"],
        "overlap": blocks["overlap_f1"],
        "character": blocks["character_f1"],
        "fork": found["forks"]["same"],
        "sync": syncs["same"],
        "sync f1": syncs["f1"],
    }
    return {name: value["mean"] for name, value in named.items()}


def of_words(kinds: list[tuple[str, bool]]) -> Document:
    """Return eight words, so many of them and in such places blocks, with syncs before some."""
    items: list[Any] = []
    for number in range(8):
        kind, has_sync = kinds[number % len(kinds)]
        text = Text(f"word {number} ")
        items += [Sync()] if has_sync else []
        items.append(Block("t", 1, (text,)) if kind == "block" else text)
    return Document(tuple(items))


def test_marks_are_offsets_in_the_plain_text_without_outer_white_space() -> None:
    (document,) = annotated('A\n<async topic="t"> b c \n</async>d<sync/>\n\ne')
    found = marks(document)
    assert [document.plain_text[begin:end] for begin, end in found.blocks] == ["b c"]
    assert [document.plain_text[place:] for place in found.syncs] == ["e"]
    assert marks(annotated('A<async topic="t">  </async>')[0]).blocks == ()


@pytest.mark.parametrize("other", [SPLIT, EARLY_SYNC, OTHER_TOPICS])
def test_equal_annotations_agree_fully(other: str) -> None:
    assert set(compared(SPLIT, other).values()) == {1.0}


@pytest.mark.parametrize(
    ("other", "exact", "overlap", "character", "fork", "sync"),
    [  # of 64 characters, 20 and 21 are in the two blocks
        (NO_SYNC, 1.0, 1.0, 1.0, 1.0, 0.0),
        (PLAIN, 0.0, 0.0, 0.0, 0.0, 0.0),
        (ONE_BLOCK, 0.0, 0.0, 2 * 41 / (41 + 42), 1.0, 1.0),  # 21 of its 42 are not more than half
        (NO_LABELS, 0.0, 1.0, 2 * 28 / (41 + 28), 1.0, 1.0),  # 11 of 20 and 17 of 21 are
    ],
    ids=["no sync", "no tags", "one block", "no labels"],
)
def test_a_moved_tag_lowers_the_figures_that_depend_on_it(
    other: str, exact: float, overlap: float, character: float, fork: float, sync: float
) -> None:
    assert compared(SPLIT, other) == pytest.approx(
        {
            "exact": exact,
            "overlap": overlap,
            "character": character,
            "fork": fork,
            "sync": sync,
            "sync f1": sync,
        },
        abs=1e-5,
    )


def test_blocks_are_counted_over_all_answers_together() -> None:
    found = agreement(annotated(SPLIT, PLAIN, PLAIN), annotated(SPLIT, ONE_BLOCK, PLAIN))
    assert found["num_answers"] == 3
    assert (found["blocks"]["num_first"], found["blocks"]["num_second"]) == (2, 3)
    assert found["blocks"]["exact_f1"]["mean"] == pytest.approx(2 * 2 / 5)
    assert (found["syncs"]["num_first"], found["syncs"]["num_second"]) == (1, 2)
    forks = found["forks"]
    parts = ("num_both", "num_first_only", "num_second_only", "num_neither")
    assert [forks[part] for part in parts] == [1, 0, 1, 1]
    assert forks["same"]["mean"] == pytest.approx(2 / 3, abs=1e-5)
    assert forks["kappa"] == pytest.approx(0.4)  # 2/3 observed, 4/9 by chance


@given(words, words)
def test_agreement_is_the_same_both_ways_and_no_block_is_counted_twice(
    one: list[tuple[str, bool]], other: list[tuple[str, bool]]
) -> None:
    first, second = of_words(one), of_words(other)
    there, back = agreement([first], [second]), agreement([second], [first])
    assert there["blocks"]["num_first"] == back["blocks"]["num_second"]
    for part, names in {
        "blocks": ("exact_f1", "overlap_f1", "character_f1"),
        "forks": ("same", "kappa"),
        "syncs": ("same", "f1", "kappa"),
    }.items():
        for name in names:
            assert there[part][name] == back[part][name]
    f1s = [there["blocks"][name] for name in ("exact_f1", "overlap_f1", "character_f1")]
    if any(f1s):
        exact, overlap, character = (f1["mean"] for f1 in f1s)
        assert 0 <= exact <= overlap <= 1
        assert 0 <= character <= 1
    else:
        assert not first.blocks
        assert not second.blocks


def records(**texts: str) -> list[Record]:
    return [Record(name, "?", *annotated(text)) for name, text in texts.items()]


def test_annotations_are_paired_by_id_in_the_order_of_the_second() -> None:
    first, second = records(a=SPLIT, b=PLAIN, c=PLAIN), records(c=PLAIN, a=NO_SYNC, d=PLAIN)
    kept = paired(first, second)
    assert [[one.id for one in side] for side in kept] == [["c", "a"], ["c", "a"]]
    with pytest.raises(InputError, match="no answer is in both"):
        paired(first, records(d=PLAIN))
    with pytest.raises(InputError, match="answer b has another plain text"):
        paired(first, records(b=PLAIN + "!"))
