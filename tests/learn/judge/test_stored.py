"""Stored verdicts and readings: nothing is asked twice, and what came before a stop is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pasta_lm.errors import RequestError, UsageError
from pasta_lm.journal import Journal, held
from pasta_lm.learn.judge.judge import Comparison, Verdict
from pasta_lm.learn.judge.stored import StoredJudge, StoredReader
from tests.learn.judge.scripted_judges import FIRST, SECOND, TIE, RuleJudge, longer

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


class Counting:
    """A reader that counts what it reads."""

    def __init__(self) -> None:
        self.num_read = 0

    def answer_nats(self, prompt: str, answer: str) -> Sequence[float]:
        if answer == "too long":
            raise RequestError("does not fit")
        self.num_read += 1
        return [float(len(word)) for word in answer.split()]


def reading(folder: Path, reader: Counting, name: str = "m/bfloat16") -> StoredReader:
    return StoredReader(lambda: reader, name, Journal(folder / "readings.jsonl"))


def test_an_answer_is_read_once_by_name(tmp_path: Path) -> None:
    reader = Counting()
    assert reading(tmp_path, reader).answer_nats("Why?", "a bcd") == [2.0, 2.0]
    assert reading(tmp_path, reader).answer_nats("Why?", "a bcd") == [2.0, 2.0]
    assert reader.num_read == 1
    reading(tmp_path, reader, "m/float32").answer_nats("Why?", "a bcd")
    reading(tmp_path, reader).answer_nats("How?", "a bcd")
    assert reader.num_read == 3


def test_an_empty_reading_is_stored_and_a_failed_one_is_not(tmp_path: Path) -> None:
    reader = Counting()
    assert reading(tmp_path, reader).answer_nats("Why?", "") == []
    assert reading(tmp_path, reader).answer_nats("Why?", "") == []
    with pytest.raises(RequestError):
        reading(tmp_path, reader).answer_nats("Why?", "too long")
    assert len(Journal(tmp_path / "readings.jsonl").rows) == reader.num_read == 1
