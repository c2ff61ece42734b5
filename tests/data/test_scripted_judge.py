"""A scripted judge: its verdicts can be read by both templates, and it has no favourite place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pasta_lm.data.journal import Journal
from pasta_lm.data.judge import Comparison, Winner, both_orders
from pasta_lm.data.judge_template import load_template
from pasta_lm.data.llm_judge import LLMJudge
from pasta_lm.data.scripted_judge import prefer_more_words
from pasta_lm.remote.client import ChatClient, Endpoint
from pasta_lm.remote.scripted_server import ScriptedServer


@pytest.mark.parametrize("template", ["stated-confidence-v1", "one-token-v1"])
def test_the_longer_answer_wins_in_both_orders_and_it_is_known_to_be_a_script(
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


def test_what_is_no_comparison_is_an_error() -> None:
    with pytest.raises(ValueError, match="no two answers"):
        prefer_more_words({"messages": [{"role": "user", "content": "Hello."}]})
