"""A scripted judge: its verdicts can be read by both templates, and it has no favourite place."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from pasta_lm.journal import Journal
from pasta_lm.learn.chat.chat import read_reply
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from pasta_lm.learn.judge.judge import (
    Comparison,
    Problem,
    Winner,
    both_orders,
    load_template,
    read_verdict,
)
from pasta_lm.learn.judge.llm_judge import LLMJudge
from tests.fakes import scripted_judge, scripted_teacher
from tests.fakes.scripted_judge import mute_at_times, prefer_more_words
from tests.fakes.scripted_server import ScriptedServer, completion


@pytest.mark.parametrize("template", ["stated-confidence-v1", "one-token-v1"])
def test_the_longer_answer_wins_in_both_orders_and_the_judge_is_scripted(
    tmp_path: Path, template: str
) -> None:
    with ScriptedServer(prefer_more_words) as server:
        endpoint = Endpoint(base_url=server.base_url, model="scripted")
        journal = Journal(tmp_path / "replies.jsonl")
        judge = LLMJudge("scripted", load_template(template), journal, lambda: ChatClient(endpoint))
        asked = both_orders("1", "Say it.", "one two three four", "five")
        found = judge.compare([*asked, Comparison("2", "Say it.", "six seven", "eight nine")])
    assert [one.winner for one in found if one] == [Winner.FIRST, Winner.SECOND, Winner.TIE]
    assert found[0] is not None
    assert found[0].confidence == pytest.approx(5 / 7, abs=0.01)
    assert judge.is_scripted


def test_a_request_without_two_answers_is_an_error() -> None:
    with pytest.raises(ValueError, match="no two answers"):
        prefer_more_words({"messages": [{"role": "user", "content": "Hello."}]})


@pytest.mark.parametrize("name", ["stated-confidence-v1", "one-token-v1"])
def test_a_mute_judge_names_neither_answer(name: str) -> None:
    template = load_template(name)
    play = mute_at_times(prefer_more_words, 1.0)
    asked = template.request(Comparison("1", "Say it.", "one two", "three")).body("scripted")
    found = read_verdict(template.method, read_reply(completion(play(asked), asked, "scripted")))
    assert found.problem in (Problem.NOT_A_VERDICT, Problem.NO_LOGPROBS)
    assert mute_at_times(prefer_more_words, 0.0)(asked) == prefer_more_words(asked)


@pytest.mark.parametrize("module", [scripted_judge, scripted_teacher])
def test_a_scripted_server_prints_its_url_and_the_outcomes(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(server: ScriptedServer) -> None:
        server.server_close()
        raise KeyboardInterrupt

    monkeypatch.setattr(ScriptedServer, "serve_forever", interrupted)
    module.main(["--port", "0", "--too-many", "0.5"])
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith("/v1, model 'scripted'")
    assert said[1] == "{}"
