"""Preference data: written pairs can be read, and invalid rows are named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pasta_lm.errors import InputError
from pasta_lm.language.document import Document, parse
from pasta_lm.learn.data.preferences import PreferencePair, read_pairs, write_pairs

FORKED = '<promise topic="tea" tokens="2"/><async>Tea.</async><sync/> &lt;async> too.'
ROW = {
    "id": "one",
    "prompt": "What?",
    "chosen": FORKED,
    "rejected": "Nothing.",
    "score_chosen": 3.25,
    "score_rejected": 1,
}


def pair(chosen: Document, name: str = "one", **more: object) -> PreferencePair:
    texts = {"id": name, "prompt": "What?\n", "chosen": chosen, "rejected": parse("Nothing.")}
    return PreferencePair(**texts, score_chosen=1 / 3, score_rejected=-0.5, **more)  # type: ignore[arg-type]


def test_written_pairs_can_be_read(tmp_path: Path) -> None:
    parts = {"quality_chosen": 2 / 3}
    forked = parse('1. Tea:<async topic="fork"> hot &lt;async>.</async>', "annotator")
    pairs = [pair(parse(FORKED), parts=parts), pair(forked, name="without lengths")]
    pairs += [replace(pairs[0], id="brief", turns=({"role": "system", "content": "Be brief."},))]
    assert forked.blocks[0].units is None
    path = tmp_path / "out" / "pairs.jsonl"
    write_pairs(path, pairs)
    assert read_pairs(path) == pairs
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [*rows[0]] == [*ROW, "quality_chosen"]
    assert rows[0]["chosen"] == FORKED


def test_a_pair_may_have_facts_about_it(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({**ROW, "judge": "me", "is_new": True}) + "\n\n", "utf-8")
    (kept,) = read_pairs(path)
    assert (kept.score_chosen, kept.score_rejected, kept.parts) == (3.25, 1.0, {})
    assert kept.chosen.blocks[0].units == 2


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"prompt": None}, "row one has no prompt"),
        ({"chosen": ""}, "row one has no chosen"),
        ({"rejected": 3, "score_rejected": "1"}, "row one has no rejected and no score_rejected"),
        ({"history": [["Why?", "So."]]}, "row one: 'history' holds text that is not read"),
        ({"score_chosen": True}, "row one has no score_chosen"),
        ({"chosen": "<async>Tea."}, "row one: "),
        ({"id": None}, ":1: no JSON object with an id"),
    ],
)
def test_an_invalid_pair_is_named(tmp_path: Path, changes: dict[str, object], shown: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({**ROW, **changes}), "utf-8")
    with pytest.raises(InputError) as caught:
        read_pairs(path)
    assert shown in caught.value.message
    assert str(path) in caught.value.message
