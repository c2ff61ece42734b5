from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random

import pytest

from pasta_lm.data.filters import Bounds, Reason, Rejection, examine, speedup
from pasta_lm.language.document import Document

A = "One two three four five six seven eight nine ten."
B = "Red orange yellow green blue indigo violet and then all again."
PLAIN = f"{A}\n\n{B}\n"
GOOD = f'<async topic="numbers">{A}</async>\n\n<async topic="colours">{B}</async>\n'

REJECTED = [
    ("a character is gone", GOOD.replace("Red", "Re"), Reason.TEXT_CHANGED),
    ("a space is gone", GOOD.replace("</async>\n\n", "</async>\n"), Reason.TEXT_CHANGED),
    ("the end is gone", GOOD.rstrip("\n"), Reason.TEXT_CHANGED),
    ("no text at all", "", Reason.TEXT_CHANGED),
    ("not closed", GOOD.replace("</async>\n\n", "\n\n"), Reason.MALFORMED),
    ("never closed", GOOD.removesuffix("</async>\n"), Reason.MALFORMED),
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
def test_each_way_to_be_wrong_has_its_code(annotated: str, reason: Reason) -> None:
    verdict = examine(annotated, PLAIN)
    assert isinstance(verdict, Rejection)
    assert verdict.reason is reason
    assert verdict.message


def test_a_good_copy_and_one_without_tags_are_kept() -> None:
    kept = examine(GOOD, PLAIN)
    assert isinstance(kept, Document)
    assert kept.annotator_form() == GOOD
    assert speedup(kept) > 1
    assert examine(PLAIN, PLAIN) == kept.without_tags()


def test_a_block_may_be_as_long_as_its_bound() -> None:
    assert isinstance(examine(GOOD, PLAIN, Bounds(least_words=10, most_words=11)), Document)
    for bounds in (Bounds(11, 20), Bounds(1, 10)):
        verdict = examine(GOOD, PLAIN, bounds)
        assert isinstance(verdict, Rejection)
        assert verdict.reason is Reason.BLOCK_BOUNDS


def test_the_difference_is_shown_where_it_begins() -> None:
    verdict = examine(GOOD.replace("violet", "purple"), PLAIN)
    assert isinstance(verdict, Rejection)
    assert "line 3" in verdict.message
    assert "violet" in verdict.message
    assert "purple" in verdict.message


def test_all_annotated_answers_pass_and_altered_by_one_character_none_does(
    shared_data: Path,
) -> None:
    path = shared_data / "annotated" / "gemma-7b-it.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 704
    random = Random(0)
    for row in rows:
        annotated, original = row["annotated"], row["output"]
        assert isinstance(examine(annotated, original), Document), row["id"]
        for altered, reason in _alterations(annotated, random):
            verdict = examine(altered, original)
            assert isinstance(verdict, Rejection), (row["id"], altered)
            assert verdict.reason is reason, (row["id"], verdict)


def _alterations(annotated: str, random: Random) -> list[tuple[str, Reason]]:
    """Return a copy with one character of its text changed and, of a tag, one taken away."""
    close = "</async>"
    has_tags = close in annotated
    outside = [
        *range(annotated.find("<async") if has_tags else len(annotated)),
        *range(annotated.rfind(close) + len(close) if has_tags else 0, len(annotated)),
    ]
    place = random.choice(outside or [len(annotated)])
    found = [(f"{annotated[:place]}~{annotated[place + 1 :]}", Reason.TEXT_CHANGED)]
    if has_tags:
        at = annotated.index(close)
        for gone in (at, at + 1, at + len(close) - 1):  # its "<", its "/", its ">"
            found.append((annotated[:gone] + annotated[gone + 1 :], Reason.MALFORMED))
        at = annotated.index('">')  # the end of a topic
        found.append((annotated[:at] + annotated[at + 1 :], Reason.MALFORMED))
    return found
