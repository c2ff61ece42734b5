"""The judge that is played: the same answer wins in both orders, by both methods."""

from __future__ import annotations

import json

import pytest

from pasta_lm.data import scripted_judge, scripted_teacher
from pasta_lm.data.judge import both_orders
from pasta_lm.data.judge_template import load_template, template_names
from pasta_lm.data.scripted_judge import CONFIDENCE, judge_by_length
from pasta_lm.data.verdict_reading import Problem, Reading, read_verdict
from pasta_lm.remote.chat import read_reply
from pasta_lm.remote.scripted_server import Play, ScriptedServer, completion


def readings(play: Play, name: str, ours: str, theirs: str) -> list[Reading]:
    template = load_template(name)
    asked = [template.request(one).body("m") for one in both_orders("q", "What?", ours, theirs)]
    bodies = [json.dumps(completion(play(one), one, "scripted")) for one in asked]
    return [read_verdict(template.method, read_reply(body)) for body in bodies]


@pytest.mark.parametrize("name", template_names())
def test_the_longer_answer_wins_wherever_it_stands(name: str) -> None:
    first, second = readings(judge_by_length(), name, "a long\n\nanswer", "short")
    assert (first.first_wins, second.first_wins) == (
        pytest.approx(CONFIDENCE),
        pytest.approx(1 - CONFIDENCE),
    )


@pytest.mark.parametrize("name", template_names())
def test_a_mute_one_gives_no_verdict(name: str) -> None:
    for found in readings(judge_by_length(1.0), name, "one", "other"):
        assert found.problem in (Problem.NOT_A_VERDICT, Problem.NO_LOGPROBS)


def test_what_shows_no_two_answers_gets_no_verdict() -> None:
    asked = {"messages": [{"role": "user", "content": "Which is better?"}]}
    assert judge_by_length()(asked).text == "I cannot tell."


@pytest.mark.parametrize("module", [scripted_judge, scripted_teacher])
def test_a_scripted_server_says_where_it_is_and_how_requests_ended(
    module: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(server: ScriptedServer) -> None:
        server._http.server_close()
        raise KeyboardInterrupt

    monkeypatch.setattr(ScriptedServer, "serve_forever", interrupted)
    module.main(["--port", "0", "--too-many", "0.5"])  # type: ignore[attr-defined]
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith("/v1, model 'scripted'")
    assert said[1] == "{}"
