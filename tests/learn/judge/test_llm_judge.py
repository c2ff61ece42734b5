"""A judge asks once, keeps every reply, names what is missing, and fits the preference stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.errors import EndpointError, InputError, PastaError, RemoteError, UsageError
from pasta_lm.journal import read_rows
from pasta_lm.learn.chat.client import TokenCounts, read_reply
from pasta_lm.learn.chat.pool import MAX_FAILURES, Estimate
from pasta_lm.learn.judge import (
    Comparison,
    Method,
    NoVerdict,
    both_orders,
    load_template,
    read_verdict,
    smoothed_ratio,
    verdict_of,
)
from tests.fakes.scripted_judge import answers_of
from tests.learn.judge.endpoint import ScriptedTransport, judge, one_token, stated

PAIR = both_orders("q1", "Name a river.", "The Rhine, 1,230 km.", "The Po.")


def longer_wins(said: str) -> dict[str, Any]:
    first, second = answers_of(said)
    return stated(
        f"It says more.\nVerdict: {'A' if len(first) > len(second) else 'B'}, confidence: 80"
    )


@pytest.mark.parametrize(
    ("text", "first_wins"),
    [
        ("Verdict: A, confidence: 80", 0.8),
        ("Because.\n\nVerdict: B, confidence: 95", 0.05),
        ("**Verdict: tie, confidence: 50**", 0.5),
        ("verdict: a, confidence: 100%", 1.0),
        ("Verdict: B, confidence: 20", 0.5),  # less sure than a coin is as sure as a coin
        ("Verdict: A, confidence: 60\nNo:\nVerdict: B, confidence: 70", 0.3),
    ],
)
def test_a_stated_verdict_is_the_last_line_of_its_form(text: str, first_wins: float) -> None:
    found = read_verdict(Method.STATED, read_reply(stated(text)))
    assert found.first_wins == pytest.approx(first_wins)
    assert found.problem is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (stated("A is better."), NoVerdict.NOT_A_VERDICT),
        (stated(""), NoVerdict.NOT_A_VERDICT),
        (stated("Verdict: C, confidence: 80"), NoVerdict.NOT_A_VERDICT),
        (stated("Verdict: A, confidence: 800"), NoVerdict.NOT_A_VERDICT),
        (stated("Verdict: A"), NoVerdict.NOT_A_VERDICT),
        (stated("", refusal="I would rather not."), NoVerdict.REFUSED),
    ],
)
def test_a_reply_without_a_stated_verdict_has_a_reason(body: Any, problem: NoVerdict) -> None:
    found = read_verdict(Method.STATED, read_reply(body))
    assert (found.first_wins, found.problem) == (None, problem)


def test_a_reply_that_was_cut_before_its_verdict_says_so() -> None:
    body = stated("It is long and")
    body["choices"][0]["finish_reason"] = "length"
    assert read_verdict(Method.STATED, read_reply(body)).problem is NoVerdict.CUT


@pytest.mark.parametrize(
    ("shares", "first_wins"),
    [
        ((("A", 0.9), ("B", 0.1)), 0.9),
        ((("B", 0.6), ("A", 0.2), ("The", 0.1)), 0.25),
        ((("A", 0.5), (" A", 0.25), ("B", 0.25)), 0.75),
        ((("B", 0.99),), 0.0),
    ],
)
def test_one_token_is_weighed_by_its_probabilities(shares: Any, first_wins: float) -> None:
    found = read_verdict(Method.LOGPROBS, read_reply(one_token(*shares)))
    assert found.first_wins == pytest.approx(first_wins)


@given(st.floats(0, 1))
def test_a_verdict_is_symmetric_in_the_order(first_wins: float) -> None:
    one, other = verdict_of(first_wins), verdict_of(1 - first_wins)
    assert other == pytest.approx(-one)
    assert one == 0 or 0.5 <= abs(one) <= 1


def test_the_templates_of_the_package_can_be_loaded_and_filled() -> None:
    for name in ("one-token-v1", "stated-confidence-v1"):
        template = load_template(name)
        asked = template.request(PAIR[0])
        said = asked.messages[-1]["content"]
        assert answers_of(said) == (PAIR[0].first, PAIR[0].second)
        assert "Name a river." in said
        assert "{{" not in said
        assert asked.temperature == 0
        assert bool(asked.top_logprobs) is (template.method is Method.LOGPROBS)


def test_an_answer_that_spells_a_template_field_is_unchanged() -> None:
    tricky = Comparison("q", "{{answer_b}}", "{{instruction}}", r"\1 {{answer_a}}")
    said = load_template("one-token-v1").request(tricky).messages[-1]["content"]
    assert answers_of(said) == ("{{instruction}}", r"\1 {{answer_a}}")


def test_a_page_of_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no judge's template 'absent'"):
        load_template("absent")
    page = tmp_path / "mine.md"
    page.write_text("Compare!")
    with pytest.raises(InputError, match="is not a judge's template"):
        load_template(str(page))
    page.write_text("Method: log-probabilities\n\n# System\n\nx\n\n# User\n\n{{answer_a}}\n")
    with pytest.raises(InputError, match="each once"):
        load_template(str(page))


def test_stored_replies_are_not_asked_again_and_read_the_same_offline(tmp_path: Path) -> None:
    transport = ScriptedTransport(longer_wins)
    first = judge(tmp_path, transport).ask([*PAIR, *PAIR])
    assert len(transport.asked) == 2
    assert judge(tmp_path, transport).ask(PAIR) == first[:2]
    assert len(transport.asked) == 2
    assert judge(tmp_path, None).ask(PAIR) == first[:2]


def test_equal_answers_are_a_tie_without_asking(tmp_path: Path) -> None:
    transport = ScriptedTransport(longer_wins)
    verdicts = judge(tmp_path, transport).compare([PAIR[0], *both_orders("q1", "?", "Po", "Po")])
    assert verdicts == [0.8, 0.0, 0.0]
    assert len(transport.asked) == 1


def test_another_judge_or_template_does_not_share_replies(tmp_path: Path) -> None:
    judge(tmp_path, ScriptedTransport(longer_wins)).ask(PAIR)
    assert judge(tmp_path, None, model="other").ask(PAIR)[0].problem is NoVerdict.NO_REPLY
    other = judge(tmp_path, None, template="one-token-v1")
    assert other.ask(PAIR)[0].problem is NoVerdict.NO_REPLY


def test_comparisons_without_a_reply_are_reported_and_the_others_go_on(tmp_path: Path) -> None:
    def fails_once(said: str) -> dict[str, Any] | int:
        return 500 if answers_of(said)[0] == "The Po." else longer_wins(said)

    one = judge(tmp_path, ScriptedTransport(fails_once))
    readings = one.ask(PAIR)
    assert [reading.problem for reading in readings] == [None, NoVerdict.NO_REPLY]
    assert "HTTP 500" in next(iter(one.failures.values()))
    with pytest.raises(PastaError, match="no verdict on 1 of 2 comparisons: no-reply 1"):
        judge(tmp_path, None).compare(PAIR)
    allowed = judge(tmp_path, None, max_missing=0.5)
    assert allowed.compare(PAIR) == [0.8, None]
    assert allowed.missing == {NoVerdict.NO_REPLY: ["q1"]}
    healed = judge(tmp_path, ScriptedTransport(longer_wins)).ask(PAIR)
    assert [reading.problem for reading in healed] == [None, None]


def test_a_wrong_key_stops_at_once_and_keeps_what_came_before(tmp_path: Path) -> None:
    judge(tmp_path, ScriptedTransport(longer_wins)).ask(PAIR[:1])
    many = [Comparison(str(n), "What?", f"{n}", f"{n}!") for n in range(200)]
    transport = ScriptedTransport(lambda _: 401)
    with pytest.raises(EndpointError):
        judge(tmp_path, transport).ask(many)
    assert len(transport.asked) < 100
    assert len(judge(tmp_path, None).journal.rows) == 1


@pytest.mark.parametrize(
    ("mark", "is_scripted"),
    [
        ({}, False),
        ({"model": "scripted"}, True),
        ({"model": "gpt-4", "system_fingerprint": "scripted"}, True),
        ({"model": "unscripted"}, False),
    ],
)
def test_a_judge_is_scripted_if_its_replies_say_so(
    tmp_path: Path, mark: dict[str, str], is_scripted: bool
) -> None:
    one = judge(tmp_path, ScriptedTransport(lambda said: longer_wins(said) | mark))
    one.ask(PAIR)
    assert one.is_scripted is is_scripted


@pytest.mark.parametrize(
    ("verdicts", "smoothing", "ratio"),
    [
        # Ours stands first, then second, then first, then second.
        ([1.0, -1.0, 1.0, -1.0], 1.0, 5.0),
        ([-1.0, 1.0, -1.0, 1.0], 1.0, 1 / 5),
        ([1.0, -1.0, 1.0, -1.0], 0.5, 9.0),
        # A judge that always favours the first place says nothing.
        ([0.7, 0.7, 0.9, 0.9], 1.0, 1.0),
        ([0.0, 0.0], 1.0, 1.0),
        # Wins 0.6 + 0.2, losses 0.5: 1.8 / 1.5.
        ([0.6, -0.2, -0.5, 0.0], 1.0, 1.2),
        ([0.6, -0.2, -0.5, 0.0], 0.1, 1.5),
        ([], 1.0, 1.0),
    ],
)
def test_the_ratio_of_confidences_is_smoothed(
    verdicts: list[float], smoothing: float, ratio: float
) -> None:
    assert smoothed_ratio(verdicts, smoothing) == pytest.approx(ratio)


MANY = [Comparison(f"q{n}", "What?", f"{n}", f"{n}!") for n in range(30)]
VERDICT = stated("Verdict: A, confidence: 80")


def rows(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "replies.jsonl")


def test_an_estimate_excludes_stored_replies_and_equal_answers(tmp_path: Path) -> None:
    one = judge(tmp_path, ScriptedTransport(lambda _: VERDICT))
    equal = Comparison("q", "What?", "same", "same")
    found = one.estimate([*MANY, *MANY, equal])
    assert (found.num_requests, found.tokens.completion) == (30, 3000)
    assert 30 * 250 < found.tokens.prompt < 30 * 500
    one.ask(MANY[:20])
    assert one.estimate(MANY).num_requests == 10
    assert one.estimate(MANY[:20]) == Estimate(0, TokenCounts(0, 0))
    token = judge(tmp_path, None, template="one-token-v1").estimate(MANY)
    assert token.tokens.completion == 30


def test_a_server_that_is_gone_stops_the_run_and_replies_are_kept(tmp_path: Path) -> None:
    left = iter(range(12))
    transport = ScriptedTransport(lambda _: VERDICT if next(left, None) is not None else 503)
    one = judge(tmp_path, transport)
    with pytest.raises(RemoteError, match=f"{MAX_FAILURES} requests in a row"):
        one.ask(MANY)
    assert len(rows(tmp_path)) == 12
    assert len(one.failures) >= MAX_FAILURES - 1  # the last one is the error


def test_a_server_that_refuses_every_request_stops_the_run(tmp_path: Path) -> None:
    transport = ScriptedTransport(lambda _: 400)
    with pytest.raises(EndpointError, match="HTTP 400") as caught:
        judge(tmp_path, transport).ask(MANY)
    assert "no request succeeded" in str(caught.value.hint)
    assert len(transport.asked) < 20
    some = ScriptedTransport(lambda said: 400 if "7" in answers_of(said)[0] else VERDICT)
    one = judge(tmp_path, some)
    num_missing = sum(reading.problem is not None for reading in one.ask(MANY))
    assert num_missing == 3 == len(one.failures)
