from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from random import Random

import pytest

from pasta_lm.language.document import Document, parse
from pasta_lm.learn.annotate.filters import FilterConfig, Reason, Rejection, examine, speedup

A = "One two three four five six seven eight nine ten."
B = "Red orange yellow green blue indigo violet and then all again."
PLAIN = f"{A}\n\n{B}\n"
GOOD = f'<async topic="numbers">{A}</async>\n\n<async topic="colours">{B}</async>\n'

REJECTED = [
    ("a character is gone", GOOD.replace("Red", "Re"), Reason.TEXT_CHANGED),
    ("a space is gone", GOOD.replace("</async>\n\n", "</async>\n"), Reason.TEXT_CHANGED),
    ("the end is gone", GOOD.rstrip("\n"), Reason.TEXT_CHANGED),
    ("not closed", GOOD.replace("</async>\n\n", "\n\n"), Reason.MALFORMED),
    ("closed twice", GOOD.replace("</async>", "</async></async>"), Reason.MALFORMED),
    ("no slash", GOOD.replace("</async>\n\n", "<async>\n\n"), Reason.MALFORMED),
    ("a tag that cannot be read", GOOD.replace('"numbers"', '"numbers'), Reason.MALFORMED),
    ("written form", GOOD.replace("<async t", "<promise t"), Reason.MALFORMED),
    ("no topic", GOOD.replace(' topic="numbers"', ""), Reason.TOPIC_BOUNDS),
    ("blank topic", GOOD.replace("numbers", " "), Reason.TOPIC_BOUNDS),
    ("four words of topic", GOOD.replace("numbers", "one to ten all"), Reason.TOPIC_BOUNDS),
    ("an endless topic", GOOD.replace("numbers", "n" * 65), Reason.TOPIC_BOUNDS),
    ("a block in a block", f'<async topic="all">{GOOD}</async>', Reason.NESTED),
    ("a sync in a block", GOOD.replace("</async>", "<sync/></async>"), Reason.MALFORMED),
    ("an empty block", GOOD + '<async topic="n"></async>', Reason.BLOCK_BOUNDS),
    ("a sync for nothing", f"<sync/>{GOOD}", Reason.IDLE_SYNC),
    (
        "a block of four words",
        PLAIN.replace("One two three four", '<async topic="n">One two three four</async>'),
        Reason.BLOCK_BOUNDS,
    ),
    ("one block alone", f'<async topic="all">{A}\n\n{B}\n</async>', Reason.NO_GAIN),
]


@pytest.mark.parametrize(
    ("annotated", "reason"), [case[1:] for case in REJECTED], ids=[case[0] for case in REJECTED]
)
def test_each_fault_has_its_code(annotated: str, reason: Reason) -> None:
    verdict = examine(annotated, PLAIN)
    assert isinstance(verdict, Rejection)
    assert verdict.reason is reason
    assert verdict.message


def test_a_space_before_a_tag_is_no_fault_and_moves() -> None:
    text = f"First: {A} Second: {B}"
    lone = f'First: <async topic="a">{A} </async>Second: <async topic="b">{B}</async>'
    kept = examine(lone, text)
    assert isinstance(kept, Document)
    assert kept == parse(lone, "annotator").with_spaces_after_tags()


def test_a_good_copy_and_one_without_tags_are_kept() -> None:
    kept = examine(GOOD, PLAIN)
    assert isinstance(kept, Document)
    assert kept.annotator_form() == GOOD
    assert speedup(kept) > 1
    assert examine(PLAIN, PLAIN) == kept.without_tags()


def test_a_block_may_be_as_long_as_its_bound() -> None:
    assert isinstance(examine(GOOD, PLAIN, FilterConfig(least_words=10, most_words=11)), Document)
    for least, most in ((11, 20), (1, 10)):
        verdict = examine(GOOD, PLAIN, FilterConfig(least_words=least, most_words=most))
        assert isinstance(verdict, Rejection)
        assert verdict.reason is Reason.BLOCK_BOUNDS


def test_the_first_difference_is_shown() -> None:
    verdict = examine(GOOD.replace("violet", "purple"), PLAIN)
    assert isinstance(verdict, Rejection)
    assert all(shown in verdict.message for shown in ("line 3", "violet", "purple"))


ROOT = Path(__file__).parents[3]
TAG = re.compile(r'<async topic="[^"]*">|</async>|<sync/>')
IN_TAGS = [  # of which tag, which character is taken away, and what that makes of the answer
    ("</async>", 0, Reason.MALFORMED),  # its "<"
    ("</async>", 1, Reason.MALFORMED),  # its "/"
    ("</async>", -1, Reason.MALFORMED),
    ("<async", 0, Reason.MALFORMED),
    ("<async", -1, Reason.MALFORMED),
    ("<async", -2, Reason.MALFORMED),  # the quotation mark behind the topic
    ("<sync/>", 0, Reason.TEXT_CHANGED),  # what is left is text
    ("<sync/>", -2, Reason.MALFORMED),
]


def annotated_answers(path: Path) -> list[tuple[str, str, str]]:
    opening = gzip.open if path.suffix == ".gz" else open
    with opening(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    if "annotated" in rows[0]:
        return [(row["id"], row["annotated"], row["output"]) for row in rows]
    documents = [(row["id"], parse(row["response"])) for row in rows]
    return [(id, one.annotator_form(), one.plain_text) for id, one in documents]


@pytest.mark.parametrize(
    ("name", "num_answers"),
    [("starter/starter", 1040), ("starter/second_pass", 200), ("annotated/gemma-7b-it", 704)],
)
def test_annotated_answers_pass_unless_one_character_is_changed(
    name: str, num_answers: int, request: pytest.FixtureRequest
) -> None:
    if name.startswith("starter"):
        path = ROOT / "corpora" / f"{name}.jsonl"
    else:
        path = request.getfixturevalue("shared_data") / f"{name}.jsonl.gz"
    answers = annotated_answers(path)
    assert len(answers) == num_answers
    random, altered_tags = Random(0), set()
    for id, annotated, original in answers:
        assert isinstance(examine(annotated, original), Document), id
        assert expect(altered_text(annotated, random), original, Reason.TEXT_CHANGED), id
        for altered, case in altered_tag(annotated, random):
            altered_tags.add(case[:2])
            assert expect(altered, original, case[2]), (id, case)
    assert altered_tags == {case[:2] for case in IN_TAGS}


def expect(altered: str, original: str, reason: Reason) -> bool:
    verdict = examine(altered, original)
    return isinstance(verdict, Rejection) and verdict.reason is reason


def altered_text(annotated: str, random: Random) -> str:
    """Return a copy with one character of the text, inside a block or not, put in or changed."""
    in_tags = {at for tag in TAG.finditer(annotated) for at in range(*tag.span())}
    at = random.choice([at for at in range(len(annotated)) if at not in in_tags])
    other = "~" if annotated[at] != "~" else "^"
    end = random.choice([at, at + 1])
    return f"{annotated[:at]}{other}{annotated[end:]}"


def altered_tag(annotated: str, random: Random) -> list[tuple[str, tuple[str, int, Reason]]]:
    """Return a copy that lacks one character of a tag; none if there is no tag."""
    tag = random.choice(list(TAG.finditer(annotated)) or [None])
    if tag is None:
        return []
    case = random.choice([one for one in IN_TAGS if tag[0].startswith(one[0])])
    at = tag.end() + case[1] if case[1] < 0 else tag.start() + case[1]
    return [(annotated[:at] + annotated[at + 1 :], case)]
