"""A model in this process as judge: the verdict of one token, both orders, stored replies."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path

import pytest

from pasta_lab.judge.config import JudgeConfig, judge_of
from pasta_lm.errors import PastaError, RequestError, UsageError
from pasta_lm.journal import Journal
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from pasta_lm.learn.judge import local
from pasta_lm.learn.judge.judge import (
    Comparison,
    Problem,
    Reading,
    Winner,
    averaged,
    both_orders,
    load_template,
)
from pasta_lm.learn.judge.likelihood import LikelihoodJudge
from pasta_lm.learn.judge.llm_judge import LLMJudge
from pasta_lm.learn.judge.local import LocalTransport, ReadingModel, local_client
from tests.architectures import build, load
from tests.learn.judge.endpoint import ScriptedTransport, answers_of, judge, one_token

PAIR = Comparison("p", "Name a colour.", "Red.", "Nothing that I would call a colour.")


@pytest.fixture(scope="module")
def reader() -> ReadingModel:
    return ReadingModel(load("llama", build("llama")))


def local_judge(reader: ReadingModel, folder: Path, template: str = "one-token-v1") -> LLMJudge:
    transport = LocalTransport(lambda: reader)
    endpoint = Endpoint(base_url="local", model="tiny")
    journal = Journal(folder / "replies.jsonl")
    return LLMJudge(
        "tiny",
        load_template(template),
        journal,
        lambda: ChatClient(endpoint, transport=transport),
        averages_orders=True,
    )


def test_the_verdict_is_the_odds_of_the_two_letters(reader: ReadingModel, tmp_path: Path) -> None:
    messages = load_template("one-token-v1").request(PAIR).messages
    logprobs = reader.next_logprobs(reader.encode(messages))
    encode = reader.vocabulary.encode_text
    masses = []
    for letter in "AB":
        ids = {ids[0] for text in (letter, f" {letter}") if len(ids := encode(text)) == 1}
        masses.append(sum(exp(float(logprobs[one])) for one in ids))
    ((_, reading),) = local_judge(reader, tmp_path).ask([PAIR])
    assert reading.first_wins == pytest.approx(masses[0] / sum(masses), rel=1e-4)
    (row,) = Journal(tmp_path / "replies.jsonl").rows.values()
    assert row["reply"]["letter_mass"] == pytest.approx(sum(masses), rel=1e-4)


def test_a_verdict_is_the_same_in_both_orders(reader: ReadingModel, tmp_path: Path) -> None:
    one, other = local_judge(reader, tmp_path).compare(both_orders(*PAIR))
    assert one is not None
    assert other is not None
    assert {one.winner, other.winner} == {Winner.FIRST, Winner.SECOND}
    assert one.confidence == pytest.approx(other.confidence)


@pytest.mark.parametrize("lean", [-3.0, 0.0, 0.4, 3.0])
def test_a_constant_lean_towards_a_place_cancels(lean: float, tmp_path: Path) -> None:
    def leaning(said: str) -> dict[str, object]:
        first, second = map(len, answers_of(said))
        share = 1 / (1 + exp(-((first - second) / 20 + lean)))
        return one_token(("A", share), ("B", 1 - share))

    asked = judge(tmp_path, ScriptedTransport(leaning), template="one-token-v1")
    object.__setattr__(asked, "averages_orders", True)
    (verdict,) = asked.compare([PAIR])
    odds = (len(PAIR.second) - len(PAIR.first)) / 20
    assert verdict is not None
    assert verdict.winner is Winner.SECOND
    assert verdict.confidence == pytest.approx(1 / (1 + exp(-odds)))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Reading(0.8, None), Reading(0.2, None), 0.8),
        (Reading(0.9, None), Reading(0.9, None), 0.5),
        (Reading(1.0, None), Reading(0.0, None), 1.0),
        (Reading(None, Problem.REFUSED), Reading(0.5, None), None),
        (Reading(0.5, None), Reading(None, Problem.CUT), None),
    ],
)
def test_the_mean_of_two_orders(one: Reading, other: Reading, expected: float | None) -> None:
    found = averaged(one, other)
    assert (found.first_wins is None) is (found.problem is not None)
    if expected is not None:
        assert found.first_wins == pytest.approx(expected)
    else:
        assert found.first_wins is None


def test_stored_verdicts_need_no_model(reader: ReadingModel, tmp_path: Path) -> None:
    given = local_judge(reader, tmp_path).compare([PAIR])

    def refuse() -> ReadingModel:
        raise AssertionError("a stored verdict is read again")

    again = LLMJudge(
        "tiny",
        load_template("one-token-v1"),
        Journal(tmp_path / "replies.jsonl"),
        lambda: ChatClient(Endpoint(base_url="local", model="tiny"), transport=_on(refuse)),
        averages_orders=True,
    )
    assert again.compare([PAIR]) == given


def _on(load: object) -> LocalTransport:
    return LocalTransport(load)  # type: ignore[arg-type]


def test_what_does_not_fit_has_no_verdict(reader: ReadingModel, tmp_path: Path) -> None:
    long = PAIR._replace(first="red " * 4000)
    asked = local_judge(reader, tmp_path)
    object.__setattr__(asked, "max_missing", 0.9)
    assert asked.compare([PAIR, long])[1] is None
    assert "do not fit" in next(iter(asked.failures.values()))


def test_a_stated_confidence_is_refused(reader: ReadingModel, tmp_path: Path) -> None:
    with pytest.raises(PastaError, match="no verdict"):
        local_judge(reader, tmp_path, "stated-confidence-v1").compare([PAIR])


def test_nats_of_an_answer_are_those_of_its_tokens(reader: ReadingModel) -> None:
    nats = reader.answer_nats("Name a colour.", "Red and blue.")
    before = reader.vocabulary.encode_prompt("Name a colour.\n\n")
    answer = reader.vocabulary.encode_text("Red and blue.")
    ids = [*before, *answer]
    expected = [
        -float(reader.next_logprobs(ids[: len(before) + place])[token])
        for place, token in enumerate(answer)
    ]
    assert nats == pytest.approx(expected, abs=1e-3)
    assert reader.answer_nats("Name a colour.", "") == []
    with pytest.raises(RequestError, match="do not fit"):
        reader.answer_nats("Name a colour.", "red " * 4000)


def test_a_template_without_a_system_turn_gets_one_turn(reader: ReadingModel) -> None:
    class Picky:
        has_chat_template = True

        def encode_prompt(self, messages: list[dict[str, str]]) -> list[int]:
            if messages[0]["role"] == "system":
                raise RequestError("System role not supported")
            assert [one["role"] for one in messages] == ["user"]
            return [len(messages[0]["content"])]

    picky = ReadingModel.__new__(ReadingModel)
    picky.vocabulary = Picky()  # type: ignore[assignment]
    turns = [{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}]
    assert picky.encode(turns) == [5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "local"}, "judge.model is missing"),
        ({"kind": "likelihood"}, "judge.model is missing"),
        ({"kind": "local", "model": "m", "base_url": "x"}, "judge.base_url would be ignored"),
        ({"kind": "local", "model": "m", "second_model": "n"}, "judge.second_model would be"),
        ({"kind": "local", "model": "m", "guards": False}, "judge.guards would be ignored"),
        ({"kind": "guards", "model": "m"}, "judge.model would be ignored"),
    ],
)
def test_a_judge_of_this_process_has_its_own_keys(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        JudgeConfig(**settings)


def test_a_recipe_names_a_judge_of_this_process(
    reader: ReadingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "load", lambda *_, **__: load("llama", build("llama")))
    made = judge_of(JudgeConfig(kind="local", model="tiny"), str(tmp_path))
    assert made.compare([PAIR]) == local_judge(reader, tmp_path / "other").compare([PAIR])
    stored = [json.loads(line) for line in (tmp_path / "replies.jsonl").open()]
    assert {row["judge"] for row in stored} == {"tiny"}
    assert len(stored) == 2


def test_judges_share_stored_readings(
    reader: ReadingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(local, "reading_model", lambda name, dtype: loaded.append(name) or reader)
    journal = str(tmp_path / "readings.jsonl")
    for guards in (True, False):
        settings = JudgeConfig(kind="likelihood", model="m", journal=journal, guards=guards)
        made = judge_of(settings, str(tmp_path))
        assert isinstance(made, LikelihoodJudge)
        assert made.has_guards is guards
        assert made.compare([PAIR]) != [None]
    assert loaded == ["m"]
    assert len(Journal(Path(journal)).rows) == 2


def test_the_client_loads_its_model_when_it_is_asked() -> None:
    assert local_client("no/such/model")().endpoint.base_url == "local"
