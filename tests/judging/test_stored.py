"""Stored verdicts: nothing is asked twice, and what came before a stop is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from pasta_lm.errors import UsageError
from pasta_lm.journal import Journal, held
from pasta_lm.judging.judge import Comparison, Verdict
from pasta_lm.judging.stored import StoredJudge
from tests.judging.scripted_judges import FIRST, SECOND, TIE, RuleJudge, longer

MANY = [Comparison(f"p{n}", "Why?", "x" * n, "xxx") for n in range(6)]
EXPECTED = [SECOND, SECOND, SECOND, TIE, FIRST, FIRST]


def stored(folder: Path, judge: RuleJudge, name: str = "longer") -> StoredJudge:
    return StoredJudge(judge, name, Journal(folder / "verdicts.jsonl"))


def test_a_comparison_is_asked_once_by_name(tmp_path: Path) -> None:
    judge = longer()
    assert stored(tmp_path, judge).compare([*MANY, *MANY]) == EXPECTED * 2
    assert stored(tmp_path, judge).compare(MANY) == EXPECTED
    assert judge.asked == MANY
    stored(tmp_path, judge, "another").compare(MANY[:1])
    assert len(judge.asked) == len(MANY) + 1


def test_verdicts_before_a_stop_are_kept(tmp_path: Path) -> None:
    def stops(one: Comparison) -> Verdict:
        if one.prompt_id == "p4":
            raise KeyboardInterrupt
        return TIE

    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path, RuleJudge(stops)).compare(MANY)
    judge = longer()
    assert stored(tmp_path, judge).compare(MANY) == [TIE] * 4 + EXPECTED[4:]
    assert judge.asked == MANY[4:]


def test_a_missing_verdict_is_final(tmp_path: Path) -> None:
    assert stored(tmp_path, RuleJudge(lambda _: None)).compare(MANY[:1]) == [None]
    judge = longer()
    assert stored(tmp_path, judge).compare(MANY[:1]) == [None]
    assert not judge.asked


def test_progress_counts_what_is_new(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    stored(tmp_path, longer()).compare(MANY[:2])
    journal = Journal(tmp_path / "verdicts.jsonl")
    one = StoredJudge(longer(), "longer", journal, lambda done, total: told.append((done, total)))
    one.compare(MANY[:4])
    assert told == [(1, 2), (2, 2)]


def test_two_processes_do_not_judge_into_one_folder(tmp_path: Path) -> None:
    one = stored(tmp_path, longer())
    with held(tmp_path / "verdicts.jsonl.lock"), pytest.raises(UsageError, match="is writing"):
        one.compare(MANY)
