"""``pasta chat``: commands, turns, interrupts and long conversations, on scripted answers."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pasta_lm.cli.chat import Dialogue, talk
from pasta_lm.engines.request import Request, SamplingParams, StreamEvent
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.errors import UsageError
from pasta_lm.language import parse
from tests.cli.conftest import Pasta, Terminal
from tests.thinking import saying

ANSWER = 'Two. <async topic="one">First part.</async><async topic="two">Second part.</async><sync/>'
PLAIN = "Two. First part.Second part."
Messages = Sequence[Mapping[str, str]]


class ScriptedModel:
    """Answers every question with one script, and keeps the messages that it was asked with."""

    def __init__(self, stops_after: Sequence[int] = ()) -> None:
        self.engine = SimpleNamespace(stream=self._stream)
        self.asked: list[Messages] = []
        self.requests: list[Request] = []
        self._scripted = ScriptedEngine(parse(ANSWER, "annotator"))
        self._stops_after = list(stops_after)

    def request(
        self, messages: Messages, params: SamplingParams, *, strategy: str, continues: bool = False,
        think: bool | None = None,
    ) -> Request:  # fmt: skip
        assert messages == "?" or continues is (messages[-1]["role"] == "assistant")
        if strategy == "quick":
            raise UsageError("unknown strategy 'quick'")
        if messages != "?":
            self.asked.append(messages)
        text = " ".join(message["content"] for message in messages if messages != "?")
        return self._scripted.request(text, params)

    def _stream(self, request: Request) -> Iterator[StreamEvent]:
        self.requests.append(request)
        events = self._scripted.stream(request)
        if not self._stops_after:
            yield from events
            return
        yield from islice(events, self._stops_after.pop(0))
        raise KeyboardInterrupt


def conversation(model: ScriptedModel, **settings: Any) -> Dialogue:
    return Dialogue(model, SamplingParams(), **settings)  # type: ignore[arg-type]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Any:
    def talked(text: str | bytes, model: ScriptedModel | None = None, **settings: Any) -> Any:
        data = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        model = model or ScriptedModel()
        talk_of = conversation(model, **settings)
        return SimpleNamespace(code=talk(talk_of), model=model, conversation=talk_of)

    return talked


def contents(messages: Messages) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


def test_piped_each_line_is_a_question_and_empty_lines_are_ignored(
    piped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped("one?\n\n  \ntwo?\n").code == 0
    out, err = capsys.readouterr()
    assert out == f"{PLAIN}\n" * 2
    assert len(err.splitlines()) == 2
    assert "\x1b" not in out + err


def test_earlier_answers_go_in_as_plain_text_never_as_tags(piped: Any) -> None:
    asked = piped("one?\ntwo <sync/>?\n", system="Be brief.").model.asked
    first = [("system", "Be brief."), ("user", "one?")]
    assert contents(asked[0]) == first
    assert contents(asked[1]) == [*first, ("assistant", PLAIN), ("user", "two <sync/>?")]


def test_new_forgets_the_conversation_and_quit_leaves(piped: Any) -> None:
    asked = piped("one?\n/new\n /quit means?\n/quit\nthree?\n").model.asked
    # A space before it makes a command a question.
    questions = [[("user", "one?")], [("user", "/quit means?")]]
    assert [contents(messages) for messages in asked] == questions


def test_regenerate_asks_the_last_question_again_with_the_next_seed(piped: Any) -> None:
    done = piped("one?\ntwo?\n/regenerate\n/regenerate\n")
    assert done.model.asked[1] == done.model.asked[2] == done.model.asked[3]
    assert [request.params.seed for request in done.model.requests] == [0, 0, 1, 2]
    questions = done.conversation.messages[::2]
    assert [question["content"] for question in questions] == ["one?", "two?"]


@pytest.mark.parametrize(
    ("line", "strategy", "shown"),
    [
        ("/set strategy sequential", "sequential", "strategy is now sequential"),
        ("/set strategy quick", "pasta", "unknown strategy 'quick'"),
        ("/set strategy a b", "pasta", "no such command: /set strategy a b"),
        ("/help", "pasta", "Ctrl-C stops an answer"),
        ("/regenerate", "pasta", "there is no question yet"),
        ("/quot", "pasta", "/regenerate, /continue"),
        ("/continue", "pasta", "there is no answer to be continued"),
        ("/set", "pasta", "seed 0, strategy pasta"),
        ("/set fork_bias much", "pasta", "fork_bias cannot be 'much'"),
        ("/set temperature -1", "pasta", "temperature is -1.0, but must be"),
        ("/set heat 1", "pasta", "no such command: /set heat 1"),
        ("/set max_tokens 99", "pasta", "max_tokens is 99, and there is room for 50"),
    ],
)
def test_a_command_does_one_thing(
    piped: Any, capsys: pytest.CaptureFixture[str], line: str, strategy: str, shown: str
) -> None:
    done = piped(f"{line}\none?\n", most_tokens=50)
    assert done.conversation.strategy == strategy
    out, err = capsys.readouterr()
    assert shown in err
    assert out == f"{PLAIN}\n"  # whatever the command did, the conversation goes on


def test_settings_hold_for_the_next_answer_and_a_cut_one_is_continued_at_its_end(
    piped: Any,
) -> None:
    lines = "/set max_tokens 3\n/set fork_bias -2\none?\n/set max_tokens 512\n/continue\ntwo?\n"
    done = piped(lines)
    params = [request.params for request in done.model.requests]
    assert [(one.max_tokens, one.fork_bias) for one in params] == [(3, -2), (512, -2), (512, -2)]
    assert [one["role"] for one in done.model.asked[1]] == ["user", "assistant"]
    first = done.model.asked[1][1]["content"]
    assert PLAIN.startswith(first.split()[0])
    assert done.model.asked[2][1]["content"] == first + PLAIN


def test_an_answer_that_a_limit_cut_in_its_thought_is_not_continued_and_why_is_said(
    piped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saying("qwen3", "<think>\nTwo things\n</think>\n\nHere")
    done = piped("/set max_tokens 3\nWhy?\n/continue\n/set max_tokens 90\n/regenerate\n", model)
    out, err = capsys.readouterr()
    assert "cut the last answer in its thought, which is not kept" in err
    assert out.strip() == done.conversation.messages[-1]["content"] == "Here"


@pytest.mark.parametrize("num_events", range(1, 14))
def test_an_interrupt_keeps_what_was_written_and_the_conversation_goes_on(
    piped: Any, capsys: pytest.CaptureFixture[str], num_events: int
) -> None:
    done = piped("one?\ntwo?\n", ScriptedModel([num_events]))
    out, err = capsys.readouterr()
    first = out.removesuffix(f"{PLAIN}\n").removesuffix("\n")
    assert "stopped; what was written is kept" in err
    kept = [("assistant", first)] if first else []
    question = [("user", "one?")] if first else []  # a question without any answer is left out
    assert contents(done.model.asked[1]) == [*question, *kept, ("user", "two?")]
    assert all(word in PLAIN for word in first.split())


def test_a_long_conversation_loses_its_oldest_turns_and_says_so(
    piped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    done = piped("one?\ntwo?\nthree?\n", max_prompt=8)
    # One earlier turn of six words and the new question fit, two turns do not.
    turns = [("user", "two?"), ("assistant", PLAIN), ("user", "three?")]
    assert contents(done.model.asked[-1]) == turns
    notice = "longer than the model's context: its oldest turn dropped, 1 kept"
    assert notice in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [(b"word " * 9, "the question has 9 tokens"), (b"a\xff", "line 1 is not UTF-8: byte 2")],
)
def test_a_line_that_is_no_question_is_an_error_and_the_next_one_is_answered(
    piped: Any, capsys: pytest.CaptureFixture[str], line: bytes, message: str
) -> None:
    done = piped(line + b"\none?\n", max_prompt=8)
    assert done.code == 3
    out, err = capsys.readouterr()
    assert out == f"{PLAIN}\n"
    assert message in err
    assert contents(done.model.asked[-1]) == [("user", "one?")]


def test_in_a_terminal_control_d_ends_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["one?", KeyboardInterrupt(), "/nope", EOFError()])

    def read(_: str) -> str:
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert talk(conversation(ScriptedModel())) == 0
    out, err = capsys.readouterr()
    assert out == f"{PLAIN}\n"
    assert "/help lists the commands" in err
    assert "/quit leaves" in err


def test_a_real_model_answers_two_questions(pasta: Pasta, taught_folder: Path) -> None:
    flags = ("--model", taught_folder, "--max-tokens", 12)
    result = pasta("chat", *flags, stdin="hello\nand more\n/set strategy sequential\n/regenerate\n")
    assert result.code == 0
    assert result.err.count("tokens/s") == 3
    alone = pasta("run", "hello", *flags).out
    assert result.out.startswith(alone)
